// The last minutes of a table: what the server remembers, and what has come in since.

import { at, get } from "./api.js";
import { chart } from "./chart.js";
import { duration, number, perSecond } from "./format.js";

/// As long as the server remembers.
const KEPT_MS = 15 * 60_000;

export class History {
  constructor(table, name = "") {
    Object.assign(this, { table, name });
    this.points = [];
  }

  async load() {
    const { points } = await get(at(this.table, "history"));
    this.points = points.map(timed);
  }

  /// Adds what an overview says; the same one twice counts once.
  hear(overview) {
    const now = overview.tables.find((table) => table.id === this.table);
    if (!now?.at || now.error) return;
    const point = timed(now);
    if (point.at <= (this.points.at(-1)?.at ?? 0)) return;
    this.points.push({ ...point, paused: Boolean(now.paused) });
    while (this.points[0].at < point.at - KEPT_MS) this.points.shift();
  }

  /// When another relay took over.
  get restarts() {
    return this.points
      // The first relay of a table takes over from nobody.
      .filter((point, index) => index > 0 && this.points[index - 1].epoch > 0 && known(point.epoch) && point.epoch !== this.points[index - 1].epoch)
      .map((point) => ({ at: point.at, text: `another relay took over: epoch ${point.epoch}` }));
  }

  /// In and out.
  rates() {
    return this.draw("Events per second", perSecond, [
      { label: "in", kind: "tone-1", value: (point) => point.in_per_second },
      { label: "out", kind: "tone-2", value: (point) => point.out_per_second },
    ]);
  }

  /// From written to delivered.
  lag() {
    return this.draw("Delivery lag", duration, [
      { label: "p99", kind: "tone-soft", value: (point) => point.lag_p99_seconds },
      { label: "p50", kind: "tone-1", value: (point) => point.lag_p50_seconds },
    ]);
  }

  /// What waits.
  backlog() {
    return this.draw("Waiting", number, [{ label: "events", kind: "tone-1", value: (point) => point.waiting }]);
  }

  /// What died.
  dead() {
    return this.draw("Dead", number, [{ label: "events", kind: "tone-bad", value: (point) => point.dead }]);
  }

  draw(title, format, series) {
    return chart({ title, more: this.name, format, series, points: this.points, marks: this.restarts });
  }
}

function timed(point) {
  return { ...point, at: Date.parse(point.at) };
}

function known(value) {
  return value !== null && value !== undefined;
}
