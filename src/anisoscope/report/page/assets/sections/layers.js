// Any metric along the sites of models.
import { View } from "../core/address.js";
import { Chart } from "../core/chart.js";
import { controls, metricOptions, segments, select } from "../core/controls.js";
import { data, meaning, pick, T, title } from "../core/data.js";
import { grid } from "../core/dom.js";
import { layerChart } from "../core/layer_chart.js";
import { seedsTold, withParts } from "../core/lines.js";
import { register } from "../core/sections.js";
import { interval } from "../core/text.js";

const PARTS = " Thin dashes: what attention adds in each block; with dots: what the MLP adds.";
const POSITIONS = { all: "all", rest: "without the first", first: "first only" };

register({
  id: "layers",
  order: 10,
  leads: 20,
  name: "Layers",
  title: "By layer",
  intro:
    "Each metric along the sites of a model; a band is its 95 % interval. Dotted: what isotropic vectors of the same " +
    "number and dimension would give, in the colour of the model where models differ.",
  wants: (found) => found.layered.size > 0,
  lead: (found) =>
    found.layered.has("mean_cosine") && {
      title: () => "Average cosine by layer",
      caption: () =>
        "over all pairs of different vectors" +
        (found.layered.get("mean_cosine").some(interval) ? ", with its 95 % interval" : "") +
        (withParts(found.layered.get("mean_cosine")) ? `.${PARTS}` : ""),
      height: 400,
      build: (t) => layerChart({ metric: "mean_cosine", mark: true }, t),
    },
  draw(host, found) {
    const metrics = new Set(found.layered.keys());
    const first = metrics.has("mean_cosine") ? "mean_cosine" : [...metrics][0];
    const allowed = { metric: () => [...metrics], positions: () => Object.keys(POSITIONS) };
    const view = new View("layers", { metric: first, positions: "all", depth: "layer" }, { allowed });
    const bar = controls(host);
    select(bar, "Metric", metricOptions(metrics), view, "metric");
    const rows = [...found.layered.values()].flat(), kinds = new Set(rows.map((i) => T.positions[i]));
    const known = Object.keys(POSITIONS).filter((kind) => kinds.has(kind));
    if (known.length > 1) {
      segments(bar, "Positions", known.map((value) => ({ value, label: POSITIONS[value] })), view, "positions");
    }
    if (pick(found.layered.get(view.metric)).size > 1) {
      const depths = ["layer", "relative"].map((value) => ({ value, label: value }));
      segments(bar, "Depth", depths, view, "depth");
    }
    const parts = withParts(rows);
    const chart = new Chart(grid(host), {
      title: () => title(view.metric),
      caption: () => {
        const seeds = seedsTold(data.layered.get(view.metric));
        return `${meaning(view.metric).meaning}${parts ? PARTS : ""}${
          seeds && ` ${seeds[0].toUpperCase()}${seeds.slice(1)}.`
        }`;
      },
      height: 430,
      build: (t) => layerChart({ ...view, relative: view.depth === "relative" }, t),
    });
    view.listen(() => chart.refresh());
  },
});
