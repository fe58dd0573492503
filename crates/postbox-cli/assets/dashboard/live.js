// What happens now: the server's stream, whether it is alive, and pages that refresh themselves.

import { get, session, streamAddress } from "./api.js";

/// Without news for so long the page says that it is stale. Overviews come every two seconds.
const STALE_MS = 8000;
/// A stream that was closed is opened again after this.
const AGAIN_MS = 3000;

export function isOpen(job) {
  return job.state === "running" || job.state === "watching";
}

class Live extends EventTarget {
  constructor() {
    super();
    /// The last overview; pages that open later start with it.
    this.overview = null;
    /// Jobs by their id, as last heard of.
    this.jobs = new Map();
    this.heard = 0;
    this.stopped = false;
    this.source = null;
    setInterval(() => this.judge(), 1000);
    // A browser has six connections to a server, and a stream is one: tabs that nobody sees give theirs back, and so do
    // pages that were left and are kept for the way back.
    document.addEventListener("visibilitychange", () => this.seen(!document.hidden));
    addEventListener("pagehide", () => this.seen(false));
    addEventListener("pageshow", (event) => event.persisted && this.seen(true));
  }

  /// Somebody looks at this page, or nobody does.
  seen(looks) {
    if (!looks) this.close();
    else if (!this.source) this.open();
  }

  /// `connecting`, `live`, `stale` or `stopped`.
  get state() {
    if (this.stopped) return "stopped";
    if (!this.heard) return "connecting";
    return Date.now() - this.heard > STALE_MS ? "stale" : "live";
  }

  /// Seconds since the last news.
  get silence() {
    return (Date.now() - this.heard) / 1000;
  }

  judge() {
    this.dispatchEvent(new CustomEvent("state", { detail: this.state }));
  }

  open() {
    this.close();
    if (this.stopped || !session.authenticated) return;
    this.source = new EventSource(streamAddress());
    this.source.addEventListener("overview", (event) => this.hear("overview", JSON.parse(event.data)));
    this.source.addEventListener("job", (event) => this.hear("job", JSON.parse(event.data)));
    this.source.addEventListener("open", () => this.catchUp());
    this.source.addEventListener("error", () => {
      // Most errors mend themselves; a stream that the server refused does not.
      if (this.source?.readyState === EventSource.CLOSED) setTimeout(() => this.reopen(), AGAIN_MS);
    });
  }

  /// Asks by the usual way first: it tells why, and too many viewers still see numbers.
  async reopen() {
    if (this.stopped || this.source?.readyState !== EventSource.CLOSED) return;
    try {
      this.hear("overview", await get("overview"));
    } catch {
      // The badge says that it is stale.
    }
    this.open();
  }

  /// Jobs that this page takes for open may have ended while no stream told of it.
  async catchUp() {
    if (![...this.jobs.values()].some(isOpen)) return;
    try {
      const { jobs } = await get("jobs");
      jobs.forEach((job) => this.hear("job", job));
    } catch {
      // The stream tells what comes next.
    }
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  /// Remembers a job. An answer that was long on its way does not bring back what the stream has told the end of.
  know(job) {
    const known = this.jobs.get(job.id);
    if (!known || isOpen(known) || !isOpen(job)) this.jobs.set(job.id, job);
  }

  hear(kind, data) {
    if (this.stopped) return;
    this.heard = Date.now();
    if (kind === "overview") this.overview = data;
    else this.know(data);
    this.dispatchEvent(new CustomEvent(kind, { detail: data }));
    this.judge();
  }

  /// Stops all refreshing, or goes on.
  toggle() {
    this.stopped = !this.stopped;
    if (this.stopped) this.close();
    else this.open();
    this.dispatchEvent(new CustomEvent("toggled"));
    this.judge();
  }

  /// The table's part of the last overview.
  table(id) {
    return this.overview?.tables.find((table) => table.id === id) ?? null;
  }
}

export const live = new Live();

/// What a page is given: where to draw, what the URL says, and means to stay up to date until it is left.
export class View {
  constructor(main, route, tables) {
    Object.assign(this, { main, rest: route.rest, query: route.query, page: route.page, tables });
    this.table = tables.find((table) => table.id === route.query.get("table"))?.id ?? tables[0]?.id ?? null;
    this.open = true;
    this.ending = new AbortController();
  }

  /// What the program knows of the table that is looked at.
  get about() {
    return this.tables.find((table) => table.id === this.table) ?? null;
  }

  /// Arguments that name the table on the command line.
  get cli() {
    return this.about?.cli ?? `--table ${this.table}`;
  }

  /// Hears of news until the page is left.
  on(kind, call) {
    live.addEventListener(kind, (event) => call(event.detail), { signal: this.ending.signal });
  }

  /// Does something now and every so many seconds while somebody looks.
  every(seconds, call) {
    const run = () => this.open && call().catch((error) => this.failed(error));
    const timer = setInterval(() => !live.stopped && !document.hidden && run(), seconds * 1000);
    this.ending.signal.addEventListener("abort", () => clearInterval(timer));
    live.addEventListener("toggled", () => !live.stopped && run(), { signal: this.ending.signal });
    return run();
  }

  /// What a refresh that failed does; pages set their own.
  failed(error) {
    console.warn(error.message);
  }

  close() {
    this.open = false;
    this.ending.abort();
  }
}
