// Audit: who changed what, and who looked at payloads.

import { at, get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, moment, number } from "../format.js";
import { List } from "../list.js";
import { card, empty, failure, head, tag } from "../parts.js";
import { to } from "../router.js";

export const title = "Audit";

const KIND = { discard: "bad", forget: "bad", pause: "warn", replay: "accent", resume: "good" };

export function show(view) {
  const before = view.query.get("before");
  const link = (changes) => to("audit", [], { table: view.query.get("table"), ...changes });
  const columns = [
    { title: "When", kind: "nowrap", cell: (row) => h("span", { title: row.at }, moment(row.at), h("div", { class: "small faint" }, ago(row.at))) },
    { title: "Who", cell: (row) => h("span", { class: "wrap" }, row.who) },
    { title: "Did", cell: (row) => tag(String(row.action).replaceAll("_", " "), KIND[row.action]) },
    { title: "Events", kind: "right", cell: (row) => number(row.events) },
    { title: "What", kind: "is-wide", cell: (row) => what(view, row) },
  ];
  const list = new List({ label: "Audit", columns, key: (row) => row.id });
  const result = h("div", { class: "stack" });
  fill(view.main, head("Audit", "Every change to this table by the dashboard, the command line or the library, and every look at a payload."), result);
  view.failed = (error) => error.name !== "AbortError" && fill(result, failure(error));
  const load = async () => {
    const page = await get(at(view.table, "audit"), { before, limit: 50 }, { signal: view.ending.signal });
    list.show(page.entries);
    const pager = h("div", { class: "pager" }, h("span", {}, `${number(page.entries.length)} shown`), h("span", { class: "row" }, before && h("a", { class: "button", href: link({}), "data-key": "first page" }, "⇤ Newest"), page.next && h("a", { class: "button", href: link({ before: page.next }), "data-key": "next page" }, "Further →")));
    fill(result, page.entries.length ? h("section", { class: "card card-flush", "aria-label": "Audit" }, list.node, pager) : card(null, {}, empty("Nobody has changed anything", "Replays, discards, pauses and looks at payloads are written here, with who did it.")));
  };
  if (before) load().catch(view.failed);
  else view.every(5, load);
}

/// Free JSON: an event's id leads to the event, the rest is text.
function what(view, row) {
  if (row.what === null || row.what === undefined) return null;
  if (typeof row.what !== "object") return String(row.what);
  const pair = ([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const shown = name === "event_id" ? h("a", { href: to("event", [text], { table: view.query.get("table") }), "data-key": `audit ${row.id}` }, h("code", {}, text)) : text;
    return h("div", {}, h("span", { class: "faint" }, `${name.replaceAll("_", " ")}: `), shown);
  };
  return Object.entries(row.what).filter(([, value]) => value !== null && value !== "").map(pair);
}
