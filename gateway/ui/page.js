// The page: its views, the one stream of events, and the line that says how old all of it is.

import { events, hasToken, Problem } from "./api.js";
import { askToken, confirm } from "./dialogs.js";
import { h, moment } from "./dom.js";
import * as cluster from "./cluster.js";
import * as timeline from "./timeline.js";
import * as find from "./find.js";
import * as waiting from "./waiting.js";
import * as dead from "./dead.js";
import * as pauses from "./pauses.js";

const VIEWS = { cluster, timeline, waiting, find, dead, pauses };
const AGAIN_MS = 3000; // Until the stream is asked for again.
const OLD_MS = 10000; // Without an event for so long, what is shown counts as old.
const SAID_MS = 8000; // For so long the outcome of a change stays.

const main = document.getElementById("main");
const said = document.getElementById("said");
const state = document.getElementById("state");
const standing = document.getElementById("standing");

let overview = null; // The last one that came.
let cameAt = 0;
let trouble = "";
let view = null;
let stream = null; // The AbortController of the stream; null while it pauses.
let asksToken = false;
let saidTimer = 0;

/** What each view is given. */
const page = {
  /** Return the last overview, or null. */
  overview: () => overview,

  /** Say the outcome of a change. */
  say(text) {
    said.replaceChildren(text);
    clearTimeout(saidTimer);
    saidTimer = setTimeout(() => said.replaceChildren(), SAID_MS);
  },

  /** Ask once before a change; see dialogs.js. */
  confirm: (asked) => confirm({ ...asked, say: page.say }),

  /** Show a failure in place of what was asked for; a missing token is asked for. */
  fail(place, error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Problem)) throw error;
    place.replaceChildren(h("p", { class: "notice bad", role: "alert" }, error.message));
    if (error.status === 401) wantToken(error.message);
  },
};

async function wantToken(why) {
  if (asksToken) return;
  asksToken = true;
  const given = await askToken(why);
  asksToken = false;
  if (given) {
    reconnect();
    open();
  }
}

/** Show the view that the address names. */
function open() {
  const [name, query] = location.hash.slice(1).split("?");
  const key = Object.hasOwn(VIEWS, name) ? name : "cluster";
  document.getElementById("views").replaceChildren(
    ...Object.entries(VIEWS).map(([one, { title }]) =>
      h("a", { href: `#${one}`, "aria-current": one === key ? "page" : null }, title)),
  );
  document.title = `${VIEWS[key].title} · delaywheel`;
  view?.close?.();
  const place = h("div", {});
  main.replaceChildren(h("h1", {}, VIEWS[key].title), place);
  view = VIEWS[key].open(place, page, new URLSearchParams(query)) ?? {};
  if (overview) view.update?.(overview);
}

/** Take events until the page is hidden; begin again when the stream ends. */
async function follow() {
  const own = new AbortController();
  stream = own;
  while (!own.signal.aborted) {
    try {
      for await (const [name, value] of events(["events"], own.signal)) {
        if (name === "cluster") {
          overview = read(value);
          cameAt = Date.now();
          view.update?.(overview);
        }
        trouble = name === "cluster" ? "" : value.detail;
        showState();
      }
    } catch (error) {
      if (own.signal.aborted) return;
      trouble = error instanceof Problem ? error.message : "The gateway does not answer.";
      showState();
      if (error.status === 401) {
        wantToken(error.message);
        return;
      }
    }
    // A stream that ends without trouble was open for its time.
    if (trouble) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

/** Return an overview with the figures of each master at its group. */
function read({ topology, figures, away, cut }) {
  const groups = topology.delay_groups.map((group) => ({ ...group, figures: figures[group.name] ?? null }));
  return { ...topology, delay_groups: groups, away, cut };
}

function reconnect() {
  stream?.abort();
  stream = null;
  if (!document.hidden) follow();
  showState();
}

/** Say whether what is shown is live, and as of when it is. */
function showState() {
  const isOld = trouble !== "" || Date.now() - cameAt > OLD_MS;
  let text = "Live.";
  if (stream === null) text = "Stopped while the page was hidden.";
  else if (!cameAt && !trouble) text = "Connecting.";
  else if (isOld) text = `${cameAt ? "Old. " : ""}${trouble || "No news comes."} It is tried again.`;
  state.className = `state ${text === "Live." ? "good" : cameAt || trouble ? "old" : ""}`;
  // Only what is new is read out.
  if (standing.textContent !== text) standing.replaceChildren(text);
  document.getElementById("as-of").replaceChildren(cameAt ? `As of ${moment(cameAt)}.` : "");
}

window.addEventListener("hashchange", () => {
  open();
  main.focus();
});
document.addEventListener("visibilitychange", reconnect);
document.getElementById("token").addEventListener("click", () =>
  wantToken(hasToken() ? "This tab has a token. Another one takes its place." : "On this machine itself no token may be needed."));
setInterval(() => stream && showState(), 1000);
open();
reconnect();
