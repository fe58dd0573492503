// Doctor: what is wrong between here and a delivered event, and what to do about it.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { clock, counted } from "../format.js";
import { button, card, cli, empty, failure, head, tag } from "../parts.js";

export const title = "Doctor";

const LEVEL = { wrong: ["bad", "✗"], doubtful: ["warn", "!"], good: ["good", "✓"] };
const RANK = { wrong: 0, doubtful: 1, good: 2 };

export function show(view) {
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const load = async () => draw(await get("doctor"));
  const again = () => {
    fill(result, h("p", { class: "soft" }, "Looking…"));
    load().catch(view.failed);
  };
  const draw = (found) => {
    const several = new Set(found.findings.map((finding) => finding.table)).size > 1;
    const findings = [...found.findings].sort((a, b) => RANK[a.level] - RANK[b.level]);
    const open = findings.filter((finding) => finding.level !== "good");
    const well = findings.filter((finding) => finding.level === "good");
    fill(
      result,
      h("p", { class: "row" }, found.wrong ? tag(`${counted(found.wrong, "problem")}`, "bad") : tag("nothing is wrong", "good"), found.doubtful > 0 && tag(`${found.doubtful} doubtful`, "warn"), h("span", { class: "faint small" }, `looked at ${clock(found.at)}`)),
      open.length > 0 && card("To do", { flush: true }, open.map((finding) => one(finding, several))),
      well.length > 0 ? card("As it should be", { flush: true }, well.map((finding) => one(finding, several))) : open.length === 0 && card(null, {}, empty("Nothing to say", "The doctor found nothing to look at.")),
    );
  };
  fill(view.main, head("Doctor", "Looks at everything from the database to the sinks, and says what to do about what it finds.", button("Look again", again)), h("div", { class: "stack" }, result, cli(`postbox doctor ${view.cli}`)));
  fill(result, h("p", { class: "soft" }, "Looking… this can take some seconds."));
  view.failed = (error) => fill(result, failure(error));
  view.every(30, load);
}

function one(finding, several) {
  const [kind, mark] = LEVEL[finding.level] ?? LEVEL.doubtful;
  return h(
    "div",
    { class: `finding is-${kind}` },
    h("span", { class: `finding-mark ${kind}`, role: "img", "aria-label": finding.level }, mark),
    h("div", { class: "finding-text" }, h("div", {}, h("span", { class: "faint small" }, finding.check, several && finding.table ? ` · ${finding.table}` : ""), h("div", {}, finding.what)), finding.fix && remedy(finding.fix)),
  );
}

const COMMAND = /^postbox(?: [a-z]+){1,2}(?: --[a-z-]+(?: (?!--)[^\s,;]+)?)*/;

/// A command alone can be copied; one with words behind it is shown as what it is.
function remedy(fix) {
  const [line] = fix.match(COMMAND) ?? [];
  if (line === fix) return cli(fix);
  return h("div", { class: "soft small" }, line && h("code", {}, line), line ? fix.slice(line.length) : fix);
}
