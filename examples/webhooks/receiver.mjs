// Takes webhooks: npm install && WEBHOOK_SECRET=whsec_… node receiver.mjs 9000
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);

const server = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts).toString();
  try {
    webhook.verify(body, request.headers);
  } catch (error) {
    response.writeHead(401).end(String(error));
    return;
  }
  // A message may come twice: keep the ids that you took.
  console.log("taken", request.headers["webhook-id"], body);
  response.writeHead(204).end();
});
server.listen(Number(process.argv[2]), "127.0.0.1");
