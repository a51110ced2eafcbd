// Elements, tables, numbers and times. Whatever comes from a server becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "rect", "line", "title"]);

/** Return an element. A property `onX` is a listener; one that is false or null is left out. */
export function h(tag, properties = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function button(text, onclick, kind = "", label = text) {
  return h("button", { type: "button", class: kind || null, onclick, "aria-label": label === text ? null : label }, text);
}

export function notice(text, kind = "") {
  return h("p", { class: `notice ${kind}` }, text);
}

/** Return a form that asks: its fields, and a button that sends it by `send`. */
export function asking(text, send, ...fields) {
  const onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  return h("form", { class: "asking", onsubmit }, ...fields, h("button", { class: "main" }, text));
}

/** Return a labelled field of a form. */
export function field(label, control, kind = "") {
  return h("label", { class: kind || null }, h("span", {}, label), control);
}

/**
 * Return a table. columns: [title, (row) => text or element, class]. On a narrow screen each row is
 * a list of its fields, with their titles.
 */
export function table(caption, columns, rows) {
  const cell = (row, [title, show, kind]) => {
    const value = show(row) ?? "";
    return h("td", { "data-label": title, class: [kind, value === "" ? "empty" : ""].join(" ").trim() || null }, value);
  };
  return h(
    "div",
    { class: "wide" },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...columns.map(([title, , kind]) => h("th", { scope: "col", class: kind || null }, title)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...columns.map((column) => cell(row, column))))),
    ),
  );
}

export function count(number) {
  return number === null || number === undefined ? "" : number.toLocaleString("en");
}

export function plural(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

const pad = (number) => String(number).padStart(2, "0");

/** Return a moment in the time of this browser; one of today without its date. */
export function moment(ms) {
  if (ms === null || ms === undefined) return "";
  const at = new Date(ms);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return at.toDateString() === new Date().toDateString() ? time : `${day(at)} ${time}`;
}

export function day(at) {
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

/** Return the value of a field for a date and time, as an RFC 3339 moment; "" if it is empty. */
export function momentOf(input) {
  return input.value ? new Date(input.value).toISOString() : "";
}

/** Return a moment as the value of a field for a date and time. */
export function inputOf(ms) {
  const at = new Date(ms);
  return `${day(at)}T${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 10) return `${value.toFixed(1)} s`;
  return value < 120 ? `${Math.round(value)} s` : `${Math.round(value / 60)} min`;
}

/** Make an element's content like that of another one, leaving in place what is alike: focus and
 * the place of a screen reader stay. Listeners are not taken over. */
export function morph(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  const wanted = [...fresh.childNodes];
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
  wanted.forEach((child, place) => {
    const present = old.childNodes[place];
    if (!present) old.append(child);
    else if (present.nodeName !== child.nodeName) present.replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) {
      if (present.data !== child.data) present.data = child.data;
    } else morph(present, child);
  });
}

/** Return notices about what is lacking in an answer. */
export function lacks({ away = {}, cut = {}, complete = true }) {
  const notices = Object.entries(away).map(([group, why]) => notice(`Delay group ${group} is missing here: ${why}`, "bad"));
  for (const [list, rows] of Object.entries(cut)) {
    notices.push(notice(`Cut: only the first of ${count(rows)} ${list.replaceAll("_", " ")} are shown.`));
  }
  if (!complete && !notices.length) notices.push(notice("Some places could not be read: there may be more.", "bad"));
  return notices;
}
