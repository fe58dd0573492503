// The filter bar: `topic:org.* tenant:acme agg:order/7 state:dead error:"HTTP 410" since:2h`.

import { h } from "./dom.js";

/// The words that the bar knows and what the query of a page calls them.
const NAMES = { topic: "topic", tenant: "tenant", agg: "aggregate", aggregate: "aggregate", state: "status", status: "status", error: "error", since: "since" };
const SHOWN = { aggregate: "agg", status: "state" };
const WORD = /(\w+):("(?:[^"\\]|\\.)*"|\S*)|(\S+)/g;

/// What a line asks for, and what of it is not understood. A word without a name searches for an event's id, or else
/// for an error.
export function parse(line) {
  const query = {};
  const unknown = [];
  for (const [word, name, value, bare] of line.matchAll(WORD)) {
    const known = name && NAMES[name.toLowerCase()];
    if (known) query[known] = unquote(value);
    else if (bare && /^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(bare)) query.id = bare;
    else if (bare && !bare.includes(":")) query.error = query.error ? `${query.error} ${bare}` : bare;
    else unknown.push(word);
  }
  return { query, unknown };
}

/// The line that asks for this.
export function write(query) {
  const order = ["topic", "tenant", "aggregate", "status", "error", "since"];
  return order
    .filter((name) => query[name])
    .map((name) => `${SHOWN[name] ?? name}:${requote(query[name])}`)
    .join(" ");
}

function unquote(value) {
  return value.startsWith('"') ? value.slice(1, -1).replace(/\\(.)/g, "$1") : value;
}

function requote(value) {
  return /[\s"]/.test(value) ? `"${value.replace(/["\\]/g, "\\$&")}"` : value;
}

/// The bar. `changed` gets what is asked for; `chips` are `[label, changes]` that are switched on and off.
export function bar({ query, names, chips, changed }) {
  const hint = h("div", { class: "small bad", "aria-live": "polite" });
  const field = h("input", { id: "filter", type: "search", value: write(query), placeholder: names.map((name) => `${name}:`).join(" "), "aria-label": "Filter", autocomplete: "off", spellcheck: "false" });
  const submit = (event) => {
    event.preventDefault();
    const { query: asked, unknown } = parse(field.value);
    const strange = [...unknown, ...Object.keys(asked).filter((name) => name !== "id" && !names.includes(SHOWN[name] ?? name))];
    hint.textContent = strange.length ? `Not understood: ${strange.join(", ")}. Known: ${names.map((name) => `${name}:`).join(" ")}` : "";
    if (!strange.length) changed(asked);
  };
  const chip = ([label, changes]) => {
    const on = Object.entries(changes).every(([name, value]) => query[name] === value);
    const flip = () => changed({ ...query, ...(on ? Object.fromEntries(Object.keys(changes).map((name) => [name, ""])) : changes) });
    return h("button", { type: "button", class: "chip", "aria-pressed": String(on), "data-key": `chip ${label}`, click: flip }, label);
  };
  return h("form", { class: "filter", role: "search", submit }, h("div", { class: "filter-line" }, field, h("button", { type: "submit" }, "Filter")), hint, h("div", { class: "chips" }, chips.map(chip)));
}
