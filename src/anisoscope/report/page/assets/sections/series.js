// Checkpoints of a training: metrics over steps, layers at a step, queries and keys in the plane of their head.
import { View } from "../core/address.js";
import { axis, Chart } from "../core/chart.js";
import { controls, metricOptions, options, select, slider } from "../core/controls.js";
import { depthColour } from "../core/colours.js";
import { add, data, distinct, meaning, pick, spread, SUBJECTS, T, title, trainings } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { band, isPart, layerTraces, line, nullMarks, seedDash, seedsTold, siteAxis, stepAxis } from "../core/lines.js";
import { register } from "../core/sections.js";
import { extremes, number, shown } from "../core/text.js";
import { peak } from "../core/layer_chart.js";
import { drawPlane } from "../core/plane.js";

const seriesRows = (model, metric) =>
  (data.layered.get(metric) || []).filter((i) => {
    return T.subject[i] === model && T.positions[i] === "all" && T.step[i] !== null;
  });

function metricsOf(model) {
  return new Set([...data.layered.keys()].filter((metric) => seriesRows(model, metric).length));
}

// One line for each site and seed; the seeds of a site share its colour and differ in their dashes.
export function overSteps({ model, metric, step = null, mark = false }, t) {
  const steps = data.steps.get(model), place = new Map(steps.map((one, k) => [one, k]));
  const all = seriesRows(model, metric), rows = mark ? all.filter((i) => !isPart(i)) : all; // the first chart: states
  const sites = distinct(rows.map((i) => T.site[i])), lines = new Map();
  rows.forEach((i) => add(lines, `${T.site[i]}\n${T.seed[i]}`, i));
  const traces = [], nulls = [], many = lines.size > sites.length, seeds = distinct(rows.map((i) => T.seed[i]));
  for (const [key, mine] of lines) {
    const [site, seed] = key.split("\n"), k = sites.indexOf(site);
    const colour = depthColour(sites.length > 1 ? k / (sites.length - 1) : 0.7, t);
    mine.sort((a, b) => T.step[a] - T.step[b]);
    const x = mine.map((i) => place.get(T.step[i])), name = shown(many ? `${site}, seed ${seed}` : site);
    if (sites.length <= 8 && !many) traces.push(...band(x, mine, colour, 0.15));
    const dash = seedDash(seeds.indexOf(T.seed[mine[0]]));
    traces.push(line(x, mine, { colour, name, dash, size: many ? 4 : 5, width: many ? 1.6 : 2 }));
    nulls.push({ colour, x, rows: mine });
  }
  const marks = nullMarks(nulls, t, spread(rows.map((i) => T.value[i])));
  const here = { type: "line", yref: "paper", y0: 0, y1: 1, line: { color: t.accent, width: 1.4 } };
  const shapes = step === null ? [] : [{ ...here, x0: place.get(step), x1: place.get(step) }];
  const top = (i) => `${number(Number(T.value[i].toPrecision(2)))} at step ${number(T.step[i])}`;
  const peaks = mark && rows.length ? [peak(traces, rows, t, top)] : [];
  return {
    data: [...marks.traces, ...traces],
    words: extremes(rows, meaning(metric).label),
    table: rowTable(rows),
    layout: {
      xaxis: stepAxis(steps, t),
      yaxis: axis(t, meaning(metric).label),
      shapes: [...shapes, ...marks.shapes],
      annotations: [...marks.annotations, ...peaks],
    },
  };
}

function atStep({ model, metric, step }, t) {
  const rows = data.layered.get(metric), steps = data.steps.get(model);
  const at = (one) => new Map([...pick(rows, { step: one })].filter(([subject]) => subject === model));
  const now = at(step), start = at(steps[0]), subjects = [model];
  if (!now.size) return null;
  const { traces, nulls } = layerTraces(now, t, { subjects });
  const grey = (trace) => ({
    ...trace,
    line: { ...trace.line, color: t.soft, width: 1.3, dash: "dot" },
    marker: { ...trace.marker, color: t.soft, size: 4 },
  });
  const before = start.size
    ? layerTraces(start, t, { subjects }).traces.filter((one) => one.fill === "none").map(grey)
    : [];
  // The axis holds still while the slider moves.
  const all = seriesRows(model, metric).map((i) => T.value[i]), pad = 0.06 * (spread(all) || 1);
  const marks = nullMarks(nulls, t, spread(all)), here = now.get(model);
  const room = marks.annotations.map((one) => one.y - 1.5 * pad); // the name of the null stands under its line
  const range = [Math.min(...all.map((value) => value - pad), ...room), Math.max(...all) + pad];
  return {
    data: [...before, ...marks.traces, ...traces],
    words: extremes(here, meaning(metric).label),
    table: rowTable(here),
    layout: {
      xaxis: siteAxis(now, subjects, t),
      yaxis: axis(t, meaning(metric).label, { range }),
      shapes: marks.shapes,
      annotations: marks.annotations,
    },
  };
}

const preferred = (model) => {
  const metrics = metricsOf(model);
  return ["mean_cosine", "query_key_cosine"].find((name) => metrics.has(name)) || [...metrics][0];
};
const DEPTH = "one line for each site, the first faint and the last strong";

const lineCaption = (model, metric) => [DEPTH, seedsTold(seriesRows(model, metric))].filter(Boolean).join("; ");

register({
  id: "series",
  order: 60,
  leads: 10,
  name: "Training",
  title: "Along the training",
  intro: "Move through the checkpoints. They are spaced evenly, whatever the steps between them.",
  wants: () => trainings().some((model) => metricsOf(model).size),
  lead() {
    const model = trainings().find((one) => metricsOf(one).has("mean_cosine"));
    return model !== undefined && {
      title: () => `Average cosine${trainings().length > 1 ? ` of ${SUBJECTS[model].label}` : ""} during training`,
      caption: () => lineCaption(model, "mean_cosine"),
      height: 400,
      build: (t) => overSteps({ model, metric: "mean_cosine", mark: true }, t),
    };
  },
  draw(host, found) {
    const models = trainings().filter((model) => metricsOf(model).size), model = models[0];
    const first = { model, metric: preferred(model), step: data.steps.get(model).at(-1) };
    const view = new View("series", first, {
      allowed: { model: () => models, step: (view) => data.steps.get(view.model) },
    });
    const bar = controls(host);
    if (models.length > 1) select(bar, "Training", options(models, (one) => SUBJECTS[one].label), view, "model");
    select(bar, "Metric", () => metricOptions(metricsOf(view.model)), view, "metric");
    slider(bar, "Step", () => data.steps.get(view.model), view, "step", number);
    const box = grid(host, true);
    const over = new Chart(box, {
      title: () => `${title(view.metric)} over training`,
      caption: () => `${lineCaption(view.model, view.metric)}; the step of the slider is marked`,
      build: (t) => overSteps(view, t),
    });
    const at = new Chart(box, {
      title: () => `${title(view.metric)} by layer, step ${number(view.step)}`,
      caption: () => "grey: the first step",
      build: (t) => atStep(view, t),
    });
    const plane = drawPlane(host, view, found.pictures.series);
    view.listen(() => {
      if (!metricsOf(view.model).has(view.metric)) view.metric = preferred(view.model);
      if (!data.steps.get(view.model).includes(view.step)) view.step = data.steps.get(view.model).at(-1);
      [over, at, plane].forEach((chart) => chart?.refresh());
    });
  },
});
