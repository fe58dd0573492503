// Numbers, times and durations as people read them.

const NUMBER = new Intl.NumberFormat("en-US");
const RATE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

/// Exact, with separators: 1,204. Big numbers come as text where a double could not hold them.
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string" && /^-?\d+$/.test(value)) return NUMBER.format(BigInt(value));
  return NUMBER.format(value);
}

/// A count that may have reached its bound.
export function about(value, estimated) {
  return `${estimated ? "~" : ""}${number(value)}`;
}

/// "1 event", "2 events".
export function counted(value, word) {
  return `${number(value)} ${word}${Number(value) === 1 ? "" : "s"}`;
}

/// Events per second.
export function perSecond(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 10 ? number(Math.round(value)) : RATE.format(value)}/s`;
}

/// A duration in its two largest units: 4ms, 38s, 2m04s, 3h12m, 5d2h.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return "0s";
  if (seconds < 1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 10) return `${RATE.format(seconds)}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${pad(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${Math.floor((whole % 86400) / 3600)}h`;
}

function pad(value) {
  return String(value).padStart(2, "0");
}

/// How long ago a time of the server was.
export function ago(time, now = Date.now()) {
  if (!time) return "–";
  return `${duration(Math.max(0, (now - Date.parse(time)) / 1000))} ago`;
}

/// The time of day, with its date when that is another one.
export function clock(time) {
  if (!time) return "–";
  const at = new Date(time);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return `${day}${at.toLocaleTimeString("en-GB")}`;
}

/// To the millisecond, with the zone that the browser is in.
export function moment(time) {
  if (!time) return "–";
  const at = new Date(time);
  const zone = at.toTimeString().match(/GMT[+-]\d{4}/)?.[0].replace("GMT", "") ?? "";
  return `${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")} ${zone}`;
}

/// The first part of a long text.
export function short(text, length) {
  const whole = String(text ?? "");
  return whole.length > length ? `${whole.slice(0, length - 1)}…` : whole;
}

/// A relay's name without what makes it unique.
export function relayName(holder) {
  return holder?.replace(/\/[^/]*$/, "") ?? "";
}

/// What an event is about.
export function aggregate(event) {
  const parts = [event.aggregate_type, event.aggregate_id].filter(Boolean);
  return parts.join("/") || "–";
}

/// One argument for a POSIX shell.
export function quote(argument) {
  const text = String(argument);
  return /^[\w@%+=:,./#-]+$/.test(text) && !text.startsWith("#") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/// A command line: words are as they are, arguments in pairs are quoted, those without a value left out.
export function command(words, options = {}) {
  const pairs = Object.entries(options).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const flags = pairs.map(([name, value]) => (value === true ? `--${name}` : `--${name} ${quote(value)}`));
  return ["postbox", ...words.map(quote), ...flags].join(" ");
}
