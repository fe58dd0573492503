// One cause of death: its events, and the careful way back: look, replay one, watch, replay the rest.

import { at, get, refused } from "../api.js";
import { fill, h } from "../dom.js";
import { aggregate, ago, clock, counted, number, short } from "../format.js";
import { JobsPanel, isOpen, start } from "../jobs.js";
import { List } from "../list.js";
import { live } from "../live.js";
import { brief, button, card, cli, empty, failure, head, notice, tenant } from "../parts.js";
import { amend, go, to } from "../router.js";
import { filterOf } from "./dead.js";

const SAMPLE = 50;

export function showCause(view) {
  const id = view.query.get("cause");
  const { shown, asked } = filterOf(view);
  const choice = { ...asked, cause: id };
  const back = to("dead", [], { table: view.query.get("table"), ...shown });
  const parts = { top: h("div"), steps: h("div"), body: h("div", { class: "stack" }) };
  const chosen = new Set();
  const state = { cause: null, events: [], count: 0 };
  const list = rows(view, chosen, () => actions());
  const jobs = new JobsPanel(view, () => load().catch(view.failed));
  const act = async (options) => {
    const job = await start(view, options);
    if (!job) return;
    amend({ job: job.id });
    jobs.add(job);
    chosen.clear();
    await load().catch(view.failed);
  };
  const actions = () => fill(parts.top, heading(state, shown), h("div", { class: "row cause-actions" }, buttons(state, chosen, choice, act)));
  const draw = () => {
    actions();
    fill(parts.steps, steps(jobOf(jobs), state.count));
    list.show(state.events);
    fill(parts.body, outcome(view, jobOf(jobs), state, act, choice), state.count ? [h("section", { class: "card card-flush", "aria-label": "Dead events of this cause" }, list.node, pager(state)), cli(state.cause?.command ?? `postbox dead list ${view.cli} --cause ${id}`)] : gone(back));
  };
  const load = async () => {
    const { causes } = await get(at(view.table, "dead", "causes"), asked);
    const cause = causes.find((one) => one.id === id);
    // A cause whose last event is gone is not known any more: that is good news.
    const { events, count } = cause ? await get(at(view.table, "dead"), { ...choice, limit: SAMPLE }) : { events: [], count: 0 };
    Object.assign(state, { cause: cause ?? state.cause, events, count });
    if (view.open) draw();
  };
  fill(view.main, h("p", { class: "crumb" }, h("a", { href: back, "data-key": "crumb" }, "Dead"), " / cause"), parts.top, h("div", { class: "stack" }, parts.steps, jobs.node, parts.body));
  view.failed = (error) => fill(parts.body, failure(error));
  view.on("job", () => fill(parts.steps, steps(jobOf(jobs), state.count)));
  view.every(3, load);
}

/// The job that this page started or was sent to.
function jobOf(panel) {
  const mine = [...live.jobs.values()].filter((job) => panel.shown.has(job.id) && job.kind === "replay_dead");
  return mine.sort((a, b) => b.started_at.localeCompare(a.started_at))[0] ?? null;
}

function heading({ cause, count }, shown) {
  const filtered = Object.values(shown).some(Boolean) ? ", with your filter" : "";
  const lead = cause && `${cause.topic} · ${counted(count, "event")}${filtered} · ${clock(cause.first)} – ${clock(cause.last)}`;
  return head(h("span", { class: "wrap" }, cause ? cause.cause || "no error is known" : "A cause that is gone"), lead);
}

function buttons({ count }, chosen, choice, act) {
  if (!count) return null;
  const replays = (words) => ({ action: "replay", text: words });
  const one = () => act({ ...replays("One first: if it arrives, the cause is mended, and the rest can follow."), choice, first: 1, title: () => "Replay one event of this cause?" });
  const rest = () => act({ ...replays("At a pace, so that receivers are not flooded. You can stop it at any time; what has been replayed stays so."), choice, paced: true, title: (rows) => `Replay ${counted(rows, "event")} of this cause?` });
  const some = () => act({ ...replays("They get all their attempts again."), choice: { event_id: [...chosen] }, title: (rows) => `Replay the ${counted(rows, "chosen event")}?` });
  const discard = () => act({ action: "discard", choice: chosen.size ? { event_id: [...chosen] } : choice, title: (rows) => `Discard ${counted(rows, chosen.size ? "chosen event" : "event of this cause")}?`, text: "They are deleted for good, and nobody will ever receive them." });
  const no = refused();
  if (chosen.size) return [button(`Replay ${number(chosen.size)} chosen…`, some, { kind: "main", refused: no, key: "replay chosen" }), button(`Discard ${number(chosen.size)} chosen…`, discard, { kind: "bad", refused: no, key: "discard" })];
  return [
    button(count === 1 ? "Replay it…" : "Replay one…", one, { kind: "main", refused: no, key: "replay one" }),
    count > 1 && button(`Replay all ${number(count)} at a pace…`, rest, { refused: no, key: "replay rest" }),
    button("Discard…", discard, { kind: "bad", refused: no, key: "discard" }),
  ];
}

/// Where one is on the careful way.
function steps(job, count) {
  const one = job && (job.rows === 1 || job.state !== "running");
  const arrived = one && !isOpen(job) && job.delivered + job.gone > 0;
  const now = !job ? 1 : isOpen(job) ? 2 : arrived && count ? 3 : count ? 0 : 4;
  const names = ["Look at the error", "Replay one", "Watch it arrive", "Replay the rest at a pace"];
  const kind = (index) => (index < now || (index === 0 && job) ? "is-done" : index === now ? "is-now" : null);
  return h("ol", { class: "steps", "aria-label": "The careful way" }, names.map((name, index) => h("li", { class: kind(index), "aria-current": index === now ? "step" : null }, name)));
}

/// What the last replay means for the rest.
function outcome(view, job, { count }, act, choice) {
  if (!job || isOpen(job) || !count) return null;
  if (job.dead_again > 0) return notice("bad", h("b", {}, `${counted(job.dead_again, "event")} died again.`), " The cause is still there: look at the error of the newest before you replay more.");
  if (job.delivered + job.gone === 0) return null;
  const rest = () => act({ action: "replay", choice, paced: true, title: (rows) => `Replay the other ${number(rows)}?`, text: "At a pace, so that receivers are not flooded. You can stop it at any time; what has been replayed stays so." });
  return notice("good", h("div", { class: "row spread" }, h("span", {}, h("b", {}, `${counted(job.delivered + job.gone, "event")} arrived.`), ` ${counted(count, "event")} of this cause can follow.`), button(`Replay the other ${number(count)}…`, rest, { kind: "main", refused: refused(), key: "replay others" })));
}

function rows(view, chosen, chose) {
  const link = (event) => to("event", [event.event_id], { table: view.query.get("table") });
  const columns = [
    { title: "Event", cell: (event) => h("a", { href: link(event), "data-key": `event ${event.event_id}` }, brief(event.event_id)) },
    { title: "Died", kind: "nowrap", cell: (event) => h("span", { title: event.dead_at }, ago(event.dead_at)) },
    { title: "Aggregate", kind: "is-wider", cell: (event) => short(aggregate(event), 60) },
    { title: "Tenant", kind: "wide-only", cell: (event) => tenant(event.tenant_id) },
    { title: "Tries", kind: "right", cell: (event) => number(event.attempts) },
    { title: "Error", kind: "is-wide", cell: (event) => h("span", { class: "error", title: event.last_error }, event.last_error ?? "no error is known") },
  ];
  return new List({ label: "Dead events", columns, key: (event) => event.event_id, chosen, chose, open: (event) => go(link(event)) });
}

function pager({ events, count }) {
  return h("div", { class: "pager" }, h("span", {}, count > events.length ? `The oldest ${number(events.length)} of ${number(count)}; buttons act on all ${number(count)}` : `${counted(count, "event")}`), h("span", { class: "faint wide-only" }, h("kbd", {}, "j"), " ", h("kbd", {}, "k"), " move, ", h("kbd", {}, "x"), " chooses, ", h("kbd", {}, "enter"), " opens"));
}

function gone(back) {
  return card(null, {}, empty("No event is dead of this any more", "All of them were replayed, discarded, or have died of something else since.", h("a", { href: back, "data-key": "back" }, "Other causes")));
}
