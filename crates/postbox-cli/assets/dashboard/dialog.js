// Questions before something changes.

import { h } from "./dom.js";
import { cli, failure } from "./parts.js";

/// Asks before a change, shows its command line, and does it. `typed` is a word that has to be typed first, for what
/// cannot be undone; `fields` are further inputs; `act` does the change, and the dialog stays with the error if it fails.
/// Answers what `act` answers, or `null` if it was not wanted.
export function confirm({ title, text, line, verb, kind = "main", typed = null, fields = [], act }) {
  return new Promise((resolve) => {
    const problem = h("div", { "aria-live": "assertive" });
    const word = typed === null ? null : h("input", { autocomplete: "off", spellcheck: "false", input: () => (go.disabled = word.value !== typed) });
    const go = h("button", { type: "submit", class: `is-${kind}`, disabled: typed !== null }, verb);
    const no = h("button", { type: "button", click: () => dialog.close() }, "Cancel");
    const shown = typeof line === "function" ? h("div", {}, cli(line())) : line && cli(line);
    let result = null;
    const submit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      problem.replaceChildren();
      try {
        result = await act();
        dialog.close();
      } catch (error) {
        problem.replaceChildren(failure(error));
        go.disabled = false;
      }
    };
    const form = h(
      "form",
      { class: "dialog", method: "dialog", submit, input: () => typeof line === "function" && shown.replaceChildren(cli(line())) },
      h("h2", { id: "dialog-title" }, title),
      text && h("div", { class: "soft" }, text),
      fields,
      word && h("label", {}, h("span", {}, "Type ", h("b", {}, typed), " to go on:"), word),
      shown,
      problem,
      h("div", { class: "dialog-foot" }, no, go),
    );
    const dialog = open(form, () => resolve(result));
    (word ?? fields[0]?.querySelector("input") ?? go).focus();
  });
}

/// Shows something over the page until it is closed.
export function open(content, closed = () => {}) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, content);
  const back = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (back instanceof HTMLElement && back.isConnected) back.focus();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
