// Table: what it holds and when it will be empty, who works on it, and pause and resume.

import { at, get, post, refused } from "../api.js";
import { confirm } from "../dialog.js";
import { fill, h } from "../dom.js";
import { about, ago, command, duration, number, perSecond, relayName } from "../format.js";
import { History } from "../history.js";
import { live } from "../live.js";
import { button, card, cli, facts, failure, head, notice, stat, tag, toast } from "../parts.js";
import { to } from "../router.js";
import { health, nobody, seen, waits } from "./overview.js";

export const title = "Table";

export function show(view) {
  const history = new History(view.table);
  const parts = { state: h("div", { class: "stack" }), charts: h("div"), work: h("div") };
  const actions = h("div", { class: "row" });
  let commands = {};
  const draw = () => {
    const table = live.table(view.table);
    if (!table) return;
    fill(actions, table.paused ? resumeButton(view, commands) : pauseButton(view, commands));
    fill(parts.state, health(table.health, table.sentence), table.error && failure(table.error), seen(table), paused(table), stats(view, table));
    fill(parts.charts, h("div", { class: "grid" }, card(null, {}, history.backlog()), card(null, {}, history.rates()), card(null, {}, history.lag()), card(null, {}, history.dead())));
    fill(parts.work, work(table, commands));
  };
  fill(view.main, head(view.about.table, view.about.place, actions), h("div", { class: "stack" }, Object.values(parts)));
  view.on("overview", (overview) => {
    history.hear(overview);
    draw();
  });
  view.failed = (error) => !live.table(view.table) && fill(parts.state, failure(error));
  view.every(60, async () => {
    const [one] = await Promise.all([get(at(view.table)), history.load()]);
    commands = one.commands ?? {};
    draw();
  });
  draw();
}

function paused(table) {
  if (!table.paused) return null;
  const { by, reason, at: since } = table.paused;
  return notice("warn", h("p", {}, h("b", {}, `Paused by ${by ?? "someone"}`), ` ${ago(since)}`, reason ? `: ${reason}` : ". No reason was given."), h("p", { class: "small" }, "Events are still written and wait; nothing is lost."));
}

function stats(view, table) {
  const { estimated } = table;
  const events = (status) => to("events", [], { table: view.table, status });
  const left = table.empty_in_seconds;
  return h(
    "div",
    { class: "grid-stats" },
    stat("Waiting", about(table.waiting, estimated), { more: waits(table.waiting, table.oldest_seconds), href: events("new") }),
    stat("Empty in", table.waiting === 0 ? "now" : left === null ? "–" : `~${duration(Math.max(1, left))}`, { more: left === null && table.waiting ? "not while nothing goes out" : `${perSecond(table.out_per_second)} out` }),
    stat("In flight", about(table.in_flight, estimated), { href: events("publishing") }),
    stat("Scheduled", about(table.scheduled, estimated), { more: "for later" }),
    stat("Dead", about(table.dead, estimated), { kind: table.dead ? "bad" : "", more: table.dead ? "see why →" : table.dead === 0 && "none", href: to("dead", [], { table: view.table }) }),
    stat("Blocked", about(table.blocked, estimated), { more: "aggregates", href: to("blocked", [], { table: view.table }) }),
  );
}

const ORDERED = { no: "no: events of an aggregate may overtake each other", index: "by aggregate, if writers keep their order", writers: "by aggregate, also among writers" };
const STANDING = { starting: "warn", active: "good", standby: "accent", paused: "warn" };

function work(table, commands) {
  const here = table.here;
  const mine = here && [tag(here.standing, STANDING[here.standing]), " ", relayName(here.name), here.last_delivery_seconds !== null && `, last delivery ${duration(here.last_delivery_seconds)} ago`, here.problem && h("div", { class: "bad" }, here.problem)];
  const pairs = [
    ["Leader", table.leader ? `${relayName(table.leader)}, epoch ${number(table.epoch)}` : nobody(table, "nobody: events wait until a relay starts")],
    ["This process", mine ?? "does not relay this table"],
    ["Claims", table.strategy],
    ["Order", ORDERED[table.ordered]],
    ["Layout", table.layout === "bare" ? "bare: the twelve standard columns" : table.layout],
    ["History", table.has_history ? "what is published moves to a table of its own" : null],
    ["Database", `${table.dialect} at ${table.place}`],
  ];
  const lines = [commands.status, commands.pause, commands.resume, commands.doctor].filter(Boolean);
  return h("div", { class: "grid" }, card("Who works on it", {}, facts(pairs)), card("The same in a terminal", {}, h("div", { class: "stack" }, lines.map(cli))));
}

function pauseButton(view, commands) {
  const press = () => {
    const reason = h("input", { id: "reason", autocomplete: "off", maxlength: "200", placeholder: "broker migration" });
    const line = () => `${commands.pause ?? `postbox pause ${view.cli}`}${reason.value ? command([], { reason: reason.value }).slice("postbox".length) : ""}`;
    return confirm({
      title: `Pause ${view.about.table}?`,
      text: "Its relay stops claiming; what is in flight is finished. Events are still written and wait, until somebody resumes.",
      fields: [h("label", { for: "reason" }, "Reason, for those who come after you", reason)],
      line,
      verb: "Pause",
      act: () => post(at(view.table, "pause"), { reason: reason.value }),
    }).then((done) => done && toast(done.changed ? "Paused" : "It was paused already"));
  };
  return button("Pause…", press, { refused: refused(), key: "pause" });
}

function resumeButton(view, commands) {
  const press = () =>
    confirm({
      title: `Resume ${view.about.table}?`,
      text: "Its relay goes on with what waits.",
      line: commands.resume ?? `postbox resume ${view.cli}`,
      verb: "Resume",
      act: () => post(at(view.table, "resume")),
    }).then((done) => done && toast(done.changed ? "Resumed" : "It was not paused"));
  return button("Resume…", press, { kind: "main", refused: refused(), key: "resume" });
}
