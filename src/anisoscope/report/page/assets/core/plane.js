// Queries and keys of a head on the plane that holds most of them over all steps: a part of the section `series`.
import { View } from "./address.js";
import { axis, Chart, legendAbove } from "./chart.js";
import { controls, options, select } from "./controls.js";
import { faint, paletteAt } from "./colours.js";
import { distinct, SUBJECTS } from "./data.js";
import { grid } from "./dom.js";
import { number, wrapped } from "./text.js";

const SIDES = [["query", "queries", "circle"], ["key", "keys", "square"]];
const percent = (value) => `${Math.round(100 * value)} %`;

// Sampled vectors; hovering one shows the text that it was computed from, where the run kept texts.
function sample(plane, side, at, head, colour, name) {
  const points = plane[`${side}_points`]?.[at]?.[head] || [], texts = plane[`${side}_texts`]?.[at]?.[head];
  const told = texts &&
    { text: texts.map((text) => wrapped(text ?? "no text")), hovertemplate: "%{text}<extra></extra>" };
  return {
    x: points.map((point) => point[0]),
    y: points.map((point) => point[1]),
    mode: "markers",
    type: "scatter",
    name: `${name}, sample`,
    marker: { size: 5, color: faint(colour, 0.55) },
    showlegend: false,
    ...(told || { hoverinfo: "skip" }),
  };
}

function path(plane, side, at, head, colour, name, symbol) {
  const means = plane[side].map((heads) => heads[head]);
  return {
    x: means.map((point) => point[0]),
    y: means.map((point) => point[1]),
    mode: "lines+markers",
    type: "scatter",
    name: `mean of ${name}`,
    line: { color: colour, width: 1.6 },
    marker: { color: colour, size: means.map((_, k) => (k === at ? 13 : 4)), symbol },
    text: plane.steps.map((step) => `mean of ${name}<br>step ${number(step)}`),
    hovertemplate: "%{text}<br>(%{x:.3g}, %{y:.3g})<extra></extra>",
  };
}

function build(plane, head, step, t) {
  if (!plane || head >= plane.query[0].length) return null;
  const at = Math.max(0, plane.steps.findLastIndex((one) => one <= step)), traces = [], rows = [];
  SIDES.forEach(([side, name, symbol], k) => {
    const colour = paletteAt(k, t), means = path(plane, side, at, head, colour, name, symbol);
    traces.push(sample(plane, side, at, head, colour, name), means);
    plane.steps.forEach((one, j) => rows.push([name, one, means.x[j], means.y[j]]));
  });
  const share = plane.share[head], zero = { zeroline: true, zerolinecolor: t.line };
  return {
    data: traces,
    table: { head: ["mean of", "step", "x", "y"], rows },
    layout: {
      ...legendAbove,
      margin: { l: 54, r: 16, t: 40, b: 46 },
      xaxis: axis(t, `first direction (${percent(share[0])} of the energy)`, zero),
      yaxis: axis(t, `second (${percent(share[1])})`, { ...zero, scaleanchor: "x" }),
    },
  };
}

export function drawPlane(host, series, planes) {
  if (!planes.length) return null;
  const mine = () => planes.filter((plane) => plane.run === SUBJECTS[series.model].run);
  const first = mine()[0] || planes[0];
  const view = new View("plane", { seed: first.series, layer: first.site, head: 0 });
  const bar = controls(host), seeds = distinct(planes.map((plane) => plane.series));
  if (seeds.length > 1) select(bar, "Seed", options(seeds), view, "seed");
  select(bar, "Layer", () => options(distinct(mine().map((plane) => plane.site))), view, "layer");
  select(bar, "Head", () => options([...(mine()[0]?.query[0].keys() || [])]), view, "head");
  const chart = new Chart(grid(host), {
    title: () => `Queries and keys of ${view.layer}, head ${view.head}`,
    caption: () =>
      "projected on the first two directions of all steps together; lines are the paths of the means, points a " +
      "sample at the step of the slider",
    height: 480,
    build: (t) => {
      const plane = mine().find((one) => one.site === view.layer && one.series === view.seed);
      return build(plane, view.head, series.step, t);
    },
  });
  view.listen(() => chart.refresh());
  return chart;
}
