// Requests to the gateway's API, and its stream of events. The token is kept as long as the tab.

const TOKEN = "delaywheel-token";

/** A refusal, or that there is no answer: status 0. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Return the JSON of an answer. `path`: its parts behind /v1; throws Problem. */
export async function ask(method, path, { query = {}, body, signal } = {}) {
  const response = await request(method, path, query, body, signal);
  try {
    return await response.json();
  } catch (error) {
    throw new Problem(0, "unavailable", `The answer is not whole: ${error.message}`);
  }
}

/** Yield [name, value] of the events of a stream, until it ends; throws Problem. */
export async function* events(path, signal) {
  const response = await request("GET", path, {}, undefined, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(
        block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]),
      );
      if (fields.data) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

async function request(method, path, query, body, signal) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(given).toString();
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(["v1", ...path.map(encodeURIComponent)].join("/") + (parameters && `?${parameters}`), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unavailable", "The gateway does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.code ?? "", problem.detail ?? `The gateway answers ${response.status}.`);
}
