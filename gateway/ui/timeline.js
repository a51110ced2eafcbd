// The view of what is due when: a row of bars for each subject or receiver.

import { ask } from "./api.js";
import { count, field, h, lacks, moment, plural, table } from "./dom.js";

export const title = "Timeline";

const COLUMNS = { minute: 60, hour: 48, day: 30 };
const AGAIN_MS = 30000; // So old it may become before it is asked for again.
const SHOWN = 50;
const NAMES = { "": "All", "%": "others together" };

export function open(place, page, parameters) {
  const by = select("by", [["subject", "subject"], ["group", "receivers"]], parameters.get("by"));
  const step = select("step", [["minute", "the next hour"], ["hour", "the next 48 hours"], ["day", "the next 30 days"]], parameters.get("step") ?? "hour");
  const subject = h("input", { name: "subject", placeholder: "all, or orders.*", value: parameters.get("subject") ?? "" });
  const shown = h("div", {}, h("p", { class: "faint" }, "Counting…"));
  const form = h(
    "form",
    { class: "asking", onsubmit: (event) => event.preventDefault(), onchange: load },
    field("Show", step, "small"),
    field("A row for each", by, "small"),
    field("Subject", subject),
  );
  place.append(form, shown);
  const ends = new AbortController();
  let askedAt = 0;

  async function load() {
    askedAt = Date.now();
    const query = { subject: subject.value.trim() || "*", step: step.value, columns: COLUMNS[step.value] };
    const get = (of) => ask("GET", ["timeline"], { query: { ...query, by: of }, signal: ends.signal });
    try {
      // Rates are known of receivers alone.
      const taken = await get("group");
      const found = by.value === "group" ? taken : await get("subject");
      shown.replaceChildren(...chart(found, rates(found, taken, page.overview(), by.value), step.value));
    } catch (error) {
      page.fail(shown, error);
    }
  }

  load();
  return {
    update: () => Date.now() - askedAt > AGAIN_MS && load(),
    close: () => ends.abort(),
  };
}

function select(name, options, chosen) {
  return h("select", { name }, ...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

/**
 * Return how many messages a second the receivers of each row take: of a subject the slowest name
 * that takes it, which others may keep busy as well.
 */
function rates(found, taken, overview, by) {
  if (by === "group") return (name) => found.rows[name].rate_per_s ?? null;
  const receivers = overview?.receivers ?? [];
  return (subject) => {
    const names = receivers.filter((one) => one.patterns.some((pattern) => takes(pattern, subject))).map((one) => one.name);
    const known = names.map((name) => taken.rows[name]?.rate_per_s).filter(Boolean);
    return known.length && known.length === names.length ? Math.min(...known) : null;
  };
}

function takes(pattern, subject) {
  return pattern.endsWith("*") ? subject.startsWith(pattern.slice(0, -1)) : pattern === subject;
}

function chart(found, rateOf, step) {
  const names = Object.keys(found.rows).sort((a, b) => rank(a) - rank(b) || total(found.rows[b]) - total(found.rows[a]) || (a < b ? -1 : 1));
  const parts = lacks(found);
  if (!names.length) parts.push(h("p", {}, "Nothing is pending."));
  parts.push(...names.slice(0, SHOWN).map((name) => bars(name, found, name === "" ? null : rateOf(name), step)));
  if (names.length > SHOWN) parts.push(...lacks({ cut: { rows: names.length } }));
  return [h("p", { class: "faint" }, `Counted at ${moment(Date.now())}, in columns of one ${step}. The dashed line is what the receivers take, as far as it is known; a bar above it has another colour.`), ...parts];
}

function rank(name) {
  return name === "" ? 0 : 1;
}

function total(row) {
  return row.before + row.later + row.counts.reduce((sum, one) => sum + one, 0);
}

function bars(name, { begin_ms: begin, column_ms: length, rows }, rate, step) {
  const row = rows[name];
  const columns = row.counts.length;
  const highest = Math.max(...row.counts, 1);
  const capacity = rate === null ? null : (rate * length) / 1000;
  // The line is seen if it is not far above all bars.
  const isSeen = capacity !== null && capacity <= highest * 2;
  const top = isSeen ? Math.max(highest, capacity) * 1.08 : highest * 1.05;
  const over = capacity === null ? 0 : row.counts.filter((one) => one > capacity).length;
  const y = (value) => 100 - (value / top) * 100;
  const label = NAMES[name] ?? name;
  const sum = row.counts.reduce((all, one) => all + one, 0);
  const words = [
    `${count(sum)} due in this time`,
    row.before ? `${count(row.before)} due before` : "",
    row.later ? `${count(row.later)} later` : "",
    `at most ${count(highest === 1 && !sum ? 0 : highest)} in one ${step}`,
    capacity === null ? "" : `receivers take ${count(Math.round(capacity))}`,
    over ? `more than they take in ${plural(over, "column")}` : "",
  ].filter(Boolean).join("; ");
  const svg = h(
    "svg",
    { class: "bars", viewBox: `0 0 ${columns} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${words}` },
    ...row.counts.map((value, column) => value > 0 && h(
      "rect",
      {
        class: capacity !== null && value > capacity ? "over" : "bar",
        x: column + 0.1, width: 0.8, y: Math.min(y(value), 98), height: Math.max(100 - y(value), 2),
      },
      h("title", {}, `${moment(begin + column * length)}: ${count(value)}`),
    )),
    isSeen ? h("line", { class: "rate", x1: 0, x2: columns, y1: y(capacity), y2: y(capacity) }) : null,
  );
  const at = (column) => moment(begin + column * length).slice(0, -3);
  const numbers = row.counts.map((value, column) => ({ value, at: moment(begin + column * length) })).filter((one) => one.value);
  return h(
    "section",
    { class: "bar-row" },
    h("h3", {}, name === "" || name === "%" ? label : h("a", { href: `#waiting?subject=${encodeURIComponent(name)}` }, label)),
    h("p", { class: over ? "warn" : "faint" }, words),
    svg,
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, at(0)), h("span", {}, at(Math.floor(columns / 2))), h("span", {}, at(columns))),
    numbers.length ? h("details", {}, h("summary", { class: "faint" }, "As numbers"), table(label, [["from", (one) => one.at, "time"], ["messages", (one) => count(one.value), "number"]], numbers)) : null,
  );
}
