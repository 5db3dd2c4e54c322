// What taking a part of the drift away changes: bars, each with its control in random directions beside it.
import { View } from "../core/address.js";
import { bars, heightFor, nameAxis } from "../core/bars.js";
import { axis, Chart, legendAbove } from "../core/chart.js";
import { controls, options, select } from "../core/controls.js";
import { colourOf } from "../core/colours.js";
import { distinct, SUBJECTS, T } from "../core/data.js";
import { grid } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { extremes, number, shown, spaced } from "../core/text.js";

const LABELS = {
  loss_change: "change of the loss (nats)",
  kl: "KL to the untouched model (nats)",
  last_cosine_change: "change of the cosine at the last block",
  entropy_normalised_change: "change of the entropy over log m",
  max_probability_change: "change of the largest probability",
  sink_share_change: "change of the share of the first key",
};
const labelOf = (metric) => LABELS[metric] || spaced(metric);
const CONTROL = ".control";
const metricsOf = (rows) => {
  const present = new Set(rows.map((i) => T.metric[i]));
  return [...Object.keys(LABELS).filter((metric) => present.has(metric)), ...[...present].filter((m) => !LABELS[m])];
};

function changes(all, { model, metric }, t) {
  const rows = all.filter((i) => T.subject[i] === model && T.metric[i] === metric && T.site[i] !== "untouched");
  const tried = rows.filter((i) => !T.site[i].endsWith(CONTROL)), colours = colourOf(model, t);
  const controlled = rows.filter((i) => T.site[i].endsWith(CONTROL));
  const names = (list) => list.map((i) => shown(spaced(T.site[i].replace(CONTROL, "")).replace("@", " × ")));
  const traces = [bars(tried, names(tried), { colours, name: "intervention", t })];
  if (controlled.length) {
    traces.push(bars(controlled, names(controlled), { colours, name: "control: random directions", hollow: true, t }));
  }
  const zero = { zeroline: true, zerolinecolor: t.soft, zerolinewidth: 1.2 };
  return {
    data: traces,
    height: heightFor(tried.length, 52),
    words: extremes(tried, labelOf(metric)),
    table: rowTable(rows),
    layout: {
      ...legendAbove,
      margin: { l: 20, r: 20, t: 44, b: 46 },
      xaxis: axis(t, labelOf(metric), zero),
      yaxis: nameAxis(t, traces),
      barmode: "group",
      bargap: 0.35,
    },
  };
}

const first = (rows) => ({ model: T.subject[rows[0]], metric: metricsOf(rows)[0] });

function caption(rows, { model }) {
  const loss = rows.find((i) => T.subject[i] === model && T.site[i] === "untouched" && T.metric[i] === "loss");
  const untouched = loss === undefined ? "" : ` Untouched, the loss is ${number(T.value[loss])} nats.`;
  return `Against the untouched model ${SUBJECTS[model].label}.${untouched}`;
}

register({
  id: "interventions",
  order: 80,
  leads: 60,
  name: "Interventions",
  title: "What the drift is for",
  intro: "Part of the drift is removed inside the model and, as a control, as much in random directions. What " +
    "changes beyond the control is what the drift was for.",
  wants: (found) => found.study.has("intervene"),
  lead(found) {
    const rows = found.study.get("intervene"), view = first(rows);
    return {
      title: () => labelOf(view.metric).replace(/^./, (letter) => letter.toUpperCase()),
      caption: () => caption(rows, view),
      height: 300,
      build: (t) => changes(rows, view, t),
    };
  },
  draw(host, found) {
    const rows = found.study.get("intervene"),
      metrics = metricsOf(rows),
      models = distinct(rows.map((i) => T.subject[i]));
    const view = new View("interventions", first(rows), { allowed: { metric: () => metrics, model: () => models } });
    const bar = controls(host);
    if (models.length > 1) select(bar, "Model", options(models, (one) => SUBJECTS[one].label), view, "model");
    select(bar, "What changes", options(metrics, labelOf), view, "metric");
    const chart = new Chart(grid(host), {
      title: () => labelOf(view.metric).replace(/^./, (letter) => letter.toUpperCase()),
      caption: () => caption(rows, view),
      height: 300,
      build: (t) => changes(rows, view, t),
    });
    view.listen(() => chart.refresh());
  },
});
