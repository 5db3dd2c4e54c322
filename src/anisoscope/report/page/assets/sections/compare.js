// Two runs, models or checkpoints side by side: before, after, difference, changed?
import { View } from "../core/address.js";
import { heightFor, nameAxis } from "../core/bars.js";
import { axis, Chart } from "../core/chart.js";
import { controls, metricOptions, options, select } from "../core/controls.js";
import { paletteAt } from "../core/colours.js";
import { COUNT, data, distinct, meaning, SUBJECTS, T } from "../core/data.js";
import { element, grid } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { between, number, shown } from "../core/text.js";

const usable = (i) =>
  T.head[i] === null && T.at[i] === null && T.positions[i] === "all" && T.value[i] !== null && T.site[i] !== "layers" &&
  !data.runs[SUBJECTS[T.subject[i]].run].alone;

// A side is a model in a run, at one of its steps: "3" or "3@64".
let known = null;
function sides() {
  if (known) return known;
  known = new Map();
  for (let i = 0; i < COUNT; i++) {
    if (!usable(i)) continue;
    const side = T.step[i] === null ? `${T.subject[i]}` : `${T.subject[i]}@${T.step[i]}`;
    if (!known.has(side)) known.set(side, []);
    known.get(side).push(i);
  }
  return known;
}

function nameOf(side) {
  const [subject, step] = side.split("@"), label = SUBJECTS[subject].label;
  return step === undefined ? label : `${label}, step ${number(Number(step))}`;
}

const keyOf = (i) => `${T.site[i]}\n${T.metric[i]}`;
const firstSeed = (rows) => new Map([...rows].reverse().map((i) => [keyOf(i), i]));

// Differences of two sides, with intervals as if they were independent.
function free(first, second) {
  const before = firstSeed(sides().get(first) || []), after = firstSeed(sides().get(second) || []);
  return [...before].reverse().filter(([key]) => after.has(key)).map(([key, i]) => {
    const j = after.get(key), difference = T.value[j] - T.value[i];
    const sure = [i, j].every((k) => T.low[k] !== null && T.high[k] !== null);
    const reach = sure ? Math.hypot(T.high[i] - T.low[i], T.high[j] - T.low[j]) / 2 : null;
    const ends = sure ? { low: difference - reach, high: difference + reach } : { low: null, high: null };
    return { site: T.site[i], metric: T.metric[i], before: T.value[i], after: T.value[j], difference, ...ends };
  });
}

// Differences that `anisoscope compare` found, with both sides: not what is of both runs at once.
function kept(run) {
  const rows = (data.study.get("compare") || []).filter((i) => SUBJECTS[T.subject[i]].run === run);
  const place = (i, metric) => `${T.subject[i]}\n${T.site[i]}\n${metric}`;
  const values = new Map(rows.map((i) => [place(i, T.metric[i]), T.value[i]]));
  return rows.flatMap((i) => {
    const [before, after] = ["before", "after"].map((side) => values.get(place(i, `${T.metric[i]}_${side}`)));
    if (before === undefined || after === undefined) return [];
    return [{
      site: T.site[i],
      metric: T.metric[i],
      before,
      after,
      difference: T.value[i],
      low: T.low[i],
      high: T.high[i],
    }];
  });
}

const changed = (one) => one.low !== null && one.low * one.high > 0;
const judged = (one) => (one.low === null ? "no interval" : changed(one) ? "yes" : "not seen");

function differences(view) {
  return view.pair.startsWith("run:") ? kept(Number(view.pair.slice(4))) : free(view.first, view.second);
}

function chartOf(found, t) {
  if (!found.length) return null;
  const yes = paletteAt(1, t);
  const say = (one) =>
    [
      shown(one.site),
      `${number(one.before)} → ${number(one.after)}`,
      `difference: ${number(one.difference)}`,
      one.low === null ? "no interval" : `95 %: ${between(one.low, one.high)}`,
    ].join("<br>");
  const ends = {
    array: found.map((one) => (one.high ?? one.difference) - one.difference),
    arrayminus: found.map((one) => one.difference - (one.low ?? one.difference)),
  };
  const trace = {
    x: found.map((one) => one.difference),
    y: found.map((one) => shown(one.site)),
    text: found.map(say),
    hovertemplate: "%{text}<extra></extra>",
    mode: "markers",
    type: "scatter",
    marker: { size: 9, color: found.map((one) => (changed(one) ? yes : t.soft)) },
    error_x: { type: "data", symmetric: false, ...ends, color: t.soft, thickness: 1.3, width: 3 },
  };
  const cells = (one) => [one.site, one.metric, one.before, one.after, one.difference, one.low, one.high];
  const zero = { zeroline: true, zerolinecolor: t.soft, rangemode: "tozero" };
  return {
    data: [trace],
    height: heightFor(found.length, found.length > 20 ? 20 : 30),
    words: `${found.filter(changed).length} of ${found.length} sites differ: their interval excludes 0.`,
    table: { head: ["site", "metric", "before", "after", "difference", "low", "high"], rows: found.map(cells) },
    layout: { xaxis: axis(t, "after minus before", zero), yaxis: nameAxis(t, [trace]) },
  };
}

function table(host, found, metric) {
  const mine = found.filter((one) => !metric || one.metric === metric), sure = mine.filter((one) => one.low !== null);
  const counted = sure.length
    ? `${sure.filter(changed).length} of ${mine.length} differences have an interval that excludes 0`
    : "Differences, without intervals";
  const cells = (
    one,
  ) => [
    one.site,
    meaning(one.metric).label,
    one.before,
    one.after,
    one.difference,
    between(one.low, one.high),
    judged(one),
  ];
  const head = ["site", "metric", "before", "after", "difference", "95 % interval", "changed?"];
  host.replaceChildren(
    element("h3", {}, counted),
    plainTable(head, mine.map(cells), "Before, after, difference"),
  );
}

// Two sides that share a site: the first two models, or the first and the last step of a training.
function firstPair() {
  const all = [...sides().keys()], sitesOf = (side) => new Set(sides().get(side).map((i) => T.site[i]));
  const alone = all.filter((side) => !side.includes("@"));
  for (const list of [alone, all]) {
    const shared = (other) => [...sitesOf(other)].some((site) => sitesOf(list[0]).has(site));
    const other = list.slice(1).reverse().find(shared);
    if (other) return { first: list[0], second: list === alone ? list.slice(1).find(shared) : other };
  }
  return null;
}

const CAPTIONS = {
  kept: "intervals of anisoscope compare, paired by sequence group where the data are the same",
  free: "intervals combined as if the two were independent; anisoscope compare pairs them by sequence",
};

function firstView(found) {
  const runs = distinct((found.study.get("compare") || []).map((i) => SUBJECTS[T.subject[i]].run));
  const pair = firstPair() || { first: "", second: "" };
  return { runs, view: { pair: runs.length ? `run:${runs[0]}` : "free", metric: "mean_cosine", ...pair } };
}

const chartOptions = (view) => ({
  title: () => `Difference in ${meaning(view.metric).label}`,
  caption: () => CAPTIONS[view.pair === "free" ? "free" : "kept"],
  height: 300,
  build: (t) => chartOf(differences(view).filter((one) => one.metric === view.metric), t),
});

register({
  id: "compare",
  order: 120,
  leads: 50,
  name: "Comparison",
  title: "Before and after",
  intro:
    "Any two runs, models or checkpoints of this page, site by site. If both sides read the same data, an interval " +
    "that excludes 0 means that the difference is larger than the choice of texts explains.",
  wants: (found) => found.study.has("compare") || firstPair() !== null,
  lead: (found) => found.study.has("compare") && chartOptions(firstView(found).view),
  draw(host, found) {
    const { runs, view: first } = firstView(found), all = [...sides().keys()];
    const view = new View("compare", first), bar = controls(host), apart = controls(host);
    const stored = runs.map((run) => ({ value: `run:${run}`, label: found.runs[run].label }));
    const pairs = [...stored, ...(first.second ? [{ value: "free", label: "two of this page" }] : [])];
    if (pairs.length > 1) select(bar, "Comparison", pairs, view, "pair");
    if (first.second) {
      select(apart, "Before", options(all, nameOf), view, "first");
      select(apart, "After", options(all, nameOf), view, "second");
    }
    const metrics = () => new Set(differences(view).map((one) => one.metric));
    select(bar, "Metric", () => metricOptions(metrics()), view, "metric");
    const chart = new Chart(grid(host), chartOptions(view)), panel = element("div", { class: "panel" });
    host.append(panel);
    const update = () => {
      apart.hidden = view.pair !== "free";
      chart.refresh();
      table(panel, differences(view), view.metric);
    };
    view.listen(update);
    update();
  },
});
