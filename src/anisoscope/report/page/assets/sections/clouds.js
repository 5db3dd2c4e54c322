// Two clouds of vectors: how far apart they lie, and what they share, beside chance.
import { bars, heightFor, nameAxis, nullTicks } from "../core/bars.js";
import { axis, Chart } from "../core/chart.js";
import { colourOf } from "../core/colours.js";
import { data, meaning, SUBJECTS, T } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { extremes, number } from "../core/text.js";

const WITHIN = { vectors: "within the first", against: "within the second" };
const ofPair = (found) => (found.study.get("vectors") || []).filter((i) => T.site[i] === "pair");
const SHOWN = new Set(["cosine_between", "partner_cosine", "axes_overlap", "linear_cka", "neighbour_overlap"]);
const nameOf = (i) => meaning(T.metric[i]).label + (T.at[i] === null ? "" : `, ${number(T.at[i])}`);

function picture(rows, t) {
  const names = rows.map((i) => (T.site[i] === "pair" ? nameOf(i) : `cosine ${WITHIN[T.site[i]]}`));
  const traces = [bars(rows, names, { colours: colourOf(T.subject[rows[0]], t), name: "two clouds", t })];
  return {
    data: [...traces, ...nullTicks(rows, names, t)],
    height: heightFor(rows.length),
    words: extremes(rows, "value"),
    table: rowTable(rows),
    layout: { xaxis: axis(t, "", { rangemode: "tozero" }), yaxis: nameAxis(t, traces), bargap: 0.6 },
  };
}

register({
  id: "clouds",
  order: 6,
  leads: 31,
  name: "Two clouds",
  title: "Two clouds, side by side",
  intro: "Average cosines within each cloud, between them and of partners, and what both share. The short line " +
    "across a bar is what chance would give.",
  wants: (found) => ofPair(found).length > 0,
  draw(host, found) {
    for (const [of, run] of data.runs.entries()) {
      const mine = (i) => SUBJECTS[T.subject[i]].run === of;
      const within = (found.study.get("vectors") || []).filter((i) =>
        mine(i) && WITHIN[T.site[i]] && T.metric[i] === "mean_cosine" && T.positions[i] === "all"
      );
      const pair = ofPair(found).filter((i) => mine(i) && SHOWN.has(T.metric[i]) && T.value[i] !== null);
      if (!pair.length) continue;
      new Chart(grid(host), { title: () => run.label, build: (t) => picture([...within, ...pair], t) });
    }
  },
});
