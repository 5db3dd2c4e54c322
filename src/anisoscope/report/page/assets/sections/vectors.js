// Files of vectors, and any study whose sites are not layers: bars, with the null as a line across each.
import { View } from "../core/address.js";
import { bars, heightFor, nameAxis, nullTicks } from "../core/bars.js";
import { axis, Chart, legendAbove, visible } from "../core/chart.js";
import { controls, metricOptions, select } from "../core/controls.js";
import { colourOf, theme } from "../core/colours.js";
import { distinct, meaning, SECTIONED, SUBJECTS, T, title } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { density, marks } from "../core/histogram.js";
import { apart } from "../core/lines.js";
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
  const label = meaning(T.metric[rows[0]]).label, traces = [bars(mine, names, { colours, name: label, t })];
  return {
    data: [...traces, ...nullTicks(mine, names, t)],
    subjects: all,
    height: heightFor(mine.length),
    words: extremes(mine, label),
    table: rowTable(mine),
    layout: { xaxis: axis(t, label, { rangemode: "tozero" }), yaxis: nameAxis(t, traces), bargap: 0.6 },
  };
}

// The cosines of sampled pairs of each cloud, beside isotropic ones. One cloud has its floor and thresholds marked.
function curves(found, t) {
  return found.pictures.vectors.flatMap(({ run, x, curves: drawn }) => {
    const subject = SUBJECTS.findIndex((one) => one.run === run), sites = Object.keys(drawn);
    return sites.map((site) => ({
      subject,
      site,
      name: SUBJECTS[subject].label + (sites.length > 2 ? ` · ${site}` : ""),
      x,
      y: drawn[site],
      colour: site === "isotropic" ? t.soft : colourOf(subject, t),
    }));
  });
}

const MARKS = { mean_cosine: "floor", cosine_q95: "5 %", cosine_q99: "1 %" };

function histogram(found, rows, t) {
  const all = curves(found, t), on = new Set(visible(distinct(all.map((one) => one.subject))));
  const mine = all.filter((one) => one.site !== "isotropic" && on.has(one.subject));
  const isotropic = all.filter((one) => one.site === "isotropic" && on.has(one.subject)).slice(0, 1)
    .map((one) => ({ ...one, name: "isotropic" }));
  if (!mine.length) return null;
  const own = (i) => mine.length === 1 && T.subject[i] === mine[0].subject && T.site[i] === mine[0].site;
  const marked = rows.filter((i) => own(i) && MARKS[T.metric[i]]).map((i) => [T.value[i], MARKS[T.metric[i]]]);
  const drawn = [...isotropic, ...mine], top = Math.max(...drawn.flatMap((one) => one.y));
  const traces = drawn.map((one) => {
    const dash = one.site === "isotropic" ? "dot" : one.site === "against" ? "dash" : "solid";
    const filled = mine.length === 1 && dash === "solid";
    return density(one.name, one.x, one.y, one.colour, { filled, dash });
  });
  apart(traces.slice(isotropic.length));
  for (const trace of traces) if (trace.on) trace.name += ` (on the line of ${trace.on})`;
  return {
    data: traces,
    words: extremes(rows.filter((i) => T.metric[i] === "mean_cosine" && on.has(T.subject[i])), "average cosine"),
    table: {
      head: ["name", "cosine", "density"],
      rows: drawn.flatMap(({ name, x, y }) => x.map((at, k) => [name, at, y[k]])),
    },
    layout: {
      ...legendAbove,
      margin: { l: 54, r: 16, t: 56, b: 46 },
      xaxis: axis(t, "cosine of a pair"),
      yaxis: axis(t, "density", { range: [0, (marked.length ? 1.4 : 1.05) * top] }), // room for labels
      ...marks(marked, mine[0].x, t),
    },
  };
}

const similarities = (found, rows) => ({
  title: () => "Similarities of pairs",
  caption: () => {
    const clouds = curves(found, theme()).filter((one) => one.site !== "isotropic").length;
    const marked = "; dashed: the floor (their average) and the similarity that 5 % and 1 % of them exceed";
    return `cosines of sampled pairs, beside isotropic ones${clouds > 1 ? "" : marked}`;
  },
  height: 380,
  build: (t) => histogram(found, rows, t),
});
const hasHistogram = (found) => found.pictures.vectors.length > 0;

register({
  id: "vectors",
  order: 5,
  leads: 40,
  name: "Vectors",
  title: "Vectors",
  intro: "Each metric of each cloud, with its 95 % interval where there is one. The short line across a bar is " +
    "the value that isotropic vectors of the same number and dimension would give.",
  wants: (found) => rowsOf(found).length > 0,
  lead: (found) => hasHistogram(found) && similarities(found, rowsOf(found)),
  draw(host, found, leads) {
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
    if (hasHistogram(found) && !leads) new Chart(grid(host), similarities(found, rows));
  },
});
