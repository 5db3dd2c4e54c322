// Rules of a gate: what was measured, the limits, and what follows.
import { data, SUBJECTS, T } from "../core/data.js";
import { panel } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { between } from "../core/text.js";

const RULE = /^(holds|fails|cannot say): (.*)$/;

register({
  id: "gate",
  order: 5,
  leads: 30,
  name: "Gate",
  title: "May it be released?",
  intro: "A rule holds where the whole 95 % interval lies within its limits, and fails where none of it does.",
  wants: (found) => found.study.has("gate"),
  draw(host, found) {
    for (const [number, run] of data.runs.entries()) {
      const rows = found.study.get("gate").filter((i) => SUBJECTS[T.subject[i]].run === number && RULE.test(T.note[i]));
      const lines = rows.map((i) => {
        const [, said, rule] = RULE.exec(T.note[i]);
        return [T.site[i], rule, T.value[i], T.low[i] === null ? null : between(T.low[i], T.high[i]), said];
      });
      const head = ["site", "rule", "value", "95 % interval", "outcome"];
      if (lines.length) panel(host, run.label, plainTable(head, lines, `Rules of ${run.label}`));
    }
  },
});
