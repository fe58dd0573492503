// Bulk changes run on the server; this shows how they go, truthfully, and stops them.

import { at, get, post, refused } from "./api.js";
import { confirm } from "./dialog.js";
import { fill, h } from "./dom.js";
import { clock, counted, number } from "./format.js";
import { isOpen, live } from "./live.js";
import { button, cli, failure, notice, progress, tag, toast } from "./parts.js";

const KIND = { replay_dead: "Replay", discard_dead: "Discard", replay_published: "Replay of published events" };
const STATE = { running: "accent", watching: "accent", done: "good", stopped: "warn", failed: "bad" };

export { isOpen };

/// The jobs of a table: those that run, and the last that ended, if this page has seen it run or the URL names it.
export class JobsPanel {
  constructor(view, ended = () => {}) {
    Object.assign(this, { view, ended, node: h("div", { class: "stack", "aria-live": "polite" }), shown: new Set() });
    const named = view.query.get("job");
    if (named) this.shown.add(named);
    view.on("job", (job) => this.hear(job));
    this.load().catch(() => {});
    this.draw();
  }

  async load() {
    const { jobs } = await get("jobs");
    jobs.forEach((job) => live.know(job));
    this.draw();
  }

  hear(job) {
    if (job.table !== this.view.table) return;
    if (!isOpen(job) && this.shown.has(job.id)) this.ended(job);
    this.draw();
  }

  /// A job that was just started here.
  add(job) {
    live.know(job);
    this.shown.add(job.id);
    this.draw();
    this.node.scrollIntoView({ block: "nearest" });
  }

  draw() {
    const mine = [...live.jobs.values()].filter((job) => job.table === this.view.table && (isOpen(job) || this.shown.has(job.id)));
    mine.filter(isOpen).forEach((job) => this.shown.add(job.id));
    mine.sort((a, b) => b.started_at.localeCompare(a.started_at));
    fill(this.node, mine.slice(0, 5).map((job) => this.one(job)));
  }

  one(job) {
    const stop = async () => {
      try {
        live.know(await post(`jobs/${encodeURIComponent(job.id)}/stop`));
        this.draw();
      } catch (error) {
        toast(error.message);
      }
    };
    const away = () => {
      this.shown.delete(job.id);
      this.draw();
    };
    const pressed = isOpen(job) ? button("Stop", stop, { kind: "bad", refused: refused(), key: `stop ${job.id}` }) : button("Hide", away, { kind: "plain", key: `hide ${job.id}` });
    const discards = job.kind === "discard_dead";
    const good = discards ? job.done : job.delivered + job.gone;
    const parts = discards ? [["good", job.done]] : [["good", good], ["bad", job.dead_again], ["wait", job.waiting]];
    return h(
      "section",
      { class: "card stack", "aria-label": `${KIND[job.kind] ?? job.kind}, ${job.state}`, "data-job": job.state },
      h("div", { class: "row spread" }, h("div", { class: "row" }, h("h2", {}, KIND[job.kind] ?? job.kind), tag(job.state, STATE[job.state])), pressed),
      progress(parts, job.rows, "Progress"),
      h("p", {}, job.sentence),
      h("p", { class: "small soft wrap" }, `${job.who} since ${clock(job.started_at)} · ${counted(job.rows, "event")} where ${job.where}${job.rate ? ` · at ${number(job.rate)}/s` : ""}${job.left ? ` · ${number(job.left)} were left alone: others were quicker` : ""}`),
      job.error && notice("bad", typeof job.error === "string" ? job.error : job.error.message),
      job.command && cli(job.command),
    );
  }
}

/// Asks with a preview, then starts a job, of dead events or of published ones. `choice` is a filter, `{ event_id: […] }` or `{ all: true }`; `first` limits it
/// to so many; `paced` asks for a rate. Answers the job, or `null`.
export async function start(view, { of = "dead", action, choice, first = null, paced = false, title, text }) {
  let preview;
  try {
    preview = await get(at(view.table, of, "preview"), { ...(of === "dead" ? { action } : {}), ...choice, first });
  } catch (error) {
    await confirm({ title, text: failure(error), verb: "Look again", act: async () => null });
    return null;
  }
  const rate = h("input", { id: "rate", type: "number", min: "1", max: "100000", value: "50", required: true });
  const wants = () => (paced ? Number(rate.value) : null);
  const line = () => withPace(preview.command, { first, rate: wants() });
  const { event_id: ids, ...filter } = choice;
  const body = () => ({ ...given(filter), ...(ids ? { event_ids: [ids].flat() } : {}), rows: preview.rows, ...given({ at: preview.at }), confirm: preview.confirm, ...(action === "replay" ? given({ first, rate: wants() }) : {}) });
  const discards = action === "discard";
  return confirm({
    title: title(preview.rows),
    text: [h("p", {}, text), h("p", { class: "small wrap" }, h("b", {}, counted(preview.rows, "row")), ` of ${view.about.table} @ ${preview.place}`, preview.matched > preview.rows ? `, the oldest of ${number(preview.matched)}` : "", " where ", h("code", {}, preview.where)), h("pre", { class: "block small", tabindex: "0", "aria-label": "SQL" }, preview.sql)],
    fields: paced ? [h("label", { for: "rate" }, "Events per second", rate)] : [],
    line,
    verb: discards ? `Discard ${number(preview.rows)}` : `Replay ${number(preview.rows)}`,
    kind: discards ? "bad" : "main",
    // What is deleted is gone: a word is typed in any case, by which the database is meant where it is not local.
    typed: preview.confirm ?? (discards ? "discard" : null),
    act: () => post(at(view.table, of, action), body()),
  });
}

function given(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

function withPace(command, { first, rate }) {
  let line = command;
  if (first && !line.includes(" --first ")) line += ` --first ${first}`;
  if (rate && !line.includes(" --rate ")) line += ` --rate ${rate}/s`;
  return line;
}
