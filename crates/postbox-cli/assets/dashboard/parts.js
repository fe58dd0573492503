// The parts that pages are made of.

import { h, say } from "./dom.js";

/// A page's heading, its sentence, and what can be done on it.
export function head(title, lead, ...actions) {
  return h("div", { class: "page-head" }, h("div", {}, h("h1", {}, title), lead && h("p", { class: "page-lead" }, lead)), h("div", { class: "row" }, actions));
}

/// A box with a heading. `flush` lets a table reach its edges.
export function card(title, options, ...children) {
  const { flush = false, side = null } = options ?? {};
  const top = title || side ? h("div", { class: "card-head" }, title ? h("h2", {}, title) : h("span"), side) : null;
  return h("section", { class: flush ? "card card-flush" : "card", "aria-label": title || undefined }, top, children);
}

/// A number with its name; a link where a page says more.
export function stat(name, value, { more = "", kind = "", href = null } = {}) {
  const parts = [h("div", { class: "stat-name" }, name), h("div", { class: `stat-value ${kind}` }, value), h("div", { class: "stat-more" }, more)];
  return href ? h("a", { class: "stat", href, "data-key": `stat ${name}` }, parts) : h("div", { class: "stat" }, parts);
}

/// A word on a coloured ground. The word says it all: colour only helps.
export function tag(text, kind = "") {
  return h("span", { class: `tag ${kind ? `is-${kind}` : ""}` }, text);
}

const STATUS_KIND = { NEW: "", PUBLISHING: "accent", FAILED: "warn", SENT: "good", DEAD: "bad" };

/// An event's status.
export function status(value) {
  return tag(value, STATUS_KIND[value] ?? "");
}

/// A long id, short enough for a row; whole where the pointer rests.
export function brief(id) {
  const text = String(id ?? "");
  return h("code", { title: text }, text.length > 20 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text);
}

/// Whose event it is; nobody's in particular where there is one tenant.
export function tenant(id) {
  return /^0{8}-(0{4}-){3}0{12}$/.test(id ?? "") ? h("span", { class: "faint" }, "–") : brief(id);
}

/// What a button would be on the command line, to be copied.
export function cli(line) {
  const button = h("button", { type: "button", class: "is-plain", "aria-label": `Copy: ${line}`, click: () => copy(line, button) }, "copy");
  return h("div", { class: "cli" }, h("code", {}, line), button);
}

/// Puts a text onto the clipboard and says so on the button that was pressed.
export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    // Without https or by the user's choice there is no clipboard: the text can still be selected.
    button.textContent = "select it";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

/// A button. One that may not be pressed says why, on itself.
export function button(text, press, { kind = "", refused = null, key = null, hint = null } = {}) {
  return h("button", { type: "button", class: kind ? `is-${kind}` : null, click: press, disabled: Boolean(refused), title: refused ?? hint, "data-key": key ?? text }, text);
}

/// Something to know, in a coloured box.
export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind ? `is-${kind}` : ""}` }, children);
}

/// What went wrong, in the words of the server, and what to do next.
export function failure(error) {
  const more = error.next ? h("p", { class: "soft" }, `Next: ${error.next}`) : null;
  return h("div", { class: "notice is-bad", role: "alert" }, h("p", {}, h("b", {}, error.message)), more, error.code && h("p", { class: "small" }, h("code", {}, `postbox explain ${error.code}`)));
}

/// Nothing is there: what that means and what to do next.
export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("div", { class: "empty-title" }, title), h("p", {}, text), more);
}

/// Names and values; those without a value are left out.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–");
  return h("dl", { class: "facts" }, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/// A bar of parts: `[[kind, count], …]` of `total`.
export function progress(parts, total, label) {
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": total });
  let done = 0;
  for (const [kind, count] of parts) {
    const part = h("span", { class: `part-${kind}` });
    // By the object model, which the content policy allows; a style attribute it would not.
    part.style.width = `${total ? (count / total) * 100 : 0}%`;
    bar.append(part);
    done += count;
  }
  bar.setAttribute("aria-valuenow", String(Math.min(done, total)));
  return bar;
}

/// Says something in passing, to eyes and to screen readers.
export function toast(text) {
  const place = document.getElementById("toasts");
  const message = h("div", { class: "toast" }, text);
  place.append(message);
  setTimeout(() => message.remove(), 6000);
}

/// Tells screen readers alone.
export function announce(text) {
  say(document.getElementById("announcer"), text);
}
