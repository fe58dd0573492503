// Blocked aggregates: those whose order makes them wait behind a dead event.

import { at, get } from "../api.js";
import { fill, h } from "../dom.js";
import { aggregate, ago, number } from "../format.js";
import { List } from "../list.js";
import { card, cli, empty, failure, head, tenant } from "../parts.js";
import { go, to } from "../router.js";

export const title = "Blocked aggregates";

export function show(view) {
  const result = h("div", { class: "stack" });
  const link = (row) => to("event", [row.dead.event_id], { table: view.query.get("table") });
  const columns = [
    { title: "Aggregate", kind: "is-wide", cell: (row) => h("a", { href: to("events", [], { table: view.query.get("table"), aggregate: aggregate(row) }), "data-key": `aggregate ${aggregate(row)}` }, aggregate(row)) },
    { title: "Waiting", kind: "right", cell: (row) => `${number(row.waiting)}${row.waiting_bounded ? "+" : ""}` },
    { title: "Behind", cell: (row) => h("a", { href: link(row), "data-key": `behind ${row.dead.event_id}` }, row.dead.topic) },
    { title: "Dead for", kind: "nowrap", cell: (row) => ago(row.dead.dead_at).replace(" ago", "") },
    { title: "Tenant", kind: "wide-only", cell: (row) => tenant(row.tenant_id) },
    { title: "Error", kind: "is-wide", cell: (row) => h("span", { class: "error", title: row.dead.last_error }, row.dead.last_error ?? "no error is known") },
  ];
  const list = new List({ label: "Blocked aggregates", columns, key: (row) => `${row.tenant_id} ${aggregate(row)}`, open: (row) => go(link(row)) });
  fill(view.main, head("Blocked aggregates", "In an ordered table the events of an aggregate do not overtake each other: those behind a dead event wait until it is replayed or discarded."), result);
  view.failed = (error) => fill(result, failure(error));
  view.every(5, async () => {
    const found = await get(at(view.table, "blocked"), { limit: 200 });
    list.show(found.aggregates ?? []);
    const none = found.supported === false
      ? empty("This table keeps no order", "Events of an aggregate may overtake each other here, so none ever waits behind another. Where order matters, the table can keep it:", cli(`postbox migrate up ${view.cli} --ordered`))
      : empty("Nothing is blocked", "Every aggregate's events go out in order. If one dies, the rest of its aggregate waits here, and other aggregates go on.");
    fill(result, list.rows.length ? h("section", { class: "card card-flush", "aria-label": "Blocked aggregates" }, list.node) : card(null, {}, none), found.command && cli(found.command));
  });
}
