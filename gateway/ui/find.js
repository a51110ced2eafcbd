// The view of one message: found by its cancel token, or by subject and id.

import { ask } from "./api.js";
import { asking, button, field, h, lacks, moment, notice, table } from "./dom.js";
import { cancel, move } from "./messages.js";

export const title = "Find";

const STATES = {
  waiting: "waits on disk, in the segment of its time",
  loaded: "waits in memory, not due yet",
  done: "done",
};

export function open(place, page, parameters) {
  const id = h("input", { name: "id", required: true, value: parameters.get("id") ?? "", autocomplete: "off" });
  const subject = h("input", { name: "subject", value: parameters.get("subject") ?? "", placeholder: "not with a token" });
  const due = h("input", { name: "due", value: parameters.get("due") ?? "", placeholder: "2026-12-24T18:00:00Z, if known" });
  const shown = h("div", {});
  const form = asking(
    "Find",
    load,
    field("Cancel token, or id", id),
    field("Subject of the id", subject, "small"),
    field("When it was due", due),
  );
  place.append(form, shown);
  const ends = new AbortController();

  async function load() {
    const token = [["messages", id.value.trim()], {}];
    const names = [["messages", subject.value.trim(), id.value.trim()], { due: due.value.trim() }];
    const [path, query] = subject.value.trim() ? names : token;
    try {
      const found = await ask("GET", path, { query, signal: ends.signal });
      shown.replaceChildren(...history(found));
    } catch (error) {
      page.fail(shown, error);
      if (error.code === "unknown" && !query.due) shown.append(notice("If it is done, give the time at which it was due: its segment is looked through."));
    }
  }

  function history(found) {
    const pending = found.messages.filter((row) => row.reason !== "done" && !row.dead_letter);
    const again = (made) => made && load();
    return [
      ...lacks(found),
      table(`${found.messages[0].id}, as of ${moment(Date.now())}. What was put off, moved or copied has a row for each place.`, [
        ["due", (row) => moment(row.due_ms), "time"],
        ["subject", (row) => row.subject],
        ["for", (row) => row.name ?? "all"],
        ["state", state],
        ["what happened", happened],
        ["delay group", (row) => `${row.delay_group}, record ${row.sequence}`],
      ], found.messages),
      h(
        "p",
        {},
        ...pending.slice(-1).flatMap((row) => [
          button("Move", () => move(page, row).then(again)),
          " ",
          button("Cancel", () => cancel(page, row).then(again), "danger"),
        ]),
        found.messages.some((row) => row.dead_letter) ? h("a", { href: "#dead" }, "To the dead letters") : null,
      ),
    ];
  }

  if (id.value) load();
  return { close: () => ends.abort() };
}

function state(row) {
  if (row.dead_letter) return h("span", { class: "warn" }, "dead letter");
  return STATES[row.reason] ?? `due: ${row.reason}`;
}

/** Return the outcome of a row, or who has it now. */
function happened(row) {
  const facts = Object.entries(row.fact ?? {}).filter(([, value]) => value !== null && value !== "");
  const words = facts.map(([name, value]) => `${name.replace(/_ms$/, "").replaceAll("_", " ")} ${name.endsWith("_ms") ? moment(value) : value}`);
  if (row.group) words.push(`with ${row.group}`);
  if (row.holder) words.push(typeof row.holder === "object" ? Object.entries(row.holder).map(([name, value]) => `${name} ${value}`).join(", ") : String(row.holder));
  return words.join("; ") || (row.dead_letter ? "given up" : "nothing yet");
}
