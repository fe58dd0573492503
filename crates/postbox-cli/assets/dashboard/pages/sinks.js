// Sinks: whether each takes events, what it last said, and when it is asked again.

import { at, get, post, refused } from "../api.js";
import { confirm } from "../dialog.js";
import { fill, h } from "../dom.js";
import { clock, command, duration, perSecond } from "../format.js";
import { live } from "../live.js";
import { button, card, cli, empty, facts, failure, head, notice, tag } from "../parts.js";
import { go, to } from "../router.js";
import { lag } from "./overview.js";

export const title = "Sinks";

export function show(view) {
  const place = h("div", { class: "stack" });
  let sinks = null;
  const draw = () => sinks && fill(place, sinks.length ? h("div", { class: "grid" }, sinks.map((sink) => one(view, sink))) : none());
  fill(view.main, head("Sinks", "Where events go. While a sink is down its circuit is open: its events wait and one of them probes it, and the other sinks go on."), place);
  view.failed = (error) => fill(place, failure(error));
  view.every(10, async () => {
    sinks = (await get("sinks")).sinks;
    draw();
  });
  // What the overview knows is younger: the countdown goes by it.
  view.on("overview", (overview) => {
    for (const sink of sinks ?? []) {
      for (const table of sink.tables) {
        const now = overview.tables.find((other) => other.id === table.id)?.sinks?.find((other) => other.name === sink.name);
        if (now) Object.assign(table, now);
      }
    }
    draw();
  });
  const countdown = setInterval(() => !live.stopped && draw(), 1000);
  view.ending.signal.addEventListener("abort", () => clearInterval(countdown));
}

function one(view, sink) {
  const down = sink.tables.filter((table) => table.state === "open");
  const state = sink.tables.length === 0 ? tag("nothing sent yet") : down.length ? tag("circuit open", "bad") : tag("works", "good");
  const routes = sink.routes?.length ? sink.routes.map((route) => h("div", {}, h("code", {}, route.topic), route.destination && ` → ${route.destination}`)) : "every topic";
  return h(
    "section",
    { class: "card sink", "aria-label": sink.name },
    h("div", { class: "row spread" }, h("h2", {}, sink.name), h("div", { class: "row" }, sink.dead_letter && tag("dead letters"), state)),
    down.map((table) => trouble(table, sink.tables.length > 1)),
    facts([
      ["Goes to", h("code", {}, sink.url)],
      ["Kind", sink.kind],
      ["Topics", routes],
      ["Tables", sink.tables.length === 0 ? null : sink.tables.map((table) => h("div", {}, h("a", { href: to("table", [], { table: table.id }), "data-key": `sink ${sink.name} ${table.id}` }, table.id)))],
      ["Delivers", sink.tables.length === 0 ? null : sink.tables.map((table) => h("div", {}, flow(table, sink.tables.length > 1)))],
      ["Last error", last(sink)],
    ]),
    test(view, sink),
  );
}

/// How much of it goes there, and how long after it was written.
function flow(table, several) {
  return `${perSecond(table.out_per_second)}${table.lag_p50_seconds === null ? "" : `, lag ${lag(table)}`}${several ? ` from ${table.id}` : ""}`;
}

function trouble(table, several) {
  const left = table.next_probe_at ? Math.max(0, (Date.parse(table.next_probe_at) - Date.now()) / 1000) : table.next_probe_seconds;
  const probe = left === null || left === undefined ? "" : left > 0 ? `; next probe in ${duration(Math.ceil(left))}` : "; probing now";
  return notice("bad", h("p", {}, h("b", {}, `Down for ${duration(table.open_seconds)}${several ? ` for ${table.id}` : ""}`), probe), table.last_error && h("p", { class: "small wrap" }, table.last_error));
}

function last(sink) {
  const text = sink.tables.map((table) => table.last_error).find(Boolean);
  return text ? h("span", { class: "wrap" }, text) : h("span", { class: "faint" }, "none since this process started");
}

/// A topic of the form that all have, and that the pattern matches; nothing if there is none.
export function example(pattern) {
  const given = pattern.split(".");
  const named = given.filter((one) => one !== "**").length;
  const last = given.lastIndexOf("**");
  // Two stars may be any number of segments: those of the last make up what is missing, its version too where nothing follows.
  const missing = Math.max(4 - named, last === given.length - 1 ? 1 : 0);
  const parts = given.flatMap((one, at) => (one !== "**" ? one : at === last ? Array(missing).fill("*") : []));
  const words = ["postbox", "relay", "test"];
  const topic = parts.map((one, at) => (one !== "*" ? one : at === parts.length - 1 ? "v1" : (words[at] ?? "test"))).join(".");
  return topic.length < 128 && /^([a-z0-9-]+\.){3,}v[1-9][0-9]{0,7}$/.test(topic) ? topic : "";
}

/// An event for trying, which goes the way that all events go; its page shows how far it came.
function test(view, sink) {
  const table = sink.tables[0]?.id ?? view.table;
  const patterns = sink.routes?.length ? sink.routes.map((route) => route.topic) : ["**"];
  const guess = patterns.map(example).find(Boolean) ?? "";
  const press = () => {
    const topic = h("input", { id: "topic", autocomplete: "off", maxlength: "255", value: guess });
    return confirm({
      title: `Send a test event to ${sink.name}?`,
      text: `It is written to ${table} like any other, and its consumers get it: {"test": true}.`,
      fields: [h("label", { for: "topic" }, "Topic, one that goes to this sink", topic)],
      line: () => `postbox enqueue ${view.tables.find((one) => one.id === table)?.cli ?? view.cli}${command([], { topic: topic.value, payload: '{"test":true}' }).slice("postbox".length)}`,
      verb: "Send",
      act: () => post(at(table, "test"), { topic: topic.value }),
    }).then((done) => done && go(to("event", [done.event_id], { table })));
  };
  return h("div", { class: "row" }, button("Send a test event…", press, { refused: refused(), key: `test ${sink.name}` }));
}

function none() {
  return card(null, {}, empty("No sink is configured", "A relay delivers to sinks: a broker, a webhook, a file, standard output. Name one, and events go there:", cli("postbox relay --sink nats://127.0.0.1:4222"), h("p", { class: "small" }, `Looked at ${clock(new Date().toISOString())}`)));
}
