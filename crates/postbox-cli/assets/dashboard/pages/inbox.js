// Inbox: what consumers have recorded as done, so that a message that comes twice has its effect once.

import { at, get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, command, moment, number } from "../format.js";
import { List } from "../list.js";
import { card, cli, empty, failure, head } from "../parts.js";
import { go, to } from "../router.js";

export const title = "Inbox";

export function show(view) {
  const query = Object.fromEntries(["consumer", "message", "since"].map((name) => [name, view.query.get(name) ?? ""]));
  const after = view.query.get("after");
  const link = (changes) => to("inbox", [], { table: view.query.get("table"), ...query, ...changes });
  const columns = [
    { title: "Consumer", cell: (row) => h("a", { href: link({ consumer: row.consumer }), "data-key": `consumer ${row.message_id} ${row.consumer}` }, row.consumer) },
    { title: "Message", kind: "is-wide", cell: (row) => h("code", {}, row.message_id) },
    { title: "Done", kind: "nowrap", cell: (row) => h("span", { title: row.processed_at }, `${moment(row.processed_at)} · ${ago(row.processed_at)}`) },
  ];
  const list = new List({ label: "Messages", columns, key: (row) => `${row.consumer} ${row.message_id}` });
  const result = h("div", { class: "stack" });
  const field = (name, label, hint) => h("label", {}, label, h("input", { name, id: name === "message" ? "filter" : null, value: query[name], placeholder: hint, autocomplete: "off", spellcheck: "false" }));
  const submit = (event) => {
    event.preventDefault();
    go(link({ ...Object.fromEntries(new FormData(event.target)), after: "" }));
  };
  const form = h("form", { class: "row", role: "search", "aria-label": "Messages", submit }, field("consumer", "Consumer", "stock"), field("message", "Message", "an id"), field("since", "Since", "2h"), h("button", { type: "submit" }, "Filter"));
  fill(view.main, head("Inbox", "Messages that consumers have handled. A message that comes again is known here, and has its effect only once."), h("div", { class: "stack" }, form, result));
  view.failed = (error) => {
    if (error.code === "OUTBOX_INBOX_MISSING") fill(result, card(null, {}, empty("There is no inbox here", "An inbox is a table beside the outbox, for services that receive: it makes the effect of a message happen once, however often the message comes.", cli(`postbox migrate up ${view.cli} --inbox`))));
    else if (error.name !== "AbortError") fill(result, failure(error));
  };
  const load = async () => {
    const page = await get(at(view.table, "inbox"), { ...query, after, limit: 50 }, { signal: view.ending.signal });
    list.show(page.messages);
    const pager = h("div", { class: "pager" }, h("span", {}, `${number(page.messages.length)} shown, in ${page.inbox}`), h("span", { class: "row" }, after && h("a", { class: "button", href: link({ after: "" }), "data-key": "first page" }, "⇤ From the start"), page.next && h("a", { class: "button", href: link({ after: page.next }), "data-key": "next page" }, "Further →")));
    const none = Object.values(query).some(Boolean) ? empty("No message matches", "Consumers and messages are compared as a whole.") : empty("Nothing was received yet", "Consumers record each message here in the transaction of its effect.");
    fill(result, page.messages.length ? h("section", { class: "card card-flush", "aria-label": "Messages" }, list.node, pager) : card(null, {}, none), cli(command(["inbox", "list"], {}) + ` ${view.cli}`));
  };
  if (after) load().catch(view.failed);
  else view.every(5, load);
}
