// The cosine of unrelated pairs, as the vectors are and after each correction, with floor and thresholds.
import { View } from "../core/address.js";
import { axis, Chart, legendAbove } from "../core/chart.js";
import { controls, options, select } from "../core/controls.js";
import { paletteAt } from "../core/colours.js";
import { by, data, distinct, meaning, SUBJECTS, T } from "../core/data.js";
import { element, grid } from "../core/dom.js";
import { density, marks } from "../core/histogram.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { number, spaced } from "../core/text.js";

const WORDS = {
  raw: "as they are",
  centred: "centring",
  without_top: "top removed",
  whitened: "whitening",
  isotropic: "isotropic",
};
const PERCENTILE = "floor_percentile"; // at a cosine, not at a rate
const named = (site) => WORDS[site] || spaced(site);
const rowsOf = (run) => (data.study.get("calibrate") || []).filter((i) => SUBJECTS[T.subject[i]].run === run);

function curve(name, x, y, k, t) {
  const isotropic = name === "isotropic", look = { filled: name === "raw", dash: isotropic ? "dot" : "solid" };
  return density(named(name), x, y, isotropic ? t.soft : paletteAt(k, t), look);
}

// Floor and thresholds of the vectors as they are.
function marked(run) {
  const rows = rowsOf(run).filter((i) => T.site[i] === "raw");
  const floor = rows.filter((i) => T.metric[i] === "floor_mean").map((i) => [T.value[i], "floor"]);
  const thresholds = rows.filter((i) => T.metric[i] === "threshold");
  return [...floor, ...thresholds.map((i) => [T.value[i], `${number(100 * T.at[i])} %`])];
}

function histogram(run, t, only = null) {
  const mine = data.pictures.calibrate.find((one) => one.run === run);
  if (!mine) return null;
  const names = Object.keys(mine.curves).filter((name) => !only || only.includes(name));
  const top = Math.max(...names.flatMap((name) => mine.curves[name]));
  return {
    data: names.map((name, k) => curve(name, mine.x, mine.curves[name], k, t)),
    table: {
      head: ["cosine", ...names],
      rows: mine.x.map((x, k) => [x, ...names.map((name) => mine.curves[name][k])]),
    },
    layout: {
      ...legendAbove,
      margin: { l: 54, r: 16, t: 56, b: 46 },
      xaxis: axis(t, "cosine"),
      yaxis: axis(t, "density", { range: [0, 1.55 * top] }), // room for the labels above the curves
      ...marks(marked(run), mine.x, t),
    },
  };
}

function numbers(host, run) {
  const told = (metric) => metric !== PERCENTILE && !metric.endsWith("hub_occurrence");
  const rows = rowsOf(run).filter((i) => told(T.metric[i])), sites = distinct(rows.map((i) => T.site[i]));
  const rate = (i) => T.metric[i].includes("threshold") ? `${number(100 * T.at[i])} %` : number(T.at[i]);
  const name = (i) => {
    const label = meaning(T.metric[i]).label;
    if (T.at[i] === null) return label;
    return label.endsWith("@k") ? label.replace("@k", `@${number(T.at[i])}`) : `${label} at ${rate(i)}`;
  };
  const lines = new Map();
  for (const [site, mine] of by(rows, "site")) {
    for (const i of mine) lines.set(name(i), { ...lines.get(name(i)), [site]: T.value[i] });
  }
  const cells = [...lines].map(([metric, at]) => [metric, ...sites.map((site) => at[site] ?? null)]);
  const table = plainTable(["", ...sites.map(named)], cells, "Thresholds by correction");
  host.replaceChildren(element("h3", {}, "Floor, thresholds, nearest neighbours"), table);
  const shares = rowsOf(run).filter((i) => T.metric[i] === PERCENTILE).map((i) => [T.at[i], 100 * T.value[i]]);
  if (!shares.length) return;
  const head = ["a cosine of", "is above … % of unrelated pairs"];
  host.append(
    element(
      "details",
      {},
      element("summary", {}, "From scores to percentiles"),
      plainTable(head, shares, "Percentiles"),
    ),
  );
}

register({
  id: "calibrate",
  order: 6,
  leads: 30,
  name: "Thresholds",
  title: "Similarity floor and thresholds",
  intro:
    "The cosine of unrelated pairs, as the vectors are and after each correction. A similarity means something above " +
    "the threshold.",
  wants: (found) => found.study.has("calibrate"),
  lead(found) {
    const run = found.pictures.calibrate[0]?.run;
    return run !== undefined && {
      title: () => "Cosine of unrelated pairs",
      caption: () => "dashed: the floor, and the threshold for each rate of false positives",
      height: 400,
      build: (t) => histogram(run, t, ["raw", "isotropic"]),
    };
  },
  draw(host, found) {
    const runs = distinct(found.study.get("calibrate").map((i) => SUBJECTS[T.subject[i]].run));
    const view = new View("calibrate", { run: runs[0] }, { allowed: { run: () => runs } });
    if (runs.length > 1) select(controls(host), "Vectors", options(runs, (run) => data.runs[run].label), view, "run");
    const chart = found.pictures.calibrate.length && new Chart(grid(host), {
      title: () => "Cosine of unrelated pairs by correction",
      caption: () =>
        "dashed: the floor of the vectors as they are, and their threshold for each rate of false positives",
      height: 420,
      build: (t) => histogram(view.run, t),
    });
    const panel = element("div", { class: "panel" });
    host.append(panel);
    numbers(panel, view.run);
    view.listen(() => {
      if (chart) chart.refresh();
      numbers(panel, view.run);
    });
  },
});
