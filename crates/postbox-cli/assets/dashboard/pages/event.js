// Event: what happened to it, why, and what to do. Its payload only by a click, which is logged.

import { at, get, post, refused, session } from "../api.js";
import { confirm } from "../dialog.js";
import { fill, h } from "../dom.js";
import { aggregate, ago, counted, duration, moment, number, relayName } from "../format.js";
import { prettyJson } from "../json.js";
import { button, card, cli, empty, facts, failure, head, notice, status, toast } from "../parts.js";
import { to } from "../router.js";

export const title = "Event";

export function show(view) {
  const [id] = view.rest;
  const top = h("div");
  const parts = { state: h("div", { class: "stack" }), story: h("div", { class: "grid" }), payload: h("div"), lines: h("div") };
  const payload = payloadPart(view, id);
  fill(parts.payload, payload);
  fill(view.main, h("p", { class: "crumb" }, h("a", { href: to("events", [], { table: view.query.get("table") }), "data-key": "crumb" }, "Events"), " / ", h("code", {}, id)), top, h("div", { class: "stack" }, Object.values(parts)));
  const draw = (answer) => {
    const { event, commands = {} } = answer;
    fill(top, head(event.topic, null, replayButton(view, answer, load)));
    fill(parts.state, sentence(event, answer.now));
    fill(parts.story, card("Timeline and attempts", {}, timeline(event, answer.now)), h("div", { class: "stack" }, card("What it is", {}, fields(view, event)), headers(event), attempts(event)));
    fill(parts.lines, card("As a command", {}, h("div", { class: "stack" }, [commands.show, commands.replay].filter(Boolean).map(cli))));
  };
  const load = async () => draw(await get(at(view.table, "events", id)));
  view.failed = (error) => {
    if (error.status === 404) fill(view.main, empty("This event is not here", "It was delivered and not kept, or cleaned away, or it is in another table.", h("a", { href: to("events", [], { table: view.query.get("table") }) }, "All events")));
    else fill(parts.state, failure(error));
  };
  view.every(2, load);
}

function sentence(event, now) {
  const attempts = counted(event.attempts, "attempt");
  const text = {
    NEW: () => (Date.parse(event.available_at) > Date.parse(now) ? `Scheduled: due in ${duration((Date.parse(event.available_at) - Date.parse(now)) / 1000)}.` : "It waits to be delivered."),
    PUBLISHING: () => `In flight${event.locked_by ? ` at ${relayName(event.locked_by)}` : ""}.`,
    FAILED: () => `Failed ${event.attempts} times; tried again ${Date.parse(event.available_at) > Date.parse(now) ? `in ${duration((Date.parse(event.available_at) - Date.parse(now)) / 1000)}` : "now"}.`,
    SENT: () => `Delivered ${ago(event.published_at)}.`,
    DEAD: () => `Dead for ${duration((Date.parse(now) - Date.parse(event.dead_at)) / 1000)}, after ${attempts}. Nothing more happens to it unless it is replayed.`,
  }[event.status];
  const kind = { SENT: "good", DEAD: "bad", FAILED: "warn" }[event.status] ?? "";
  const error = event.status !== "SENT" && event.last_error;
  return notice(kind, h("p", { class: "row" }, status(event.status), h("b", {}, text ? text() : event.status)), error && h("p", { class: "wrap mono" }, error));
}

/// What happened, in its order. What is still to come is last.
function timeline(event, now) {
  const steps = [["Happened", event.occurred_at, ""], ["Written, in the transaction of its data", event.created_at, "", `sequence ${event.sequence}`]];
  if (event.available_at && Date.parse(event.available_at) - Date.parse(event.created_at) > 1500 && event.attempts === 0) steps.push(["Due", event.available_at, ""]);
  for (const entry of log(event)) steps.push([`Attempt failed: ${entry.error ?? "no error is known"}`, entry.at, "warn", [entry.outcome, took(entry), entry.relay && `by ${relayName(entry.relay)}`].filter(Boolean).join(" · ")]);
  if (event.locked_at) steps.push(["Claimed", event.locked_at, "now", event.locked_by && `by ${relayName(event.locked_by)}`]);
  steps.push(["Delivered", event.published_at, "good"], ["Died", event.dead_at, "bad", event.last_error], ["Given to the dead-letter sink", event.dlq_at, "bad"]);
  const told = steps.filter(([, when]) => when).sort((a, b) => Date.parse(a[1]) - Date.parse(b[1]));
  if (event.status === "FAILED") told.push(["Next attempt", event.available_at, "now"]);
  const step = ([what, when, kind, more]) => {
    const later = Date.parse(when) > Date.parse(now);
    return h("li", { class: kind ? `is-${kind}` : null }, h("div", { class: "timeline-what" }, what), h("div", { class: "timeline-when" }, moment(when), " · ", later ? `in ${duration((Date.parse(when) - Date.parse(now)) / 1000)}` : ago(when)), more && h("div", { class: "small soft" }, more));
  };
  return h("ol", { class: "timeline" }, told.map(step));
}

function log(event) {
  return Array.isArray(event.attempts_log) ? event.attempts_log.filter((entry) => entry && typeof entry === "object") : [];
}

function took(entry) {
  const ms = entry.ms ?? entry.duration_ms;
  return ms === undefined || ms === null ? null : `after ${ms} ms`;
}

function fields(view, event) {
  const filtered = (name, value) => value && h("a", { href: to("events", [], { table: view.query.get("table"), [name]: value }), "data-key": `by ${name}` }, value);
  const about = aggregate(event);
  return facts([
    ["Event id", h("code", {}, event.event_id)],
    ["Topic", filtered("topic", event.topic)],
    ["Tenant", filtered("tenant", event.tenant_id)],
    ["Aggregate", about === "–" ? null : filtered("aggregate", about)],
    ["Sequence", h("code", {}, event.sequence)],
    ["Attempts", number(event.attempts)],
    ["Routing key", event.routing_key],
    ["Schema", event.schema_id && `${event.schema_id}${event.schema_version === null ? "" : `, version ${event.schema_version}`}`],
    ["Confirmed by", event.sinks_done?.length ? event.sinks_done.join(", ") : null],
    ["Trace", trace(event)],
    ["Content type", event.content_type],
  ]);
}

/// The id to look for where traces are kept, and the way there if the configuration knows it.
function trace(event) {
  if (!event.trace_id) return event.traceparent;
  const id = h("code", {}, event.trace_id);
  if (!session.trace_url) return id;
  const href = session.trace_url.replaceAll("{trace_id}", encodeURIComponent(event.trace_id));
  return h("a", { href, rel: "noreferrer", "data-key": "trace" }, id);
}

/// The timeline has them; a log that somebody wrote by hand is shown as it is.
function attempts(event) {
  if (!event.attempts_log || Array.isArray(event.attempts_log)) return null;
  return card("Attempts", {}, h("pre", { class: "block", tabindex: "0", "aria-label": "Attempts" }, String(JSON.stringify(event.attempts_log))));
}

function headers(event) {
  const pairs = Object.entries(event.headers ?? {});
  return pairs.length ? card("Headers", {}, facts(pairs.map(([name, value]) => [h("code", {}, name), h("code", {}, String(value))]))) : null;
}

/// Payloads can hold what is nobody's business: they are shown on request, and the request is in the audit log.
function payloadPart(view, id) {
  const place = h("div", { class: "stack", "aria-live": "polite" });
  const reveal = async () => {
    try {
      const { payload, payload_base64: bytes, metadata, bytes: size } = await get(at(view.table, "events", id, "payload"));
      fill(place, h("pre", { class: "block", tabindex: "0", "aria-label": "Payload" }, payload === null ? (bytes ?? "") : prettyJson(payload)), h("p", { class: "small faint" }, `${counted(size, "byte")}${payload === null ? ", shown as base64" : ""}. That you looked is in the audit log.`), metadata && [h("h3", {}, "Metadata"), h("pre", { class: "block", tabindex: "0", "aria-label": "Metadata" }, prettyJson(metadata))]);
    } catch (error) {
      fill(place, failure(error));
    }
  };
  fill(place, h("p", { class: "soft" }, "Hidden: it may hold personal data. Showing it is written to the audit log."), h("div", {}, button("Show the payload", reveal, { key: "payload" })));
  return card("Payload", {}, place);
}

/// What a replay is called by what it does to an event of this status.
const REPLAY = {
  DEAD: { verb: "Replay", kind: "main", title: "Replay this event?", text: "It gets all its attempts again and is delivered at once. If the cause is still there, it dies again.", done: "Replayed: watch its timeline" },
  SENT: { verb: "Deliver again", kind: "", title: "Deliver it once more?", text: "Receivers see it a second time, under the same id.", done: "Replayed: watch its timeline" },
  FAILED: { verb: "Try now", kind: "main", title: "Try it now?", text: "Its next attempt is made at once and not when its wait is over. The attempts that it has used stay used: after the last it dies.", done: "It is tried now: watch its timeline" },
};

function replayButton(view, { event, can_replay: possible, commands = {} }, load) {
  if (!possible) return null;
  const words = REPLAY[event.status] ?? REPLAY.DEAD;
  const press = () =>
    confirm({
      title: words.title,
      text: words.text,
      line: commands.replay,
      verb: words.verb,
      act: () => post(at(view.table, "events", event.event_id, "replay")),
    }).then((done) => {
      if (!done) return;
      toast(words.done);
      load().catch(view.failed);
    });
  return button(`${words.verb}…`, press, { kind: words.kind, refused: refused(), key: "replay" });
}
