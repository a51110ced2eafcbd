// Dialogs: one asks before a change, one asks for a token.

import { h, button } from "./dom.js";
import { keepToken } from "./api.js";

/**
 * Ask once before a change. `count(tell, signal)` returns the sentence that says what it does to how
 * many; `change(tell, signal)` makes it, and returns the sentence that says what was done. `tell`
 * shows how far it is; `signal` is aborted when the dialog is closed. `more` is shown in between.
 * Returns true if the change was made.
 */
export function confirm({ title, verb, danger = false, more = null, count, change, say }) {
  return new Promise((resolve) => {
    const ends = new AbortController();
    const text = h("p", { role: "status" }, "Counting…");
    const wrong = h("p", { class: "bad", role: "alert" });
    const tell = (sentence) => text.replaceChildren(sentence);
    const failed = (error) => {
      if (error.name !== "AbortError") wrong.replaceChildren(error.message);
    };
    let done = false;
    const go = button(verb, make, danger ? "danger" : "main");
    const back = button("Back", () => dialog.close());
    const dialog = h(
      "dialog",
      { "aria-labelledby": "asked", onclose: close },
      h("h2", { id: "asked" }, title),
      text,
      more,
      wrong,
      h("div", { class: "buttons" }, back, go),
    );

    async function make() {
      go.disabled = true;
      wrong.replaceChildren();
      try {
        const sentence = await change(tell, ends.signal);
        done = true;
        say(sentence);
        dialog.close();
      } catch (error) {
        failed(error);
        go.disabled = false;
      }
    }

    function close() {
      ends.abort();
      dialog.remove();
      resolve(done);
    }

    go.disabled = true;
    document.body.append(dialog);
    dialog.showModal();
    back.focus();
    count(tell, ends.signal).then((sentence) => {
      tell(sentence);
      go.disabled = false;
    }, (error) => {
      tell("How many it concerns is not known, so it cannot be done now.");
      failed(error);
    });
  });
}

/** Ask for a token; returns true if one was given, or taken away. */
export function askToken(why) {
  return new Promise((resolve) => {
    let given = false;
    const input = h("input", { type: "password", autocomplete: "off", id: "secret", required: true });
    const keep = (text) => {
      keepToken(text);
      given = true;
      dialog.close();
    };
    const form = h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          keep(input.value.trim());
        },
      },
      h("label", {}, h("span", {}, "Token, as `delaywheel admin token add` printed it"), input),
      h(
        "div",
        { class: "buttons" },
        button("Back", () => dialog.close()),
        button("Forget it", () => keep("")),
        h("button", { class: "main" }, "Use it"),
      ),
    );
    const dialog = h(
      "dialog",
      {
        "aria-labelledby": "wanted",
        onclose: () => {
          dialog.remove();
          resolve(given);
        },
      },
      h("h2", { id: "wanted" }, "Token"),
      h("p", {}, why),
      h("p", { class: "faint" }, "It is kept in this tab until the tab is closed."),
      form,
    );
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
