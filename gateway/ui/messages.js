// Changes of pending messages, as both the list and the search offer them.

import { ask, Problem } from "./api.js";
import { count, field, h, inputOf, moment, momentOf, plural } from "./dom.js";

function named(row) {
  return `${row.id} of ${row.subject}`;
}

function target(row) {
  return [["messages", row.subject, row.id], { due: row.due }];
}

/** Return a sentence about where a message is now; throws Problem if it is known nowhere. */
async function present(row, verb, signal) {
  const [path, query] = target(row);
  const { messages } = await ask("GET", path, { query, signal });
  const left = messages.filter((one) => one.reason !== "done" && !one.dead_letter);
  const names = left.map((one) => one.name).filter(Boolean);
  const copies = names.length > 1 ? ` Its copies for ${names.join(", ")} are meant together.` : "";
  if (!left.length) return `It concerns 0 messages: ${named(row)} has an outcome by now.`;
  return `${verb} 1 message: ${named(row)}, due ${moment(row.due_ms)}.${copies}`;
}

/** Cancel one message, after asking. */
export function cancel(page, row) {
  const [path, query] = target(row);
  return page.confirm({
    title: "Cancel this message?",
    verb: "Cancel the message",
    danger: true,
    count: async (_, signal) => `${await present(row, "Cancels", signal)} Nobody gets it.`,
    change: async () => {
      const changed = await ask("DELETE", path, { query });
      return `${named(row)} is ${changed.state}.`;
    },
  });
}

/** Move one message to another time, after asking. */
export function move(page, row) {
  const [path, query] = target(row);
  const to = h("input", { type: "datetime-local", step: "1", name: "to", value: inputOf(row.due_ms), required: true });
  return page.confirm({
    title: "Move this message?",
    verb: "Move the message",
    more: field("Due at, in the time of this browser", to),
    count: async (_, signal) => `${await present(row, "Moves", signal)}`,
    change: async () => {
      const changed = await ask("PATCH", path, { query, body: { due: momentOf(to) } });
      return `${named(row)} is ${changed.state}; it is due ${moment(changed.due_ms)}.`;
    },
  });
}

/** Cancel all messages of a filter, after counting them. */
export function cancelAll(page, filter, text) {
  return page.confirm({
    title: `Cancel all ${text}?`,
    verb: "Cancel all of them",
    danger: true,
    count: async (_, signal) => `Cancels ${await counted(filter, text, signal)} Nobody gets them.`,
    // What a request has cancelled does not count again.
    change: (tell, signal) => slices(tell, () => ask("DELETE", ["messages"], { query: filter, signal })),
  });
}

/** Move all messages of a filter by as much, after counting them. */
export function moveAll(page, filter, text) {
  const by = h("input", { name: "by", placeholder: "1h30m, or -2d", required: true });
  let next; // Where each group goes on: also when the button is pressed once more after a failure.
  return page.confirm({
    title: `Move all ${text}?`,
    verb: "Move all of them",
    more: field("Later by; with a - before it earlier", by),
    count: async (_, signal) => `Moves ${await counted(filter, text, signal)} What would be due in the past, or too far ahead, is left.`,
    change: (tell, signal) => slices(tell, async () => {
      by.disabled = true; // A part that is moved is not moved again by another time.
      const body = { by: by.value.trim(), after: next };
      const found = await ask("PATCH", ["messages"], { query: filter, body, signal }).catch((error) => {
        by.disabled = next !== undefined;
        throw error;
      });
      next = found.next;
      return found;
    }),
  });
}

/** Return how many messages of a filter are pending; throws Problem. */
async function counted(filter, text, signal) {
  const { states, complete } = whole(await ask("DELETE", ["messages"], { query: { ...filter, dry_run: true }, signal }));
  const sum = Object.values(states).reduce((all, one) => all + one, 0);
  return `${complete ? "" : "at least "}${plural(sum, "message")}: all ${text} that are pending when it begins.`;
}

/** Repeat a request, which ends after a time, until all is done; returns the sentence of it. */
async function slices(tell, request) {
  const states = {};
  for (let complete = false; !complete;) {
    const found = whole(await request(), states);
    for (const [name, number] of Object.entries(found.states)) states[name] = (states[name] ?? 0) + number;
    complete = found.complete;
    tell(`So far: ${told(states)}.`);
  }
  return `Done: ${told(states)}.`;
}

/** Return an answer of all groups; throws Problem if some gave none. */
function whole(found, before = {}) {
  const away = Object.entries(found.away).map(([group, why]) => `${group}: ${why}`);
  if (!away.length) return found;
  throw new Problem(0, "unavailable", `Some groups gave no answer, so not all are counted or done: ${away.join("; ")}. Before: ${told(before)}; now: ${told(found.states)}.`);
}

function told(states) {
  return Object.entries(states).map(([name, number]) => `${count(number)} ${name}`).join(", ") || "none";
}
