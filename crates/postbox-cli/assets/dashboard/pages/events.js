// Events: a filter bar and pages by keyset. The URL is the state: a link shows the same to somebody else.

import { at, get } from "../api.js";
import { fill, h } from "../dom.js";
import { bar } from "../filter.js";
import { aggregate, ago, number, short } from "../format.js";
import { List } from "../list.js";
import { card, cli, empty, failure, head, status, tenant } from "../parts.js";
import { go, to } from "../router.js";
import { resend } from "./resend.js";

export const title = "Events";

const FIELDS = ["topic", "tenant", "aggregate", "status", "error", "since"];
const PAGE = 50;

const CHIPS = [
  ["waiting", { status: "new" }],
  ["in flight", { status: "publishing" }],
  ["failed", { status: "failed" }],
  ["sent", { status: "sent" }],
  ["dead", { status: "dead" }],
  ["last hour", { since: "1h" }],
  ["oldest first", { order: "oldest" }],
];

/// `order/7` is a type and an id.
export function asked(query) {
  const [type, ...id] = (query.aggregate ?? "").split("/");
  const { aggregate: _, ...rest } = query;
  return { ...rest, aggregate_type: type, aggregate_id: id.join("/") };
}

export function show(view) {
  const query = Object.fromEntries([...FIELDS, "order"].map((name) => [name, view.query.get(name) ?? ""]));
  const [after, deep] = [view.query.get("after"), view.query.get("deep")];
  const link = (changes) => to("events", [], { table: view.query.get("table"), ...query, deep, ...changes });
  const changed = (wanted) => {
    if (wanted.id) go(to("event", [wanted.id], { table: view.query.get("table") }));
    else go(link({ ...Object.fromEntries(FIELDS.map((name) => [name, ""])), ...wanted }));
  };
  const result = h("div", { class: "stack" });
  const again = query.status === "sent" && h("div", { class: "stack" }, resend(view, query.topic));
  const list = rows(view);
  const draw = (page) => {
    list.show(page.events);
    const found = page.events.length > 0;
    fill(
      result,
      bulk(view, query, found),
      found ? h("section", { class: "card card-flush", "aria-label": "Events" }, list.node, pager(query, page, after, link)) : none(query, page, link),
      page.command && cli(page.command),
    );
  };
  fill(view.main, head("Events", null), h("div", { class: "stack" }, bar({ query, names: ["topic", "tenant", "agg", "state", "error", "since"], chips: CHIPS, changed }), again, result));
  fill(result, h("p", { class: "soft" }, "Looking…"));
  view.failed = (error) => fill(result, failure(error));
  const load = async () => draw(await get(at(view.table, "events"), { ...asked(query), after, deep, limit: PAGE }, { signal: view.ending.signal }));
  // Only the newest page moves by itself: who reads further back is not to lose their place.
  if (after || deep) load().catch((error) => error.name !== "AbortError" && view.failed(error));
  else view.every(4, load);
}

function rows(view) {
  const open = (event) => go(to("event", [event.event_id], { table: view.query.get("table") }));
  const columns = [
    { title: "Status", cell: (event) => status(event.status) },
    { title: "Topic", kind: "is-topic", cell: (event) => h("a", { href: to("event", [event.event_id], { table: view.query.get("table") }), "data-key": `event ${event.event_id}` }, event.topic) },
    { title: "Aggregate", cell: (event) => h("span", { title: aggregate(event) }, short(aggregate(event), 36)) },
    { title: "Tenant", kind: "wide-only", cell: (event) => tenant(event.tenant_id) },
    { title: "Created", kind: "nowrap", cell: (event) => h("span", { title: event.created_at }, ago(event.created_at)) },
    { title: "Tries", kind: "right", cell: (event) => number(event.attempts) },
    { title: "Sequence", kind: "right wide-only", cell: (event) => h("span", { class: "mono" }, event.sequence) },
    { title: "Last error", kind: "is-wider", cell: (event) => event.last_error && h("span", { class: "error", title: event.last_error }, event.last_error) },
  ];
  return new List({ label: "Events", columns, key: (event) => event.event_id, open });
}

/// Whoever filters dead events wants to do something about all of them, and of no others.
function bulk(view, query, found) {
  if (query.status !== "dead" || !found) return null;
  // There it means when an event died: what died since may have been written long before.
  if (query.since) return h("p", { class: "soft" }, "Dead events can be replayed together by when they died, not by when they were written: remove since: to see what these died of, and to replay all that match.");
  const { topic, tenant, error, aggregate: about } = query;
  const filter = { topic, tenant, error, aggregate: about };
  return h("p", {}, h("a", { href: to("dead", [], { table: view.query.get("table"), ...filter }), "data-key": "bulk" }, "See what these died of, and replay all that match →"));
}

function pager(query, page, after, link) {
  const newest = after && h("a", { class: "button", href: link({ after: "" }), "data-key": "first page" }, "⇤ From the start");
  const next = page.next && h("a", { class: "button", href: link({ after: page.next }), "data-key": "next page" }, "Further →");
  const note = page.bounded ? [`Only the ${query.order === "oldest" ? "oldest" : "latest"} 100,000 of each kind were looked at. `, h("a", { href: link({ deep: "true" }), "data-key": "deep" }, "Look through all")] : `${number(page.events.length)} shown${page.next ? "" : ", the last ones"}`;
  return h("div", { class: "pager" }, h("span", {}, note), h("span", { class: "row" }, newest, next));
}

function none(query, page, link) {
  const filtered = FIELDS.some((name) => query[name]);
  if (!filtered) return card(null, {}, empty("No events here", "Either none was written yet, or what was published is not kept (history = none) or was cleaned away."));
  const deeper = page.bounded && h("a", { href: link({ deep: "true" }), "data-key": "deep" }, "Look through the whole table, however long that takes");
  const all = h("a", { href: link({ ...Object.fromEntries(FIELDS.map((name) => [name, ""])), after: "" }), "data-key": "no filter" }, "Show all events");
  return card(null, {}, empty("No event matches", "Topics and tenants are compared as a whole, errors by what they contain; since: takes an age such as 2h, or a time.", deeper, all));
}

