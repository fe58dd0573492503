// Rows that the keyboard moves through: `j k` move, `x` chooses, `enter` opens.

import { fill, h, reveal } from "./dom.js";
import { listen } from "./keys.js";

/// A table of rows. `columns`: `{ title, kind, cell(row) }`; `key(row)` tells rows apart; `open(row)` is what a click or
/// `enter` does; with `chosen`, a `Set` of keys, rows have a box, and `chose()` is called when it changes.
export class List {
  constructor({ label, columns, key, open = null, chosen = null, chose = () => {} }) {
    Object.assign(this, { columns, key, onOpen: open, chosen, chose, rows: [], here: -1 });
    this.body = h("tbody");
    const titles = columns.map((column) => h("th", { scope: "col", class: column.kind }, column.title));
    const box = chosen && h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen"));
    // It can be scrolled sideways, and so must be reachable by the keyboard.
    this.node = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}: rows` }, h("table", {}, h("thead", {}, h("tr", {}, box, titles)), this.body));
    listen(this);
  }

  /// Shows these rows; the cursor stays on the row that it is on.
  show(rows) {
    const at = this.rows[this.here] && this.key(this.rows[this.here]);
    this.rows = rows;
    this.here = at === undefined ? -1 : rows.findIndex((row) => this.key(row) === at);
    fill(this.body, rows.map((row, index) => this.line(row, index)));
  }

  line(row, index) {
    const key = this.key(row);
    const box = this.chosen && h("td", {}, h("input", { type: "checkbox", "aria-label": `Choose ${key}`, "data-key": `choose ${key}`, checked: this.chosen.has(key), click: (event) => event.stopPropagation(), change: () => this.flip(key) }));
    const opened = (event) => {
      // A link in the row has its own goal, and a text that was just selected was not meant as a click.
      if (event.target.closest("a, button, input") || String(getSelection())) return;
      this.onOpen(row);
    };
    const kind = [this.onOpen && "goes", index === this.here && "is-here"].filter(Boolean).join(" ");
    return h("tr", { class: kind || null, click: this.onOpen && opened }, box, this.columns.map((column) => h("td", { class: column.kind }, column.cell(row))));
  }

  flip(key) {
    if (!this.chosen.delete(key)) this.chosen.add(key);
    this.chose();
  }

  move(step) {
    if (!this.rows.length) return;
    this.here = Math.min(this.rows.length - 1, Math.max(0, this.here + step));
    [...this.body.rows].forEach((row, index) => row.classList.toggle("is-here", index === this.here));
    reveal(this.body.rows[this.here]);
  }

  choose() {
    const row = this.rows[this.here];
    if (!this.chosen || !row) return;
    this.body.rows[this.here].querySelector("input").click();
  }

  open() {
    const row = this.rows[this.here];
    if (row && this.onOpen) this.onOpen(row);
  }
}
