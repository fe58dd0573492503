// Building the page. Everything that is shown comes through here, as text nodes and attributes: nothing is ever parsed as
// HTML, so what an event, an error or a header holds stays what it is, a text.

const SVG = "http://www.w3.org/2000/svg";

/// An element: `h("a", { href: "#/dead", class: "link" }, "dead")`. Functions become listeners, `true` an empty attribute;
/// `null`, `undefined` and `false` are left out, of attributes as of children.
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/// The same for drawings.
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "href") node.setAttribute("href", safe(String(value)));
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/// Only addresses that lead to a page: a `javascript:` that came from data leads nowhere.
function safe(address) {
  return /^(#|https?:\/\/|\.?\/)/.test(address) ? address : "#/";
}

/// Replaces what an element holds. Who works with the keyboard keeps their place: what has the focus gets it back, known
/// by its `data-key`.
export function fill(node, ...children) {
  const active = document.activeElement;
  const key = node.contains(active) ? active.closest("[data-key]")?.dataset.key : undefined;
  const fresh = document.createDocumentFragment();
  append(fresh, children);
  node.replaceChildren(fresh);
  if (key === undefined) return node;
  const again = [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  again?.focus({ preventScroll: true });
  return node;
}

/// Changes a text only when it is another one, so that screen readers are not told the same again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// What is under the cursor of `j` and `k` scrolls into view without a jump.
export function reveal(node) {
  node.scrollIntoView({ block: "nearest" });
}
