// Vocabulary matrices of models or checkpoints: any metric, one bar for each matrix, raw and centred; and the tokens.
import { View } from "../core/address.js";
import { bars, heightFor, nameAxis, nullTicks } from "../core/bars.js";
import { axis, Chart, legendAbove } from "../core/chart.js";
import { controls, metricOptions, options, select } from "../core/controls.js";
import { faint, paletteAt } from "../core/colours.js";
import { by, distinct, meaning, SUBJECTS, T, title } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { extremes, number, shown } from "../core/text.js";

const PREFERRED = ["partition_one_sided", "partition_both", "mean_cosine"];
const rowsOf = (found) => {
  const kept = (i) => T.positions[i] === "all" && T.at[i] === null && T.metric[i] !== "cosine_share";
  return (found.study.get("vocabulary") || []).filter(kept);
};
const matrix = (site) => site.replace(/^vocabulary\./, "").replace(".", ", ");

function build(all, metric, t) {
  const rows = all.filter((i) => T.metric[i] === metric), models = distinct(rows.map((i) => T.subject[i]));
  const steps = distinct(rows.map((i) => `${T.subject[i]} ${T.step[i]}`)).length > models.length;
  const name = (i) => shown(SUBJECTS[T.subject[i]].label + (steps ? `, step ${number(T.step[i])}` : ""));
  const sites = [...by(rows, "site")], traces = [], label = meaning(metric).label;
  sites.forEach(([site, mine], k) => {
    traces.push(bars(mine, mine.map(name), { colours: paletteAt(k, t), name: shown(matrix(site)), t }));
  });
  const nulls = sites.length === 1 ? nullTicks(rows, rows.map(name), t) : [];
  const places = distinct(rows.map(name)).length;
  return {
    data: [...traces, ...nulls],
    height: heightFor(places, 26 + 16 * sites.length),
    words: extremes(rows, label),
    table: rowTable(rows),
    layout: {
      ...legendAbove,
      margin: { l: 20, r: 20, t: 44, b: 46 },
      xaxis: axis(t, label),
      yaxis: nameAxis(t, traces),
      barmode: "group",
      bargap: 0.3,
    },
  };
}

// Rows of a matrix on its first two singular directions; the cross is the origin.
function scattered(cloud, t) {
  const told = cloud.texts && cloud.texts.map((text) => shown(text === null ? "no token" : `“${text}”`));
  const trace = {
    type: "scatter",
    mode: "markers",
    x: cloud.points.map((point) => point[0]),
    y: cloud.points.map((point) => point[1]),
    marker: { size: cloud.points.length > 300 ? 4 : 7, color: faint(paletteAt(0, t), 0.6) },
    ...(told ? { text: told, hovertemplate: "%{text}<extra></extra>" } : { hoverinfo: "skip" }),
  };
  const origin = { type: "scatter", mode: "markers", x: [0], y: [0], hoverinfo: "skip" };
  const rows = cloud.points.map((point, k) => [cloud.texts?.[k] ?? null, ...point]);
  return {
    data: [trace, { ...origin, marker: { symbol: "cross-thin", size: 14, line: { width: 2, color: t.ink } } }],
    words: `${cloud.points.length} rows of the matrix.`,
    table: { head: ["token", "first direction", "second"], rows },
    layout: { xaxis: axis(t, "first singular direction"), yaxis: axis(t, "second") },
  };
}

function drawTokens(host, clouds) {
  const name = ({ site, of }) => `${matrix(site)}${of}`;
  const view = new View("tokens", { at: clouds.length - 1 }, { allowed: { at: () => [...clouds.keys()] } });
  if (clouds.length > 1) {
    select(controls(host), "Matrix", options([...clouds.keys()], (k) => name(clouds[k])), view, "at");
  }
  const chart = new Chart(grid(host), {
    title: () => `Tokens: ${name(clouds[view.at])}`,
    caption: () =>
      `${number(clouds[view.at].points.length)} rows; the cross is the origin: rows that lie to one side of it drift`,
    height: 440,
    build: (t) => scattered(clouds[view.at], t),
  });
  view.listen(() => chart.refresh());
}

const first = (rows) => PREFERRED.find((name) => rows.some((i) => T.metric[i] === name)) || T.metric[rows[0]];

register({
  id: "vocabulary",
  order: 100,
  leads: 70,
  name: "Vocabulary",
  title: "Vocabulary matrices",
  intro:
    "The rows of the input and the output vocabulary as vectors, as they are and with their mean removed. I(W) is 1 " +
    "for rows that favour no direction.",
  wants: (found) => rowsOf(found).length > 0,
  lead(found) {
    const rows = rowsOf(found), metric = first(rows);
    return { title: () => title(metric), caption: () => meaning(metric).meaning, build: (t) => build(rows, metric, t) };
  },
  draw(host, found) {
    const rows = rowsOf(found), metrics = new Set(rows.map((i) => T.metric[i]));
    const view = new View("vocabulary", { metric: first(rows) }, { allowed: { metric: () => [...metrics] } });
    select(controls(host), "Metric", metricOptions(metrics), view, "metric");
    const chart = new Chart(grid(host), {
      title: () => title(view.metric),
      caption: () => meaning(view.metric).meaning,
      height: 260,
      build: (t) => build(rows, view.metric, t),
    });
    view.listen(() => chart.refresh());
    if (found.pictures.vocabulary.length) drawTokens(host, found.pictures.vocabulary);
  },
});
