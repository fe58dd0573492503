// What every page has around it: navigation, the table that is looked at, whether news come in, theme and help.

import { logout, session } from "./api.js";
import { fill, h, say, svg } from "./dom.js";
import { duration, number } from "./format.js";
import { help } from "./keys.js";
import { live } from "./live.js";
import { announce, toast } from "./parts.js";
import { go, to } from "./router.js";

const NAV = [
  ["overview", "Overview"], ["table", "Table"], ["sinks", "Sinks"], ["events", "Events"], ["dead", "Dead"], null,
  ["blocked", "Blocked"], ["inbox", "Inbox"], ["audit", "Audit"], ["doctor", "Doctor"],
];

/// A page that belongs to an entry of the navigation without being it.
const UNDER = { event: "events" };

const BADGE = { live: ["live", "good"], connecting: ["connecting", "warn"], stale: ["stale", "bad"], stopped: ["stopped", "warn"] };

export class Shell {
  constructor(app, tables, left) {
    this.visited = false;
    this.main = h("main", { class: "main", id: "main", tabindex: "-1" });
    this.nav = h("nav", { class: "nav", "aria-label": "Pages" });
    this.counts = {};
    this.badge = h("button", { type: "button", class: "tag live", title: "p stops and goes on", "data-key": "live", click: () => live.toggle() }, "connecting");
    this.chooser = h("div", { class: "row" });
    this.tables = tables;
    const who = h("span", { class: "faint small wide-only" }, whoIs());
    const out = session.login_required && h("button", { type: "button", class: "is-plain", click: () => logout().then(left, (error) => toast(error.message)) }, "Log out");
    const theme = h("button", { type: "button", class: "is-plain", "aria-label": "Switch between dark and light", title: "Dark or light", click: flipTheme }, "◐");
    const keys = h("button", { type: "button", class: "is-plain", "aria-label": "Keys", title: "Keys (?)", click: help }, "?");
    fill(
      app,
      h("a", { class: "skip", href: "#main", click: (event) => (event.preventDefault(), this.main.focus()) }, "To the content"),
      h(
        "div",
        { class: "frame" },
        h("header", { class: "side" }, h("a", { class: "brand", href: "#/overview", "aria-label": "Postbox, overview" }, mark(), h("span", {}, "Postbox")), this.nav, foot()),
        h("div", { class: "body" }, h("section", { class: "top", "aria-label": "What is looked at, and by whom" }, this.chooser, h("div", { class: "top-right" }, this.badge, who, theme, keys, out)), this.main),
      ),
    );
    live.addEventListener("state", (event) => this.judge(event.detail));
    live.addEventListener("overview", (event) => this.count(event.detail));
    live.judge();
  }

  /// Marks the page that is shown.
  at(view) {
    this.table = view.table;
    const current = UNDER[view.page] ?? view.page;
    const link = ([page, name]) => {
      this.counts[page] = h("span", { class: "nav-count hidden" });
      return h("a", { href: to(page, [], { table: view.query.get("table") }), "aria-current": page === current ? "page" : null, "data-key": `nav ${page}` }, name, this.counts[page]);
    };
    fill(this.nav, NAV.map((entry) => (entry ? link(entry) : h("hr"))));
    this.choose(view);
    if (live.overview) this.count(live.overview);
  }

  /// Which table is looked at: a choice where there are several.
  choose(view) {
    if (this.tables.length < 2) {
      fill(this.chooser, this.tables.length === 1 && [h("b", {}, this.tables[0].table), h("span", { class: "faint small" }, this.tables[0].place)]);
      return;
    }
    const options = this.tables.map((table) => h("option", { value: table.id, selected: table.id === view.table }, `${table.database ? `${table.database} · ` : ""}${table.table}`));
    const changed = (event) => {
      // What was filtered by or paged to belongs to the other table.
      go(to(view.page === "event" ? "events" : view.page, [], { table: event.target.value }));
    };
    fill(this.chooser, h("label", {}, h("span", { class: "unseen" }, "Table"), h("select", { change: changed, "data-key": "table chooser" }, options)));
  }

  /// How many are dead and blocked, beside the pages that show them.
  count(overview) {
    const table = overview.tables.find((one) => one.id === this.table);
    for (const page of ["dead", "blocked"]) {
      const badge = this.counts[page];
      if (!badge) continue;
      badge.classList.toggle("hidden", !table?.[page]);
      say(badge, table?.[page] ? number(table[page]) : "");
    }
  }

  judge(state) {
    const [text, kind] = BADGE[state];
    const words = state === "stale" ? `stale for ${duration(live.silence)}` : text;
    if (this.badge.textContent !== words) say(this.badge, words);
    this.badge.className = `tag live is-${kind}`;
    if (state !== this.state && (state === "stale" || state === "stopped" || this.state)) announce(`Refreshing: ${text}`);
    this.state = state;
  }
}

function whoIs() {
  const role = session.read_only ? "read-only" : session.role;
  return session.login_required ? `${session.name} (${role})` : session.read_only ? "read-only" : "";
}

function foot() {
  return h("div", { class: "side-foot" }, h("span", {}, h("kbd", {}, "?"), " shows the keys"), h("span", {}, `${session.host ?? ""} · ${session.version ?? ""}`));
}

function mark() {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("rect", { x: 1, y: 1, width: 22, height: 22, rx: 6, class: "brand-box" }), svg("path", { d: "M5.5 7.5h13v9.5h-13zM5.5 8l6.5 5 6.5-5", class: "brand-slot" }));
}

/// From what is seen now to the other one, and remembered.
function flipTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("postbox.theme", root.dataset.theme);
  } catch {
    // It holds until the page is left.
  }
}
