// The view of pauses: subjects whose messages wait, to pause one or go on with it.

import { ask } from "./api.js";
import { asking, button, field, h, lacks, moment, plural, table } from "./dom.js";

export const title = "Pauses";

export function open(place, page) {
  const subject = h("input", { name: "subject", placeholder: "orders.paid, or orders.*", required: true });
  const shown = h("div", {});
  const form = asking(
    "Pause",
    () => change("PUT", subject.value.trim()).then((made) => made && load()),
    field("Subject", subject),
  );
  place.append(h("p", {}, "Messages of a paused subject are accepted and wait. They come when the pause ends."), form, shown);
  const ends = new AbortController();

  async function load() {
    try {
      const found = await ask("GET", ["pauses"], { signal: ends.signal });
      shown.replaceChildren(...list(found));
    } catch (error) {
      page.fail(shown, error);
    }
  }

  function list(found) {
    const rows = [
      ...found.subjects.map((name) => ({ name, kind: "subject" })),
      ...found.groups.map((name) => ({ name, kind: "broker group or receivers" })),
    ];
    if (!rows.length) return [h("p", {}, `Nothing is paused, as of ${moment(Date.now())}.`)];
    const resume = (row) => button("Go on", () => change("DELETE", row.name).then((made) => made && load()), "", `Go on with ${row.name}`);
    return [
      ...lacks({ complete: found.complete }),
      table(`Paused, as of ${moment(Date.now())}.`, [
        ["what", (row) => row.kind],
        ["name", (row) => row.name],
        ["", (row) => (row.kind === "subject" ? resume(row) : `delaywheel resume --group ${row.name}`), "buttons"],
      ], rows),
    ];
  }

  function change(method, name) {
    const path = ["pauses", name];
    const isPause = method === "PUT";
    return page.confirm({
      title: isPause ? `Pause ${name}?` : `Go on with ${name}?`,
      verb: isPause ? "Pause" : "Go on",
      count: async (_, signal) => {
        const { messages, away } = await ask(method, path, { query: { dry_run: true }, signal });
        const groups = Object.keys(away);
        const lack = groups.length ? ` and those of ${groups.join(", ")}, which gave no answer` : "";
        const end = isPause ? "They are kept, and wait until the pause ends." : "What is due is sent at once.";
        return `Concerns ${plural(messages, "pending message")} of ${name}${lack}, and what comes. ${end}`;
      },
      change: async () => {
        await ask(method, path);
        return isPause ? `${name} is paused.` : `${name} goes on.`;
      },
    });
  }

  load();
  return { close: () => ends.abort() };
}
