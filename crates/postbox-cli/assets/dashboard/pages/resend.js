// Resend: what was delivered within some time, once more, because its receiver has lost it.

import { at, get, refused } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { counted } from "../format.js";
import { JobsPanel, start } from "../jobs.js";
import { button } from "../parts.js";

/// A button that asks for the time, shows what that is, and has it delivered again; with what becomes of it.
export function resend(view, topic) {
  const jobs = new JobsPanel(view);
  const press = async () => {
    const range = await ask(view, topic);
    const job = range && (await begin(view, range));
    if (job) jobs.add(job);
  };
  const pressed = button("Deliver again by time…", press, { refused: refused(), key: "resend" });
  return [h("div", { class: "row" }, pressed, h("span", { class: "soft" }, "when a receiver has lost what it was sent")), jobs.node];
}

/// Which ones: from when until when, as the server understood it. Nothing is changed yet.
function ask(view, topic) {
  const field = (id, more) => h("input", { id, autocomplete: "off", spellcheck: "false", ...more });
  const [since, until, which] = [field("since", { required: true, value: "1h" }), field("until", { placeholder: "now" }), field("topic", { value: topic, placeholder: "every topic", maxlength: "255" })];
  return confirm({
    title: "Deliver again what was delivered",
    text: "An age such as 2h, or a time such as 2026-01-31T08:00:00Z: when events were delivered, not when they were written.",
    fields: [h("label", { for: "since" }, "Since", since), h("label", { for: "until" }, "Until", until), h("label", { for: "topic" }, "Topic", which)],
    verb: "See what that is",
    act: async () => {
      const range = { since: since.value.trim(), until: until.value.trim(), topic: which.value.trim() };
      const found = await get(at(view.table, "published", "preview"), range);
      if (!found.rows) throw new Error("No event that is kept was delivered then. The table's history says what is kept, its retention for how long.");
      return { since: found.since, until: found.until, topic: range.topic };
    },
  });
}

function begin(view, range) {
  return start(view, {
    of: "published",
    action: "replay",
    choice: range,
    paced: true,
    title: (rows) => `Deliver ${counted(rows, "event")} again?`,
    text: "Each gets all its attempts again and goes to all its sinks, with the same id: receivers that deduplicate skip what they have.",
  });
}
