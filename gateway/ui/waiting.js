// The view of pending messages: those of a subject, or of a time, the first due first.

import { ask } from "./api.js";
import { asking, button, count, field, h, lacks, moment, momentOf, notice, table } from "./dom.js";
import { cancel, cancelAll, move, moveAll } from "./messages.js";

export const title = "Pending";

const PAGE = 100;

export function open(place, page, parameters) {
  const subject = h("input", { name: "subject", placeholder: "orders.paid, or orders.*", value: parameters.get("subject") ?? "" });
  const after = h("input", { name: "after", type: "datetime-local", step: "1" });
  const before = h("input", { name: "before", type: "datetime-local", step: "1" });
  const shown = h("div", {});
  const form = asking(
    "Show",
    load,
    field("Subject", subject),
    field("Due from", after, "small"),
    field("Due before", before, "small"),
  );
  place.append(form, shown);
  const ends = new AbortController();
  let rows = [];

  function filter() {
    return { subject: subject.value.trim(), due_after: momentOf(after), due_before: momentOf(before) };
  }

  async function load(cursor = "") {
    if (!cursor) rows = [];
    const meant = filter();
    if (!Object.values(meant).some(Boolean)) {
      shown.replaceChildren(notice("Give a subject, a beginning of subjects with a * behind, or a time."));
      return;
    }
    try {
      const found = await ask("GET", ["messages"], { query: { ...meant, limit: PAGE, cursor }, signal: ends.signal });
      rows = [...rows, ...found.items];
      shown.replaceChildren(...list(found, meant));
    } catch (error) {
      page.fail(shown, error);
    }
  }

  function list(found, meant) {
    const times = [after.value && `due from ${after.value.replace("T", " ")}`, before.value && `due before ${before.value.replace("T", " ")}`];
    const text = [meant.subject ? `of ${meant.subject}` : "messages", ...times].filter(Boolean).join(", ");
    const again = (made) => made && load();
    return [
      ...lacks(found),
      rows.length
        ? h(
          "p",
          {},
          button(`Move all ${text}`, () => moveAll(page, meant, text).then(again)),
          " ",
          button(`Cancel all ${text}`, () => cancelAll(page, meant, text).then(again), "danger"),
        )
        : null,
      rows.length
        ? table(`${count(rows.length)} ${found.next ? "shown, there may be more" : "in all"}, as of ${moment(Date.now())}.`, [
          ["due", (row) => moment(row.due_ms), "time"],
          ["subject", (row) => row.subject],
          ["id", (row) => h("a", { href: `#find?${new URLSearchParams({ id: row.id ?? "", subject: row.subject, due: row.due })}` }, row.id ?? "unreadable")],
          ["only for", (row) => row.name ?? ""],
          ["bytes", (row) => count(row.size_bytes), "number"],
          ["", (row) => row.id !== null && h(
            "span",
            {},
            button("Move", () => move(page, row).then(again), "", `Move ${row.id}`),
            button("Cancel", () => cancel(page, row).then(again), "danger", `Cancel ${row.id}`),
          ), "buttons"],
        ], rows)
        : h("p", {}, "Nothing that fits is pending."),
      found.next ? h("p", {}, button("More", () => load(found.next))) : null,
    ].filter(Boolean);
  }

  if (subject.value) load();
  return { close: () => ends.abort() };
}
