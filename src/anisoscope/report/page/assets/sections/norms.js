// What a norm does: the cosine after it with parts of it taken away, and the cosine that its parameters imply.
import { View } from "../core/address.js";
import { heightFor, nameAxis } from "../core/bars.js";
import { axis, Chart, visible } from "../core/chart.js";
import { controls, options, select } from "../core/controls.js";
import { colourOf, symbolOf } from "../core/colours.js";
import { ablationOf, distinct, lastStep, SUBJECTS, T, withoutAblation } from "../core/data.js";
import { element, grid, panel } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { extremes, hover, labelOf, spaced } from "../core/text.js";

const NAMES = {
  as_it_is: "as it is",
  without_bias: "without bias",
  unit_gain: "unit gain",
  mean_removed: "mean removed before",
};
const here = (i) => T.step[i] === lastStep(T.subject[i]) && T.positions[i] === "all";
const ablated = (found) =>
  found.ablations.filter((i) => here(i) && ablationOf(T.site[i]) && T.metric[i] === "mean_cosine");
const parameters = (found) => found.ablations.filter((i) => here(i) && !ablationOf(T.site[i]));

function points(rows, t) {
  const all = distinct(rows.map((i) => T.subject[i]));
  const traces = visible(all).map((subject) => {
    const mine = rows.filter((i) => T.subject[i] === subject);
    const reach = (side) => mine.map((i) => Math.abs((T[side][i] ?? T.value[i]) - T.value[i]));
    const ends = { array: reach("high"), arrayminus: reach("low"), color: t.soft, thickness: 1.2, width: 4 };
    return {
      x: mine.map((i) => T.value[i]),
      y: mine.map((i) => NAMES[ablationOf(T.site[i])]),
      text: mine.map((i) => hover(i)),
      hovertemplate: "%{text}<extra></extra>",
      type: "scatter",
      mode: "markers",
      name: labelOf(subject),
      marker: { size: 12, color: colourOf(subject, t), symbol: symbolOf(subject) },
      error_x: { type: "data", symmetric: false, ...ends },
    };
  });
  const zero = { zeroline: true, zerolinecolor: t.soft };
  return {
    data: traces,
    subjects: all,
    height: heightFor(4, 40),
    words: extremes(rows, "average cosine"),
    table: rowTable(rows),
    layout: { xaxis: axis(t, "average cosine", zero), yaxis: nameAxis(t, traces) },
  };
}

// One line for each norm of each model, its parameters side by side.
function parameterTable(rows) {
  const metrics = distinct(rows.map((i) => T.metric[i])), lines = new Map();
  for (const i of rows) {
    const key = `${T.subject[i]}\n${T.site[i]}`;
    lines.set(key, { ...lines.get(key), [T.metric[i]]: T.value[i] });
  }
  const several = distinct(rows.map((i) => T.subject[i])).length > 1;
  const cells = [...lines].map(([key, values]) => {
    const [subject, site] = key.split("\n");
    const names = several ? [SUBJECTS[subject].label, site] : [site];
    return [...names, ...metrics.map((metric) => values[metric] ?? null)];
  });
  return plainTable([...(several ? ["model"] : []), "norm", ...metrics.map(spaced)], cells, "Parameters of norms");
}

// The norms that were measured, and those inside blocks on request.
function parameterTables(rows) {
  const measured = rows.filter((i) => !/block\.\d+\./.test(T.site[i])),
    inside = rows.filter((i) => !measured.includes(i));
  if (!measured.length || !inside.length) return [parameterTable(rows)];
  const summary = element("summary", {}, "Norms inside the blocks");
  return [parameterTable(measured), element("details", {}, summary, parameterTable(inside))];
}

register({
  id: "norms",
  order: 75,
  name: "Norms",
  title: "What the norms do",
  intro: "Average cosine after a norm as the model has it, and with parts of the norm removed.",
  wants: (found) => ablated(found).length + parameters(found).length > 0,
  draw(host, found) {
    const rows = ablated(found), others = parameters(found);
    if (rows.length) {
      const sites = distinct(rows.map((i) => withoutAblation(T.site[i])));
      const view = new View("norms", { site: sites.at(-1) }, { allowed: { site: () => sites } });
      if (sites.length > 1) select(controls(host), "Norm after", options(sites), view, "site");
      const chart = new Chart(grid(host), {
        title: () => `Average cosine after ${view.site.endsWith("norm") ? "" : "the norm of "}${view.site}`,
        caption: () => "all pairs of a seeded sample of the vectors",
        height: 270,
        build: (t) => points(rows.filter((i) => withoutAblation(T.site[i]) === view.site), t),
      });
      view.listen(() => chart.refresh());
    }
    if (!others.length) return;
    panel(host, "Gains, biases, and the cosine that they imply", ...parameterTables(others));
  },
});
