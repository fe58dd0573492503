// Small charts of the last minutes, drawn as SVG. A chart is a picture with a name; the numbers are beside it as text.

import { h, svg } from "./dom.js";
import { duration } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
/// Points further apart than this are not joined: nobody knows what was in between.
const GAP_MS = 60_000;

/// Lines over time. `points` have `at` in milliseconds; `series` are `{ label, kind, value(point) }`, `kind` being the class
/// that colours it; `marks` are `{ at, text }`, such as a restart; `format` writes a value.
export function chart({ title, more = "", points, series, marks = [], format = String }) {
  const values = series.flatMap((one) => points.map(one.value)).filter(known);
  const most = nice(Math.max(0, ...values));
  const [first, last] = span(points);
  const x = (at) => ((at - first) / (last - first)) * WIDTH;
  const y = (value) => HEIGHT - 3 - (value / most) * (HEIGHT - 12);
  const level = (value, kind) => svg("line", { x1: 0, x2: WIDTH, y1: y(value), y2: y(value), class: kind });
  const mark = ({ at, text }) => svg("line", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT, class: "chart-mark" }, svg("title", {}, text));
  const label = `${title}: ${series.map((one) => `${one.label} ${latest(points, one, format)}`).join(", ")}`;
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label, class: "chart-drawing" },
    level(most / 2, "chart-grid"),
    level(most, "chart-grid"),
    level(0, "chart-floor"),
    marks.filter(({ at }) => at >= first).map(mark),
    series.map((one) => {
      const found = pieces(points, one.value);
      return [svg("path", { d: area(found, x, y), class: `chart-area ${one.kind}` }), svg("path", { d: line(found, x, y), class: `chart-line ${one.kind}` })];
    }),
  );
  const key = (one) => h("span", { class: `chart-key ${one.kind}` }, one.label, " ", h("b", {}, latest(points, one, format)));
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", { class: "chart-head" }, h("span", { class: "chart-title" }, title, more && h("span", { class: "faint small" }, ` ${more}`)), series.map(key)),
    h("div", { class: "chart-body" }, drawing, h("span", { class: "chart-most", "aria-hidden": "true" }, format(most))),
    h(
      "div",
      { class: "chart-time", "aria-hidden": "true" },
      h("span", {}, `${duration((last - first) / 1000)} ago`),
      marks.length > 0 && h("span", { class: "chart-legend" }, "┊ another relay took over"),
      h("span", {}, "now"),
    ),
  );
}

/// A line without axes, for a row of a table.
export function spark(points, value, kind, label) {
  const most = Math.max(1, ...points.map(value).filter(known));
  const [first, last] = span(points);
  const x = (at) => ((at - first) / (last - first)) * 100;
  const y = (one) => 22 - (one / most) * 20;
  const found = pieces(points, value);
  return svg(
    "svg",
    { viewBox: "0 0 100 24", preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": label },
    svg("path", { d: area(found, x, y), class: `chart-area ${kind}` }),
    svg("path", { d: line(found, x, y), class: `chart-line ${kind}` }),
  );
}

function known(value) {
  return value !== null && value !== undefined;
}

/// From the first point to the last: at least two minutes, so that a young chart does not stretch a few points.
function span(points) {
  const last = points.at(-1)?.at ?? Date.now();
  return [Math.min(points[0]?.at ?? last, last - 120_000), last];
}

/// Runs of known values: what is not known is not drawn as zero.
function pieces(points, value) {
  const found = [];
  let open = null;
  for (const point of points) {
    const one = value(point);
    if (!known(one)) {
      open = null;
      continue;
    }
    if (!open || point.at - open.at(-1)[0] > GAP_MS) found.push((open = []));
    open.push([point.at, one]);
  }
  return found;
}

function line(found, x, y) {
  const draw = (piece) => piece.map(([at, value], index) => `${index ? "L" : "M"}${round(x(at))} ${round(y(value))}`).join("");
  return found.map(draw).join("");
}

function area(found, x, y) {
  const floor = round(y(0));
  const draw = (piece) => {
    const top = piece.map(([at, value]) => `L${round(x(at))} ${round(y(value))}`).join("");
    return `M${round(x(piece[0][0]))} ${floor}${top}L${round(x(piece.at(-1)[0]))} ${floor}Z`;
  };
  return found.map(draw).join("");
}

function round(value) {
  return Math.round(value * 10) / 10;
}

/// A round number not below the highest value.
function nice(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * size).find((step) => step >= value * 0.999);
}

function latest(points, series, format) {
  const value = points.map(series.value).filter(known).at(-1);
  return known(value) ? format(value) : "–";
}
