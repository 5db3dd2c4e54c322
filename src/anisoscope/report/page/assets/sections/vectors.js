// Files of vectors, and any study whose sites are no layers: bars, with the null as a line across each.
import { View } from "../core/address.js";
import { bars, heightFor, nameAxis, nullTicks } from "../core/bars.js";
import { axis, Chart, visible } from "../core/chart.js";
import { controls, metricOptions, select } from "../core/controls.js";
import { colourOf, faint } from "../core/colours.js";
import { distinct, meaning, SECTIONED, SUBJECTS, T, title } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { extremes, number, shown } from "../core/text.js";

const SEVERAL = new Set(["cosine_share", "hub_occurrence"]); // several rows of one cloud

function rowsOf(found) {
  const studies = [...found.study].filter(([command]) => !SECTIONED.has(command));
  return studies.flatMap(([, rows]) => rows).filter((i) => T.positions[i] === "all" && !SEVERAL.has(T.metric[i]));
}

const nameOf = (rows) => {
  const several = distinct(rows.map((i) => T.site[i])).length > 1;
  const label = (i) => SUBJECTS[T.subject[i]].label, one = distinct(rows.map(label)).length === 1;
  return (i) => {
    const at = T.at[i] === null ? "" : ` at ${number(T.at[i])}`;
    return shown((several ? (one ? T.site[i] : `${label(i)} · ${T.site[i]}`) : label(i)) + at);
  };
};

function barChart(rows, t) {
  const all = distinct(rows.map((i) => T.subject[i])),
    on = new Set(visible(all)),
    mine = rows.filter((i) => on.has(T.subject[i]));
  const names = mine.map(nameOf(rows)), colours = mine.map((i) => colourOf(T.subject[i], t));
  const label = meaning(T.metric[rows[0]]).label;
  return {
    data: [bars(mine, names, { colours, name: label, t }), ...nullTicks(mine, names, t)],
    subjects: all,
    height: heightFor(mine.length),
    words: extremes(mine, label),
    table: rowTable(mine),
    layout: { xaxis: axis(t, label, { rangemode: "tozero" }), yaxis: nameAxis(t), bargap: 0.6 },
  };
}

// Similarities of pairs by their quantiles: 5 to 95 % as a line, the middle half as a box, beside the isotropic ones.
const LEVELS = ["05", "25", "50", "75", "95"];

function quantiles(rows, t) {
  const found = LEVELS.map((level) => rows.filter((i) => T.metric[i] === `cosine_q${level}`));
  if (found.some((one) => !one.length)) return null;
  const name = nameOf(found[2]), traces = [];
  const box = (values, label, colour) => ({
    type: "box",
    orientation: "h",
    y: [label],
    lowerfence: [values[0]],
    q1: [values[1]],
    median: [values[2]],
    q3: [values[3]],
    upperfence: [values[4]],
    line: { color: colour, width: 1.6 },
    fillcolor: faint(colour, 0.25),
    hoverinfo: "x",
    name: label,
  });
  found[2].forEach((middle) => {
    const same = (i) => T.subject[i] === T.subject[middle] && T.site[i] === T.site[middle];
    const five = found.map((one) => one.find(same)), label = name(middle);
    traces.push(box(five.map((i) => T.value[i]), label, colourOf(T.subject[middle], t)));
    const nulls = five.map((i) => T.null[i]);
    if (!nulls.includes(null)) {
      traces.push(box(nulls, found[2].length > 1 ? `isotropic, for ${label}` : "isotropic", t.soft));
    }
  });
  return {
    data: traces,
    height: heightFor(traces.length, 60),
    words: extremes(found[2], "median cosine of a pair"),
    table: rowTable(found.flat()),
    layout: { xaxis: axis(t, "cosine of a pair"), yaxis: nameAxis(t), boxgap: 0.4 },
  };
}

const similarities = (rows) => ({
  title: () => "Similarities of pairs",
  caption: () => "lines from 5 to 95 %, boxes for the middle half, the median inside",
  height: 240,
  build: (t) => quantiles(rows, t),
});
const hasQuantiles = (rows) => LEVELS.every((level) => rows.some((i) => T.metric[i] === `cosine_q${level}`));

register({
  id: "vectors",
  order: 5,
  leads: 40,
  name: "Vectors",
  title: "Vectors",
  intro:
    "Each metric of each cloud, with its 95 % interval where there is one. The short line across a bar is the value that isotropic " +
    "vectors of the same number and dimension would give.",
  wants: (found) => rowsOf(found).length > 0,
  lead: (found) => hasQuantiles(rowsOf(found)) && similarities(rowsOf(found)),
  draw(host, found) {
    const rows = rowsOf(found), metrics = new Set(rows.map((i) => T.metric[i]));
    const first = metrics.has("mean_cosine") ? "mean_cosine" : [...metrics][0];
    const view = new View("vectors", { metric: first }, { allowed: { metric: () => [...metrics] } });
    select(controls(host), "Metric", metricOptions(metrics), view, "metric");
    const chart = new Chart(grid(host), {
      title: () => title(view.metric),
      caption: () => meaning(view.metric).meaning,
      height: 220,
      build: (t) => barChart(rows.filter((i) => T.metric[i] === view.metric), t),
    });
    view.listen(() => chart.refresh());
    if (hasQuantiles(rows)) new Chart(grid(host), similarities(rows));
  },
});
