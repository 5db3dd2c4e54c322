// Layer × head maps. Noise looks like noise: cosines span −1 to 1, and heads beyond the null are outlined.
import { View } from "../core/address.js";
import { axis, Chart } from "../core/chart.js";
import { controls, metricOptions, options, select, slider } from "../core/controls.js";
import { colourBar, diverging, sequential } from "../core/colours.js";
import { data, distinct, lastStep, meaning, SUBJECTS, T, title } from "../core/data.js";
import { element, grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { extremes, hover, interval, number, shown } from "../core/text.js";

const layerOf = (i) => T.site[i].replace(/\.head\.\d+.*$/, "");
const nameOf = (i) => `${layerOf(i)}:${T.head[i]}`;
const PREFERRED = ["query_key_cosine", "entropy_normalised", "salience_share"];

// How far a head strays by chance.
const nullReach = (i) => (T.null_sd[i] === null || T.null[i] === null ? null : 1.96 * T.null_sd[i]);
const beyond = (i) => nullReach(i) !== null && Math.abs(T.value[i] - T.null[i]) > nullReach(i);

function rowsOf(view, metric) {
  const rows = (data.heads.get(metric) || []).filter((i) => T.subject[i] === view.model && T.positions[i] === "all");
  const steps = data.steps.get(view.model) || [], step = steps.includes(view.step) ? view.step : lastStep(view.model);
  const at = rows.filter((i) => T.step[i] === step), seeds = distinct(at.map((i) => T.seed[i]));
  return at.filter((i) => T.seed[i] === (seeds.includes(view.seed) ? view.seed : seeds[0]));
}

function scale(rows, metric, t) {
  const values = rows.map((i) => T.value[i]), low = Math.min(...values), high = Math.max(...values);
  if (metric.endsWith("_cosine")) return { colorscale: diverging(t), zmin: -1, zmax: 1 };
  if (low >= 0) return { colorscale: sequential(t), zmin: Math.min(0, low), zmax: metric.endsWith("ised") ? 1 : high };
  const reach = Math.max(-low, high, 1e-12);
  return { colorscale: diverging(t), zmin: -reach, zmax: reach };
}

function outlines(rows, sites, heads, chosen, t) {
  const around = (i, line) => {
    const x = heads.indexOf(T.head[i]), y = sites.indexOf(layerOf(i));
    return { type: "rect", x0: x - 0.48, x1: x + 0.48, y0: y - 0.47, y1: y + 0.47, line };
  };
  const far = rows.filter(beyond).map((i) => around(i, { color: t.ink, width: 1.4 }));
  const here = rows.filter((i) => nameOf(i) === chosen).map((i) => around(i, { color: t.ink, width: 4 }));
  return [...far, ...here];
}

function headMap(view, t) {
  const rows = rowsOf(view, view.metric);
  if (!rows.length) return null;
  const sites = distinct(rows.map(layerOf)), heads = distinct(rows.map((i) => T.head[i])).sort((a, b) => a - b);
  const cell = new Map(rows.map((i) => [nameOf(i), i]));
  const over = (give) => sites.map((site) => heads.map((head) => give(cell.get(`${site}:${head}`))));
  const trace = {
    type: "heatmap",
    x: heads.map((_, k) => k),
    y: sites.map((_, k) => k),
    z: over((i) => (i === undefined ? null : T.value[i])),
    text: over((i) => (i === undefined ? "" : hover(i))),
    customdata: over((i) => (i === undefined ? null : nameOf(i))),
    hovertemplate: "%{text}<extra></extra>",
    hoverongaps: false,
    xgap: 3,
    ygap: 3,
    colorbar: colourBar(t),
    ...scale(rows, view.metric, t),
  };
  const ticks = (names) => {
    const every = Math.ceil(names.length / 24), kept = names.map((_, k) => k).filter((k) => k % every === 0);
    return { tickvals: kept, ticktext: kept.map((k) => shown(names[k])), tickangle: 0, showgrid: false };
  };
  return {
    data: [trace],
    height: Math.min(900, 120 + Math.max(28, 300 / sites.length) * sites.length),
    words: extremes(rows, meaning(view.metric).label),
    table: rowTable(rows),
    layout: {
      xaxis: axis(t, "head", ticks(heads)),
      yaxis: axis(t, "", ticks(sites)),
      shapes: outlines(rows, sites, heads, view.head, t),
    },
  };
}

function caption(view) {
  const rows = rowsOf(view, view.metric), judged = rows.filter((i) => nullReach(i) !== null);
  const choose = "Click a head, or choose it below, for all its numbers.";
  if (!judged.length) return choose;
  const far = judged.filter(beyond).length, reach = number(Number(nullReach(judged[0]).toPrecision(2)));
  return `${far} of ${judged.length} heads lie beyond ±${reach} (5 % would by chance) and are outlined. ${choose}`;
}

// The head that stands out most is open from the start.
function standingOut(view) {
  const rows = rowsOf(view, view.metric);
  const far = (i) => Math.abs(T.value[i] - (T.null[i] ?? 0));
  return rows.length ? nameOf(rows.reduce((best, i) => (far(i) > far(best) ? i : best))) : "";
}

function firstView(found) {
  const metric = PREFERRED.find((name) => found.heads.has(name)) || [...found.heads.keys()][0];
  const model = T.subject[found.heads.get(metric)[0]];
  return { model, metric, step: lastStep(model) ?? -1, seed: 0, head: "" };
}

function detail(host, view) {
  const [site, head] = view.head.split(":");
  const all = [...data.heads.keys()].flatMap((metric) => rowsOf(view, metric));
  const part = (i) => T.site[i].replace(/^.*\.head\.\d+\.?/, "") || "head";
  const chance = (i) => [T.null[i], T.null_sd[i], T.n[i], T.note[i]];
  const cells = (i) => [part(i), meaning(T.metric[i]).label, T.value[i], interval(i), ...chance(i)];
  const names = ["of", "metric", "value", "95 % interval", "null", "null sd", "n", "note"];
  const rows = all.filter((i) => nameOf(i) === view.head).map(cells);
  const kept = names.map((_, k) => k).filter((k) => rows.some((row) => row[k] !== null && row[k] !== ""));
  const several = kept.filter((k) => k > 0 || new Set(rows.map((row) => row[0])).size > 1);
  const step = data.steps.has(view.model) ? `, step ${number(view.step ?? lastStep(view.model))}` : "";
  host.replaceChildren(
    element("h3", {}, `${site}, head ${head}`),
    element("p", { class: "hint" }, SUBJECTS[view.model].label + step),
    plainTable(several.map((k) => names[k]), rows.map((row) => several.map((k) => row[k])), `Head ${head} of ${site}`),
  );
}

register({
  id: "heads",
  order: 50,
  leads: 25,
  name: "Heads",
  title: "Heads",
  intro:
    "Each attention head by layer. cos(Q̄, K̄) is the cosine of a head's mean query and mean key: near 0 where the " +
    "two have nothing in common, towards ±1 where they share or oppose a direction.",
  wants: (found) => found.heads.size > 0,
  lead(found) {
    const view = firstView(found);
    const text = () => caption(view).replace(/ A click.*/, "");
    return { title: () => `${title(view.metric)} by layer and head`, caption: text, build: (t) => headMap(view, t) };
  },
  draw(host, found) {
    const metrics = new Set(found.heads.keys()), first = firstView(found);
    const models = distinct([...found.heads.values()].flat().map((i) => T.subject[i]));
    const view = new View("heads", { ...first, head: standingOut(first) }, {
      allowed: {
        model: () => models,
        metric: () => [...metrics],
        step: (view) => data.steps.get(view.model) || [-1],
      },
    });
    const bar = controls(host);
    if (models.length > 1) select(bar, "Model", options(models, (one) => SUBJECTS[one].label), view, "model");
    select(bar, "Metric", metricOptions(metrics), view, "metric");
    const seeds = distinct([...found.heads.values()].flat().map((i) => T.seed[i])).filter((seed) => seed !== null);
    if (seeds.length > 1) select(bar, "Seed", options(seeds), view, "seed");
    slider(bar, "Step", () => data.steps.get(view.model) || [], view, "step", number);
    const chart = new Chart(grid(host), {
      title: () => `${title(view.metric)} by layer and head`,
      caption: () => caption(view),
      click: (point) => point.customdata && view.change({ head: point.customdata }),
      build: (t) => headMap(view, t),
    });
    const known = () => rowsOf(view, view.metric);
    const chooser = controls(host), sites = () => distinct(known().map(layerOf));
    const heads = () => distinct(known().map((i) => T.head[i])).sort((a, b) => a - b);
    const halves = new Halves(view);
    select(chooser, "Layer", () => options(sites()), halves, "site");
    select(chooser, "Head", () => options(heads()), halves, "number");
    const opened = element("div", { class: "panel", "aria-live": "polite", id: "head", tabindex: "-1" });
    host.append(opened);
    const update = () => {
      if (!known().some((i) => nameOf(i) === view.head)) view.head = standingOut(view);
      chart.refresh();
      detail(opened, view);
    };
    view.listen(update);
    update();
  },
});

// Site and number of the chosen head, as two lists change it.
class Halves {
  constructor(view) {
    this.view = view;
  }
  get site() {
    return this.view.head.split(":")[0];
  }
  get number() {
    return Number(this.view.head.split(":")[1]);
  }
  listen(listener) {
    this.view.listen(listener);
  }
  change({ site = this.site, number: head = this.number }) {
    this.view.change({ head: `${site}:${head}` });
  }
}
