// Overview: one sentence that says how things are, then the numbers behind it, for each table and sink.

import { session } from "../api.js";
import { spark } from "../chart.js";
import { fill, h } from "../dom.js";
import { about, ago, duration, number, perSecond, relayName } from "../format.js";
import { History } from "../history.js";
import { live } from "../live.js";
import { card, cli, empty, failure, head, stat, tag } from "../parts.js";
import { to } from "../router.js";

export const title = "Overview";

/// A health's colour and mark; the words beside it say the same.
export const HEALTH = { good: ["good", "✓"], doubtful: ["warn", "!"], bad: ["bad", "✗"], unknown: ["", "?"] };

export function show(view) {
  const histories = new Map(view.tables.map((table) => [table.id, new History(table.id, view.tables.length > 1 ? table.table : "")]));
  const parts = { health: h("div"), stats: h("div"), charts: h("div"), tables: h("div"), sinks: h("div"), lesson: h("div") };
  const draw = () => {
    if (!live.overview) return;
    const { overview } = live;
    const chosen = histories.get(view.table);
    fill(parts.health, health(overview.health, overview.sentence, next(overview)));
    fill(parts.stats, stats(overview.tables));
    fill(parts.charts, h("div", { class: "grid" }, card(null, {}, chosen.rates()), card(null, {}, chosen.lag())));
    fill(parts.tables, tables(overview.tables, histories));
    fill(parts.sinks, sinks(overview.tables));
    fill(parts.lesson, overview.tables.every(isFresh) ? lesson(view) : null);
  };
  fill(view.main, head("Overview", null), h("div", { class: "stack" }, Object.values(parts)));
  if (!live.overview) fill(parts.health, h("p", { class: "soft" }, "Looking…"));
  view.failed = (error) => !live.overview && fill(parts.health, failure(error));
  view.on("overview", (overview) => {
    histories.forEach((history) => history.hear(overview));
    draw();
  });
  // The server's own memory again now and then: it knows what this page slept through.
  view.every(60, async () => {
    await Promise.all([...histories.values()].slice(0, 12).map((history) => history.load()));
    draw();
  });
  draw();
}

/// The sentence, and where to go because of it.
export function health(kind, sentence, more) {
  const [colour, mark] = HEALTH[kind] ?? HEALTH.unknown;
  return h(
    "section",
    { class: `card health ${colour ? `is-${colour}` : ""}`, "aria-label": "Health", role: "status" },
    h("span", { class: `health-mark ${colour}`, "aria-hidden": "true" }, mark),
    h("div", {}, h("p", { class: "health-text" }, sentence), more && h("p", { class: "health-more" }, more)),
  );
}

/// One link to the page that helps most.
function next(overview) {
  const down = overview.tables.find((table) => table.sinks?.some((sink) => sink.state === "open"));
  if (down) return h("a", { href: to("sinks"), "data-key": "next" }, "See what the sinks say →");
  const dead = overview.tables.find((table) => table.dead > 0);
  if (dead) return h("a", { href: to("dead", [], { table: dead.id }), "data-key": "next" }, "See what events died of, and replay them →");
  const paused = overview.tables.find((table) => table.paused);
  if (paused) return h("a", { href: to("table", [], { table: paused.id }), "data-key": "next" }, "See who paused it and why →");
  if (overview.health !== "good") return h("a", { href: to("doctor"), "data-key": "next" }, "Ask the doctor →");
  return null;
}

function stats(tables) {
  const sum = (name) => tables.reduce((total, table) => (table[name] === null ? total : (total ?? 0) + table[name]), null);
  const most = (name) => tables.reduce((highest, table) => (table[name] === null ? highest : Math.max(highest ?? 0, table[name])), null);
  const estimated = tables.some((table) => table.estimated);
  const query = tables.length === 1 ? { table: tables[0].id } : {};
  const dead = sum("dead");
  const deadest = tables.find((table) => table.dead > 0)?.id;
  return h(
    "div",
    { class: "grid-stats" },
    stat("In", perSecond(sum("in_per_second")), { more: "written" }),
    stat("Out", perSecond(sum("out_per_second")), { more: "delivered" }),
    stat("Waiting", about(sum("waiting"), estimated), { more: waits(sum("waiting"), most("oldest_seconds")), href: to("events", [], { ...query, status: "new" }) }),
    stat("Lag p50", duration(most("lag_p50_seconds")), { more: `p99 ${duration(most("lag_p99_seconds"))}` }),
    stat("Dead", about(dead, estimated), { kind: dead ? "bad" : "", more: dead ? "see why →" : dead === 0 && "none", href: to("dead", [], { table: deadest ?? query.table }) }),
    stat("Blocked", about(sum("blocked"), estimated), { more: sum("blocked") ? "aggregates" : sum("blocked") === 0 && "none", href: to("blocked", [], query) }),
  );
}

/// What waits, and that nothing does: of a table that nobody has looked at yet neither is known.
export function waits(waiting, oldest) {
  return waiting ? `oldest ${duration(oldest)}` : waiting === 0 && "nothing waits";
}

/// Since when numbers stand still, where the table cannot be looked at.
export function seen(table) {
  return table.error && table.at && h("div", { class: "small faint" }, `numbers of ${ago(table.at)}`);
}

/// That nobody leads, in these words; where no leader is known or needed that is no reason to worry.
export function nobody(table, words) {
  if (table.layout === null) return "–";
  if (table.layout === "bare") return h("span", { class: "faint" }, "not known: the table is bare");
  if (!table.single_active) return h("span", { class: "faint" }, "none is needed: relays may share it");
  return h("span", { class: "warn" }, words);
}

function tables(all, histories) {
  const row = (table) => {
    const [colour, mark] = HEALTH[table.health] ?? HEALTH.unknown;
    const points = histories.get(table.id)?.points ?? [];
    return h(
      "tr",
      {},
      h("td", { class: "is-wide" }, h("a", { href: to("table", [], { table: table.id }), "data-key": `table ${table.id}` }, h("b", {}, table.table)), h("div", { class: "small faint" }, table.place)),
      h("td", { class: `${colour} nowrap` }, `${mark} ${table.health}`, table.paused && [" ", tag("paused", "warn")], seen(table)),
      h("td", { class: "right" }, about(table.waiting, table.estimated)),
      h("td", { class: "right" }, table.waiting ? duration(table.oldest_seconds) : "–"),
      h("td", { class: "right nowrap" }, lag(table)),
      h("td", { class: "right" }, perSecond(table.in_per_second)),
      h("td", { class: "right" }, perSecond(table.out_per_second)),
      h("td", {}, spark(points, (point) => point.out_per_second, "tone-2", `Out of ${table.table} over the last minutes`)),
      h("td", { class: "right" }, table.dead ? h("a", { class: "bad", href: to("dead", [], { table: table.id }), "data-key": `dead ${table.id}` }, about(table.dead, table.estimated)) : number(table.dead)),
      h("td", { class: "nowrap" }, table.leader ? [relayName(table.leader), h("div", { class: "small faint" }, `epoch ${number(table.epoch)}`)] : nobody(table, "no leader")),
    );
  };
  const names = [["Table"], ["Health"], ["Waiting", "right"], ["Oldest", "right"], ["Lag p50 / p99", "right"], ["In", "right"], ["Out", "right"], ["Last minutes"], ["Dead", "right"], ["Leader"]];
  return card("Tables", { flush: true }, grid("Tables", names, all.map(row)));
}

/// How long events took from written to delivered, all of a table or those of a sink; nothing where none was delivered of late, or by another
/// process.
export function lag(of) {
  if (of.lag_p50_seconds === null) return "–";
  return `${duration(of.lag_p50_seconds)} / ${duration(of.lag_p99_seconds)}`;
}

/// A table of the page; wide ones scroll by themselves, also by the keyboard.
export function grid(label, names, rows) {
  const titles = names.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}: rows`, "data-key": `grid ${label}` }, h("table", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows)));
}

function sinks(tables) {
  const rows = tables.flatMap((table) => (table.sinks ?? []).map((sink) => [table, sink]));
  if (!rows.length) return null;
  const row = ([table, sink]) =>
    h(
      "tr",
      {},
      h("td", {}, h("a", { href: to("sinks"), "data-key": `sink ${table.id} ${sink.name}` }, h("b", {}, sink.name))),
      h("td", {}, sink.state === "open" ? tag(`down for ${duration(sink.open_seconds)}`, "bad") : tag("works", "good")),
      h("td", {}, table.table),
      h("td", { class: "right" }, perSecond(sink.out_per_second)),
      h("td", { class: "right nowrap" }, lag(sink)),
      h("td", { class: "is-wide" }, sink.last_error ? h("span", { class: "error" }, sink.last_error) : h("span", { class: "faint" }, "no error")),
    );
  return card("Sinks", { flush: true }, grid("Sinks", [["Sink"], ["Circuit"], ["Table"], ["Out", "right"], ["Lag p50 / p99", "right"], ["Last error"]], rows.map(row)));
}

/// Nothing has happened yet.
function isFresh(table) {
  return !table.error && table.waiting === 0 && table.dead === 0 && !table.out_per_second && !table.in_per_second && table.lag_p50_seconds === null;
}

function lesson(view) {
  return card(
    null,
    {},
    empty(
      "No event has passed yet",
      "Events are written in the transaction that they are about, and show up here the moment it commits. Write one to see it go through:",
      cli(`postbox enqueue ${view.cli} --topic shop.order.placed.v1 --payload '{"hello": "world"}'`),
      h("p", { class: "small" }, session.read_only ? "This dashboard only looks." : "The command line can do everything that the buttons do; each button shows its command."),
    ),
  );
}
