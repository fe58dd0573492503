// Dead: causes first, then one of them: look, replay one, watch, replay the rest at a pace.

import { at, get, refused } from "../api.js";
import { fill, h } from "../dom.js";
import { bar } from "../filter.js";
import { clock, counted, number, short } from "../format.js";
import { JobsPanel, start } from "../jobs.js";
import { listen } from "../keys.js";
import { reveal } from "../dom.js";
import { button, card, cli, empty, failure, head } from "../parts.js";
import { go, to } from "../router.js";
import { showCause } from "./cause.js";
import { asked as inApi } from "./events.js";

export const title = "Dead";

const FIELDS = ["topic", "tenant", "aggregate", "error", "since"];

const CHIPS = [
  ["last 15 minutes", { since: "15m" }],
  ["last hour", { since: "1h" }],
  ["last day", { since: "24h" }],
];

/// What the URL asks for, as pages and the API call it.
export function filterOf(view) {
  const shown = Object.fromEntries(FIELDS.map((name) => [name, view.query.get(name) ?? ""]));
  return { shown, asked: inApi(shown) };
}

export function show(view) {
  if (view.query.get("cause")) showCause(view);
  else showCauses(view);
}

function showCauses(view) {
  const { shown, asked } = filterOf(view);
  const link = (changes) => to("dead", [], { table: view.query.get("table"), ...shown, ...changes });
  const changed = (wanted) => go(to("dead", [], { table: view.query.get("table"), ...Object.fromEntries(FIELDS.map((name) => [name, wanted[name] ?? ""])) }));
  const result = h("div", { class: "stack" });
  const top = h("div");
  const load = async () => draw(await get(at(view.table, "dead", "causes"), asked, { signal: view.ending.signal }));
  const jobs = new JobsPanel(view, () => load().catch(view.failed));
  const draw = (found) => {
    const filtered = FIELDS.some((name) => shown[name]);
    const lead = found.events ? `${counted(found.events, "event")}, ${counted(found.causes.length, "cause")}${found.complete === false ? " or more" : ""}. Mend what they died of, replay one of a cause, and when it arrives, the rest.` : null;
    fill(top, head("Dead", lead, found.events > 0 && all(view, filtered, asked, jobs)));
    fill(result, found.causes.length ? causes(view, found.causes, link, asked, jobs) : none(filtered, link));
  };
  fill(top, head("Dead", null));
  fill(view.main, top, h("div", { class: "stack" }, bar({ query: shown, names: ["topic", "tenant", "agg", "error", "since"], chips: CHIPS, changed }), jobs.node, result));
  fill(result, h("p", { class: "soft" }, "Looking…"));
  view.failed = (error) => error.name !== "AbortError" && fill(result, failure(error));
  view.every(5, load);
}

function causes(view, found, link, asked, jobs) {
  const rows = found.map((cause) => one(view, cause, link, asked, jobs));
  let here = -1;
  listen({
    move(step) {
      here = Math.min(rows.length - 1, Math.max(0, here + step));
      rows.forEach((row, index) => row.classList.toggle("is-here", index === here));
      reveal(rows[here]);
    },
    open() {
      if (here >= 0) go(link({ cause: found[here].id }));
    },
  });
  return card("Causes, the most frequent first", { flush: true }, rows);
}

function one(view, cause, link, asked, jobs) {
  const single = cause.events === 1;
  const press = async () => {
    const job = await start(view, {
      action: "replay",
      choice: { ...asked, cause: cause.id },
      first: single ? null : 1,
      title: () => (single ? "Replay this event?" : "Replay one event of this cause?"),
      text: single ? "It gets all its attempts again and is delivered at once. If the cause is still there, it dies again." : "One first: if it arrives, the cause is mended, and the rest can follow.",
    });
    if (!job) return;
    if (single) jobs.add(job);
    else go(link({ cause: cause.id, job: job.id }));
  };
  return h(
    "div",
    { class: "cause" },
    h("div", { class: "cause-count" }, number(cause.events)),
    h(
      "div",
      { class: "cause-text" },
      h("div", { class: "cause-what" }, h("a", { href: link({ cause: cause.id }), "data-key": `cause ${cause.id}` }, cause.cause || "no error is known")),
      cause.example !== cause.cause && h("div", { class: "cause-more" }, "such as ", short(cause.example, 200)),
      h("div", { class: "cause-more" }, cause.topic, " · ", cause.first === cause.last ? clock(cause.first) : `${clock(cause.first)} – ${clock(cause.last)}`),
    ),
    h("div", { class: "row" }, h("a", { class: "button", href: link({ cause: cause.id }), "data-key": `see ${cause.id}` }, single ? "See it" : "See them"), button(single ? "Replay…" : "Replay one…", press, { kind: "main", refused: refused(), key: `replay ${cause.id}` })),
  );
}

/// Everything that matches, whatever it died of; "all" respects the filter.
function all(view, filtered, asked, jobs) {
  const choice = filtered ? asked : { all: true };
  const press = (action, title, text, paced) => async () => {
    const job = await start(view, { action, choice, paced, title, text });
    if (job) jobs.add(job);
  };
  const what = filtered ? "that match" : "of this table";
  return h(
    "div",
    { class: "row" },
    button(filtered ? "Replay all that match…" : "Replay all…", press("replay", (rows) => `Replay all ${counted(rows, "dead event")} ${what}?`, "Whatever they died of. One cause after the other is the careful way.", true), { refused: refused(), key: "replay all" }),
    button("Discard…", press("discard", (rows) => `Discard ${counted(rows, "dead event")} ${what}?`, "They are deleted for good, and nobody will ever receive them.", false), { kind: "bad", refused: refused(), key: "discard all" }),
  );
}

function none(filtered, link) {
  if (filtered) return card(null, {}, empty("No dead event matches", "Topics and tenants are compared as a whole, errors by what they contain; since: is how long ago an event died, at most.", h("a", { href: link(Object.fromEntries(FIELDS.map((name) => [name, ""]))), "data-key": "no filter" }, "Show all dead events")));
  return card(
    null,
    {},
    empty(
      "Nothing is dead",
      "An event dies when a sink refuses it for good, or when all its attempts have failed. It is kept with its error, grouped here by cause, until somebody replays or discards it. Nothing is ever dropped in silence.",
      cli("postbox dead list"),
    ),
  );
}
