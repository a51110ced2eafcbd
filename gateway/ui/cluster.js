// The view of the cluster: what to do next, then groups, nodes, receivers and brokers.

import { count, h, lacks, morph, plural, seconds, table } from "./dom.js";

export const title = "Cluster";

export function open(place) {
  place.append(h("p", { class: "faint" }, "Waiting for the first answer."));
  return {
    update(overview) {
      const fresh = h("div", {}, ...sections(overview));
      morph(place, fresh);
    },
  };
}

function sections(found) {
  const figures = found.delay_groups.map((group) => group.figures).filter(Boolean);
  const sum = (name) => figures.reduce((total, one) => total + (one[name] ?? 0), 0);
  const away = Object.keys(found.away).length;
  const part = away ? " (a part)" : "";
  return [
    h(
      "ul",
      { class: "tiles" },
      tile(count(sum("pending")), `pending${part}`),
      tile(count(sum("late")), `late${part}`, sum("late") ? "warn" : ""),
      tile(count(sum("dead_pending")), `dead letters${part}`, sum("dead_pending") ? "warn" : ""),
      tile(`${found.delay_groups.length - away} of ${found.delay_groups.length}`, "groups answer", away ? "bad" : ""),
      tile(count(found.receivers.filter((one) => one.connected).length), "receivers connected"),
    ),
    h("h2", {}, "What to do next"),
    next(found),
    ...lacks({ away: {}, cut: found.cut }),
    h("h2", {}, "Delay groups"),
    found.delay_groups.length ? groups(found) : h("p", {}, "No delay server has registered yet."),
    found.delay_groups.length ? nodes(found) : null,
    h("h2", {}, "Receivers"),
    found.receivers.length ? receivers(found) : h("p", {}, "No receiver has come yet."),
    h("h2", {}, "Broker groups"),
    found.broker_groups.length ? brokers(found) : h("p", {}, "No broker group is known."),
  ].filter(Boolean);
}

function tile(value, name, kind = "") {
  return h("li", {}, h("b", { class: kind || null }, value), h("span", {}, name));
}

/** Return what an operator should do, most urgent first. */
function next(found) {
  const steps = [];
  const add = (kind, text, link) => steps.push(h("li", { class: kind }, text, link ? " " : null, link));
  for (const [group, why] of Object.entries(found.away)) {
    add("bad", `Delay group ${group} gives no answer: ${why}. Its figures are missing here.`);
  }
  for (const why of found.failing) add("bad", `The meta server: ${why}`);
  for (const { group, step } of found.next_steps) add("warn", `${group}: ${step}`);
  for (const group of found.delay_groups) {
    for (const why of [...(group.figures?.failing ?? []), ...(group.figures?.warnings ?? [])]) add("warn", `${group.name}: ${why}`);
    if (group.election) add("bad", `${group.name}: an election has not ended: ${group.election}`);
    if (group.figures?.dead_pending) {
      add("warn", `${group.name}: ${plural(group.figures.dead_pending, "dead letter")}.`, h("a", { href: "#dead" }, "Requeue or drop them"));
    }
    if (group.figures?.paused?.messages) {
      add("warn", `${group.name}: ${plural(group.figures.paused.messages, "message")} due wait for a pause to end.`, h("a", { href: "#pauses" }, "See the pauses"));
    }
    for (const [name, one] of circuits(group)) {
      if (one.circuit !== "closed") add("warn", `${group.name}: the circuit to ${name} is ${one.circuit}: ${one.circuit_reason || one.why_none}`);
    }
  }
  for (const { why, patterns, examples } of found.unserved) {
    const more = patterns > examples.length ? ", …" : "";
    add("warn", `Messages of ${plural(patterns, "subject")} are taken by nobody (${examples.join(", ")}${more}): ${why}`);
  }
  return steps.length ? h("ul", { class: "steps" }, ...steps) : h("p", { class: "good" }, "Nothing: all is well.");
}

function circuits(group) {
  return Object.entries(group.figures?.brokers ?? {});
}

function groups(found) {
  return table("Figures are those of the master.", [
    ["group", (one) => one.name],
    ["master", (one) => one.master ?? h("span", { class: "bad" }, "none")],
    ["in sync", (one) => h("span", { class: one.in_sync.length < one.nodes.length ? "warn" : "good" }, `${one.in_sync.length} of ${one.nodes.length}, ${one.min_isr} needed`)],
    ["epoch", (one) => `${one.epoch} ${one.phase}`],
    ["pending", (one) => count(one.figures?.pending) || "unknown", "number"],
    ["late", (one) => count(one.figures?.late), "number"],
    ["dead", (one) => count(one.figures?.dead_pending), "number"],
    ["late by, p99", (one) => lateness(one.figures), "number"],
  ], found.delay_groups);
}

function lateness(figures) {
  const most = figures?.lateness_5_minutes_ms?.p99;
  return most === null || most === undefined ? "" : seconds(most / 1000);
}

function nodes(found) {
  const rows = found.delay_groups.flatMap((group) => group.nodes.map((node) => ({ ...node, group })));
  return table("Delay servers.", [
    ["node", (one) => `${one.group.name}/${one.node_id}`],
    ["role", (one) => one.role],
    ["in sync", (one) => (one.in_sync ? h("span", { class: "good" }, "yes") : h("span", { class: "warn" }, "no"))],
    ["behind", (one) => seconds(one.group.figures?.replicas?.[one.node_id]?.lag_seconds), "number"],
    ["heard", (one) => (one.heard_seconds_ago === null ? h("span", { class: "bad" }, "silent") : `${seconds(one.heard_seconds_ago)} ago`), "number"],
    ["address", (one) => one.address],
    ["notes", (one) => [one.group.figures?.replicas?.[one.node_id]?.sentence, one.fitness_note, one.controls_note, one.clock_note].filter(Boolean).join("; ")],
  ], rows);
}

function isWell(one) {
  return one.state === "up" && one.circuit === "closed" && !one.paused;
}

/** Return how the masters stand with a broker group, or a name of receivers. */
function standings(found, name) {
  const rows = found.delay_groups.map((group) => group.figures?.brokers?.[name]).filter(Boolean);
  if (!rows.length) return { text: "", kind: "", queued: 0, in_flight: 0 };
  const odd = rows.find((one) => !isWell(one)) ?? rows[0];
  return {
    text: `${odd.paused ? "paused" : odd.state}, circuit ${odd.circuit}`,
    kind: isWell(odd) ? "good" : "warn",
    queued: rows.reduce((total, one) => total + one.queued, 0),
    in_flight: rows.reduce((total, one) => total + one.in_flight, 0),
  };
}

const OF_MASTERS = (found) => [
  ["state", (one) => {
    const { text, kind } = standings(found, one.name);
    return text ? h("span", { class: kind }, text) : one.kind === "delay" ? "" : "not needed yet";
  }],
  ["queued", (one) => count(standings(found, one.name).queued), "number"],
  ["in flight", (one) => count(standings(found, one.name).in_flight), "number"],
];

function receivers(found) {
  return table("Names of receivers, and what they are sent.", [
    ["name", (one) => one.name],
    ["subjects", (one) => one.patterns.join(", ")],
    ["connected", (one) => h("span", { class: one.connected ? null : "warn" }, count(one.connected)), "number"],
    ...OF_MASTERS(found),
  ], found.receivers);
}

function brokers(found) {
  const kinds = { RW: "good", R: "warn", W: "warn", NRW: "bad" };
  return table("RW: takes messages; R: read-only; NRW: away.", [
    ["group", (one) => one.name],
    ["kind", (one) => one.kind],
    ["at the meta server", (one) => h("span", { class: kinds[one.state] }, one.state)],
    ["address", (one) => one.address],
    ["heard", (one) => (one.heard_seconds_ago === null ? "" : `${seconds(one.heard_seconds_ago)} ago`), "number"],
    ...OF_MASTERS(found),
  ], found.broker_groups);
}
