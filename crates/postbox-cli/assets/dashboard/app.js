// The start: who looks, which page, and from one page to the next.

import { get, onExpired, openSession, session } from "./api.js";
import { fill, h } from "./dom.js";
import * as keys from "./keys.js";
import { View, live } from "./live.js";
import { empty, failure } from "./parts.js";
import { go, route } from "./router.js";
import { Shell } from "./shell.js";
import * as audit from "./pages/audit.js";
import * as blocked from "./pages/blocked.js";
import * as dead from "./pages/dead.js";
import * as doctor from "./pages/doctor.js";
import * as event from "./pages/event.js";
import * as events from "./pages/events.js";
import * as inbox from "./pages/inbox.js";
import * as login from "./pages/login.js";
import * as overview from "./pages/overview.js";
import * as sinks from "./pages/sinks.js";
import * as table from "./pages/table.js";

/// Each has a `title` and `show(view)`, which draws it and keeps it up to date.
const PAGES = { overview, table, sinks, events, event, dead, blocked, inbox, audit, doctor };

const app = document.getElementById("app");
let shell = null;
let view = null;
let tables = [];

async function start() {
  try {
    await openSession();
  } catch (error) {
    fill(app, h("main", { class: "main" }, failure(error)));
    setTimeout(start, 3000);
    return;
  }
  if (session.authenticated) await enter();
  else showLogin();
}

function showLogin() {
  leave();
  live.close();
  shell = null;
  document.title = "Log in · Postbox";
  login.show(app, enter);
}

async function enter() {
  try {
    tables = (await get("tables")).tables;
  } catch (error) {
    fill(app, h("main", { class: "main" }, failure(error)));
    setTimeout(start, 3000);
    return;
  }
  shell = new Shell(app, tables, showLogin);
  live.open();
  show();
}

function leave() {
  view?.close();
  view = null;
  keys.listen(null);
}

function show() {
  if (!shell) return;
  const now = route();
  const page = PAGES[now.page];
  const another = view?.page !== now.page || view?.rest.join() !== now.rest.join();
  leave();
  view = new View(shell.main, now, tables);
  document.title = `${page?.title ?? "Not found"} · Postbox`;
  shell.at(view);
  if (another) {
    fill(shell.main);
    scrollTo(0, 0);
  }
  if (!page) {
    fill(shell.main, empty("There is no such page", "The address may be mistyped, or from another version.", h("a", { href: "#/" }, "Overview")));
  } else if (!tables.length && now.page !== "doctor") {
    fill(shell.main, empty("No table is relayed here", "Name one when you start the relay; this page then shows what it holds.", h("code", {}, "postbox relay --table public.org_outbox --dashboard")));
  } else {
    page.show(view);
  }
  // Who came by the keyboard starts at the top of the new page; not at the first one, which nobody asked for.
  if (another && shell.visited) shell.main.focus({ preventScroll: true });
  shell.visited = true;
}

onExpired(showLogin);
keys.start(() => live.toggle());
addEventListener("hashchange", show);
if (!location.hash) go("#/overview");
start();
