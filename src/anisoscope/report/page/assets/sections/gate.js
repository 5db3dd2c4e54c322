// Rules of a gate: what was measured, the limits, and what follows.
import { data, meaning, SUBJECTS, T } from "../core/data.js";
import { panel } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { between } from "../core/text.js";

const interval = (low, high) => (low === null ? null : between(low, high));

// Runs of earlier versions kept no rules: what was measured, and what was said of it.
function measured(found, number) {
  const rows = (found.study.get("gate") || []).filter((i) => SUBJECTS[T.subject[i]].run === number);
  return rows.map((i) => [T.note[i], meaning(T.metric[i]).label, T.value[i], interval(T.low[i], T.high[i]), T.site[i]]);
}

register({
  id: "gate",
  order: 5,
  leads: 30,
  name: "Gate",
  title: "May it be released?",
  intro: "A rule holds where the whole 95 % interval lies within its limits, and fails where none of it does.",
  wants: (found) => found.runs.some((run) => run.command === "gate"),
  draw(host, found) {
    for (const [number, run] of data.runs.entries()) {
      const judged = run.rules.map((one) => [one.outcome, one.rule, one.value, interval(one.low, one.high), one.site]);
      const lines = judged.length || run.command !== "gate" ? judged : measured(found, number);
      const head = ["outcome", "rule", "value", "95 % interval", "site"];
      if (lines.length) panel(host, run.label, plainTable(head, lines, `Rules of ${run.label}`));
    }
  },
});
