// The untrained block under a drift: curves against the drift norm, scores at one norm, all numbers of that norm.
import { View } from "../core/address.js";
import { axis, Chart, legendAbove } from "../core/chart.js";
import { controls, metricOptions, options, segments, select, slider } from "../core/controls.js";
import { faint, paletteAt, SYMBOLS } from "../core/colours.js";
import { by, data, distinct, meaning, spread, SUBJECTS, T, title } from "../core/data.js";
import { element, grid } from "../core/dom.js";
import { apart, band, line, nullMarks } from "../core/lines.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { extremes, hover, interval, number, shown } from "../core/text.js";

const rowsOf = (found) => (found.study.get("block") || []).filter((i) => T.seed[i] === null);
const swept = (found) => rowsOf(found).filter((i) => T.at[i] !== null);
const ofModel = (rows, model) => rows.filter((i) => T.subject[i] === model);
const normsOf = (model) => distinct(ofModel(swept(data), model).map((i) => T.at[i])).sort((a, b) => a - b);
const MARGIN = { l: 54, r: 16, t: 44, b: 46 };

function curves({ model, metric, norm = null, spacing = "linear" }, t) {
  const rows = ofModel(swept(data), model).filter((i) => T.metric[i] === metric), norms = normsOf(model);
  const where = (at) => (spacing === "even" ? norms.indexOf(at) : at), traces = [], nulls = [];
  [...by(rows, "site")].forEach(([site, mine], k) => {
    const colour = paletteAt(k, t), x = mine.map((i) => where(T.at[i]));
    const text = (i) => `N = ${number(T.at[i])}<br>${hover(i)}`;
    traces.push(...band(x, mine, colour, 0.16));
    const symbol = SYMBOLS[k % SYMBOLS.length];
    traces.push({ ...line(x, mine, { colour, name: shown(site), symbol, size: 6, text }), fill: "none" });
    nulls.push({ colour, x, rows: mine });
  });
  apart(traces);
  const marks = nullMarks(nulls, t, spread(rows.map((i) => T.value[i])));
  const here = { type: "line", yref: "paper", y0: 0, y1: 1, line: { color: t.accent, width: 1.4 } };
  const mark = norm === null ? [] : [{ ...here, x0: where(norm), x1: where(norm) }];
  const ticks = spacing === "even" ? { tickvals: [...norms.keys()], ticktext: norms.map(number) } : {};
  const cells = (i) => [T.site[i], T.at[i], T.metric[i], T.value[i], T.low[i], T.high[i], T.null[i], T.n[i]];
  const label = SUBJECTS[model].label;
  return {
    data: [...marks.traces, ...traces],
    words: extremes(rows, meaning(metric).label),
    table: {
      head: ["block", "site", "N", "metric", "value", "low", "high", "null", "n"],
      rows: rows.map((i) => [label, ...cells(i)]),
    },
    layout: {
      ...legendAbove,
      margin: MARGIN,
      xaxis: axis(t, "drift norm N", ticks),
      yaxis: axis(t, meaning(metric).label),
      shapes: [...mark, ...marks.shapes],
      annotations: marks.annotations,
    },
  };
}

function scores({ model, norm }, t) {
  const subject = SUBJECTS[model];
  const mine = data.pictures.block.find((one) => one.run === subject.run && one.model === subject.model);
  const at = mine ? mine.norms.indexOf(norm) : -1;
  if (at < 0) return null;
  const curve = (k, colour, filled) => {
    const { x, y } = mine.curves[k], top = Math.max(...y, 1e-300), name = `N = ${number(mine.norms[k])}`;
    return {
      x,
      y: y.map((density) => density / top),
      customdata: y,
      name,
      mode: "lines",
      type: "scatter",
      line: { color: colour, width: 2, shape: "hv" },
      fill: filled ? "tozeroy" : "none",
      fillcolor: faint(colour, 0.14),
      hovertemplate: `${name}<br>score %{x:.3g}<br>density %{customdata:.3g}<extra></extra>`,
    };
  };
  const rows = mine.curves.flatMap((one, k) => one.x.map((x, b) => [mine.norms[k], x, one.y[b]]));
  const yaxis = axis(t, "density over its peak", { rangemode: "tozero" });
  return {
    data: [curve(0, t.soft, false), ...(at ? [curve(at, paletteAt(0, t), true)] : [])],
    table: { head: ["N", "score", "density"], rows },
    layout: { ...legendAbove, margin: MARGIN, xaxis: axis(t, "score before softmax"), yaxis },
  };
}

function numbers(host, { model, norm }) {
  const here = ofModel(swept(data), model).filter((i) => T.at[i] === norm);
  const fixed = ofModel(rowsOf(data), model).filter((i) => T.at[i] === null);
  const cells = (i) => [T.site[i], meaning(T.metric[i]).label, T.value[i], interval(i), T.null[i], T.note[i]];
  const head = ["site", "metric", "value", "95 % interval", "null", "note"];
  host.replaceChildren(
    element("h3", {}, `${SUBJECTS[model].label} at N = ${number(norm)}`),
    plainTable(head, [...here, ...fixed].map(cells), "Numbers at this drift norm"),
  );
}

function first(found) {
  const rows = swept(found), model = T.subject[rows[0]], norms = normsOf(model);
  const metric = rows.some((i) => T.metric[i] === "mean_cosine") ? "mean_cosine" : T.metric[rows[0]];
  return { model, metric, norm: norms[Math.floor(norms.length / 2)], spacing: "linear" };
}
const heading = (view) => `${title(view.metric)} against the drift norm`;

register({
  id: "block",
  order: 70,
  leads: 80,
  name: "Block",
  title: "The untrained block",
  intro: "What a common drift of norm N, added to the inputs, does to a block before any training. A band is the " +
    "95 % interval over several draws of weights, vectors and direction.",
  wants: (found) => swept(found).length > 0,
  lead(found) {
    const view = { ...first(found), norm: null };
    return { title: () => heading(view), build: (t) => curves(view, t) };
  },
  draw(host, found) {
    const rows = swept(found), models = distinct(rows.map((i) => T.subject[i]));
    const metrics = new Set(rows.map((i) => T.metric[i]));
    const view = new View("block", first(found), { allowed: { model: () => models, metric: () => [...metrics] } });
    const bar = controls(host);
    if (models.length > 1) select(bar, "Block", options(models, (one) => SUBJECTS[one].label), view, "model");
    select(bar, "Metric", metricOptions(metrics), view, "metric");
    slider(bar, "Drift norm N", () => normsOf(view.model), view, "norm", (norm) => `N = ${number(norm)}`);
    segments(bar, "Spacing of N", options(["linear", "even"]), view, "spacing");
    const some = found.pictures.block.length > 0, box = grid(host, some);
    const made = [
      new Chart(box, {
        title: () => heading(view),
        caption: () => "the N of the slider is marked",
        build: (t) => curves(view, t),
      }),
    ];
    const caption = () => "density over all heads and draws, each curve scaled to its peak; the smallest N in grey";
    if (some) {
      made.push(new Chart(box, { title: () => "Attention scores at this N", caption, build: (t) => scores(view, t) }));
    }
    const panel = element("div", { class: "panel", "aria-live": "polite" });
    host.append(panel);
    numbers(panel, view);
    view.listen(() => {
      if (!normsOf(view.model).includes(view.norm)) view.norm = normsOf(view.model)[0];
      made.forEach((chart) => chart.refresh());
      numbers(panel, view);
    });
  },
});
