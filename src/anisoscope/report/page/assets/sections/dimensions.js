// The dimensions that carry the average cosine: a map over sites, bars where there is one site.
import { View } from "../core/address.js";
import { axis, Chart, PERCENT } from "../core/chart.js";
import { controls, options, select } from "../core/controls.js";
import { colourBar, colourOf, sequential } from "../core/colours.js";
import { add, distinct, lastStep, SUBJECTS, T } from "../core/data.js";
import { grid } from "../core/dom.js";
import { register } from "../core/sections.js";
import { hover, shown } from "../core/text.js";

const MOST = 24;

function shares(found) {
  const kept = new Map();
  for (const i of found.shares) {
    const subject = T.subject[i];
    if (T.positions[i] === "all" && T.step[i] === lastStep(subject)) add(kept, subject, i);
  }
  return kept;
}

function heaviest(rows) {
  const weight = new Map();
  for (const i of rows) weight.set(T.at[i], (weight.get(T.at[i]) || 0) + Math.abs(T.value[i]));
  return [...weight].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([dimension]) => dimension);
}

function columns(rows, subject, t) {
  const sorted = [...rows].sort((a, b) => T.value[b] - T.value[a]);
  const trace = {
    type: "bar",
    x: sorted.map((i) => String(T.at[i])),
    y: sorted.map((i) => T.value[i]),
    text: sorted.map((i) => hover(i, `share of dimension ${T.at[i]}`)),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
    marker: { color: colourOf(subject, t) },
  };
  const yaxis = axis(t, "share of the cosine", { tickformat: PERCENT });
  return { data: [trace], height: 320, layout: { xaxis: axis(t, "dimension", { type: "category" }), yaxis } };
}

function map(rows, t) {
  const sites = distinct(rows.map((i) => T.site[i])), dimensions = heaviest(rows);
  const cell = new Map(rows.map((i) => [`${T.site[i]}|${T.at[i]}`, i]));
  const over = (give) => dimensions.map((at) => sites.map((site) => give(cell.get(`${site}|${at}`), at)));
  const trace = {
    type: "heatmap",
    x: sites.map(shown),
    y: dimensions.map(String),
    z: over((i) => (i === undefined ? null : T.value[i])),
    text: over((i, at) => (i === undefined ? "" : hover(i, `share of dimension ${at}`))),
    hovertemplate: "%{text}<extra></extra>",
    hoverongaps: false,
    colorscale: sequential(t),
    zmin: 0,
    xgap: 2,
    ygap: 2,
    colorbar: colourBar(t, PERCENT),
  };
  const category = { type: "category", showgrid: false };
  const yaxis = axis(t, "dimension", { ...category, autorange: "reversed", dtick: 1 });
  return { data: [trace], height: 150 + 18 * dimensions.length, layout: { xaxis: axis(t, "", category), yaxis } };
}

register({
  id: "dimensions",
  order: 40,
  name: "Dimensions",
  title: "Dimensions that carry the cosine",
  intro:
    "The average cosine is a sum over dimensions. These are the largest terms at each site, as shares of the whole; " +
    "a share above 100 % is balanced by negative terms.",
  wants: (found) => shares(found).size > 0,
  draw(host, found) {
    const kept = shares(found), subjects = [...kept.keys()];
    const view = new View("dimensions", { model: subjects[0] }, { allowed: { model: () => subjects } });
    if (subjects.length > 1) {
      select(controls(host), "Model", options(subjects, (one) => SUBJECTS[one].label), view, "model");
    }
    const chart = new Chart(grid(host), {
      title: () => "Share of the average cosine by dimension",
      caption: () =>
        distinct(kept.get(view.model).map((i) => T.site[i])).length > 1
          ? "empty where a dimension is not among the largest terms of a site"
          : "the largest terms",
      height: 320,
      build: (t) => {
        const rows = kept.get(view.model), several = distinct(rows.map((i) => T.site[i])).length > 1;
        const cells = (i) => [SUBJECTS[view.model].label, T.site[i], T.at[i], T.value[i]];
        const table = { head: ["model", "site", "dimension", "share"], rows: rows.map(cells) };
        return { ...(several ? map(rows, t) : columns(rows, view.model, t)), table };
      },
    });
    view.listen(() => chart.refresh());
  },
});
