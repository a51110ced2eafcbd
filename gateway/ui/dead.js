// The view of dead letters: of each delay group a list, to requeue or drop one or all.

import { ask } from "./api.js";
import { asking, button, count, field, h, moment, notice, plural, table } from "./dom.js";

export const title = "Dead letters";

const PAGE = 100;

export function open(place, page) {
  const subject = h("input", { name: "subject", placeholder: "all" });
  const group = h("input", { name: "group", placeholder: "all" });
  const form = asking(
    "Show",
    reload,
    field("Subject", subject),
    field("Refused by", group),
  );
  const shown = h("div", {}, h("p", { class: "faint" }, "Waiting for the first answer."));
  place.append(form, shown);
  const ends = new AbortController();
  const parts = new Map(); // By delay group: its section, and its number of dead letters.

  function filter() {
    return { subject: subject.value.trim(), group: group.value.trim() };
  }

  async function load(name, after = "", before = []) {
    const { section } = parts.get(name);
    try {
      const meant = filter();
      const found = await ask("GET", ["dead", name], { query: { ...meant, limit: PAGE, after }, signal: ends.signal });
      section.replaceChildren(...list(name, found, [...before, ...found.items], meant));
    } catch (error) {
      page.fail(section, error);
    }
  }

  function list(name, found, rows, meant) {
    const again = (made) => made && load(name);
    const one = (row) => ({ query: { sequence: row.sequence }, text: `${row.message_id ?? "a letter"} of ${row.subject}` });
    const heading = h("h2", {}, `${name}: ${plural(found.pending, "dead letter")}`);
    if (!rows.length) return [heading, h("p", {}, found.pending ? "None fits." : "There are none.")];
    return [
      heading,
      ...alls(rows, meant).flatMap(({ query, text }) => h(
        "p",
        {},
        button(`Requeue all ${text}`, () => requeue(name, query, `all ${text}`).then(again)),
        " ",
        button(`Drop all ${text}`, () => drop(name, query, `all ${text}`).then(again), "danger"),
      )),
      table(`${count(rows.length)} of ${count(found.matched)}, as of ${moment(Date.now())}.`, [
        ["dead since", (row) => moment(row.dead_ms), "time"],
        ["subject", (row) => row.subject],
        ["id", (row) => (row.message_id ? h("a", { href: `#find?${new URLSearchParams({ id: row.message_id, subject: row.subject })}` }, row.message_id) : row.fault ?? "")],
        ["refused by", (row) => row.group ?? ""],
        ["why", (row) => row.refusals?.at(-1)?.said || row.code_name?.replaceAll("_", " ") || row.reason || row.fault || ""],
        ["tries", (row) => count(row.tries), "number"],
        ["", (row) => h(
          "span",
          {},
          button("Requeue", () => requeue(name, one(row).query, one(row).text).then(again), "", `Requeue ${one(row).text}`),
          button("Drop", () => drop(name, one(row).query, one(row).text).then(again), "danger", `Drop ${one(row).text}`),
        ), "buttons"],
      ], rows),
      found.next ? button("More", () => load(name, found.next, rows)) : null,
    ].filter(Boolean);
  }

  /** Return what can be changed together: what is filtered for, or what each group refused. */
  function alls(rows, meant) {
    if (meant.subject && meant.group) return [];
    if (meant.subject) return [{ query: { subject: meant.subject }, text: `of ${meant.subject}` }];
    const groups = meant.group ? [meant.group] : [...new Set(rows.map((row) => row.group).filter(Boolean))];
    return groups.map((one) => ({ query: { group: one }, text: `that ${one} refused` }));
  }

  function requeue(name, query, text) {
    const path = ["dead", name, "requeue"];
    return page.confirm({
      title: "Requeue?",
      verb: "Requeue",
      count: async (_, signal) => `Sends ${plural(await number("POST", path, query, signal), "dead letter")} once more, at once: ${text}.`,
      change: async () => `${plural((await ask("POST", path, { query })).messages, "dead letter")} requeued.`,
    });
  }

  function drop(name, query, text) {
    const path = ["dead", name];
    return page.confirm({
      title: "Drop for good?",
      verb: "Drop",
      danger: true,
      count: async (_, signal) => `Drops ${plural(await number("DELETE", path, query, signal), "dead letter")} for good: ${text}. Nobody gets them.`,
      change: async () => `${plural((await ask("DELETE", path, { query })).messages, "dead letter")} dropped.`,
    });
  }

  function reload() {
    [...parts.keys()].forEach((name) => load(name));
  }

  return {
    /** Ask again of each group whose number has changed. */
    update(overview) {
      for (const { name, figures } of overview.delay_groups) {
        const known = parts.get(name);
        if (!known) {
          parts.set(name, { section: h("section", {}), number: null });
          if (parts.size === 1) shown.replaceChildren();
          shown.append(parts.get(name).section);
        }
        const part = parts.get(name);
        if (!figures) {
          part.number = null;
          part.section.replaceChildren(notice(`Delay group ${name} gives no answer: ${overview.away[name]}. Its dead letters are missing here.`, "bad"));
        } else if (figures.dead_pending !== part.number) {
          part.number = figures.dead_pending;
          load(name);
        }
      }
    },
    close: () => ends.abort(),
  };
}

async function number(method, path, query, signal) {
  return (await ask(method, path, { query: { ...query, dry_run: true }, signal })).messages;
}
