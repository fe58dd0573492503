// The keyboard: `g` and a letter go to a page, `j k x enter` work on its list, `/` filters, `p` stops all refreshing.

import { h } from "./dom.js";
import { open } from "./dialog.js";
import { go, route, to } from "./router.js";

const PAGES = { o: "overview", t: "table", s: "sinks", e: "events", d: "dead", b: "blocked", i: "inbox", a: "audit", h: "doctor" };

/// How long `g` waits for its letter.
const PATIENCE_MS = 1500;

/// What the keys do, as the help shows it.
const HELP = [
  ["g o", "Overview"], ["g t", "Table"], ["g s", "Sinks"], ["g e", "Events"], ["g d", "Dead"],
  ["g b", "Blocked aggregates"], ["g i", "Inbox"], ["g a", "Audit"], ["g h", "Doctor"],
  ["/", "Filter"], ["j  k", "Next, previous"], ["x", "Choose"], ["enter", "Open"],
  ["p", "Stop or go on refreshing"], ["?", "This help"], ["esc", "Close, or leave a field"],
];

let waiting = 0;
let list = null;

/// The list of the page that is shown: `{ move(step), choose(), open() }`.
export function listen(current) {
  list = current;
}

/// Starts listening; `stop` is what `p` does.
export function start(stop) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const field = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), select, textarea");
    if (field) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (pressed(event, stop)) event.preventDefault();
  });
}

function pressed(event, stop) {
  const { key } = event;
  if (Date.now() - waiting < PATIENCE_MS) {
    waiting = 0;
    if (PAGES[key]) return goTo(PAGES[key]);
  }
  switch (key) {
    case "g":
      waiting = Date.now();
      return true;
    case "/":
      return focusFilter();
    case "?":
      return help();
    case "p":
      stop();
      return true;
    case "j":
      return list ? (list.move(1), true) : false;
    case "k":
      return list ? (list.move(-1), true) : false;
    case "x":
      return list?.choose ? (list.choose(), true) : false;
    case "Enter":
      // A link or a button has its own meaning of it.
      return list?.open && !event.target.closest("a, button") ? (list.open(), true) : false;
    default:
      return false;
  }
}

/// The table that is looked at stays the same.
function goTo(page) {
  go(to(page, [], { table: route().query.get("table") }));
  return true;
}

function focusFilter() {
  const field = document.getElementById("filter");
  if (field) field.focus();
  else goTo("events");
  return true;
}

/// All keys.
export function help() {
  const rows = HELP.map(([keys, what]) => [h("dt", {}, keys.split(/ +/).map((key) => [h("kbd", {}, key), " "])), h("dd", {}, what)]);
  const close = h("button", { type: "button", class: "is-main", click: () => dialog.close() }, "Close");
  const dialog = open(h("div", { class: "dialog" }, h("h2", { id: "dialog-title" }, "Keys"), h("dl", { class: "keys" }, rows), h("div", { class: "dialog-foot" }, close)));
  close.focus();
  return true;
}
