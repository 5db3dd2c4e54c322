// What isotropy looks like: the law of the cosine by dimension, and the null of every metric.
import { axis, Chart, legendAbove } from "../core/chart.js";
import { paletteAt } from "../core/colours.js";
import { distinct, meaning, T } from "../core/data.js";
import { grid, panel } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { number } from "../core/text.js";

function densities(pictures, t) {
  const curves = [...pictures].sort((a, b) => a.dimension - b.dimension);
  const traces = curves.map((one, k) => ({
    x: one.x,
    y: one.y,
    name: `d = ${one.dimension}`,
    mode: "lines",
    type: "scatter",
    line: { width: 2, color: paletteAt(k, t) },
    hovertemplate: `d = ${one.dimension}<br>cosine %{x:.3f}<br>density %{y:.3g}<extra></extra>`,
  }));
  const rows = curves.flatMap((one) => one.x.map((x, k) => [one.dimension, x, one.y[k]]));
  const layout = { xaxis: axis(t, "cosine"), yaxis: axis(t, "density", { rangemode: "tozero" }) };
  const margin = { l: 54, r: 16, t: 56, b: 46 };
  return {
    data: traces,
    table: { head: ["d", "cosine", "density"], rows },
    layout: { ...legendAbove, margin, ...layout },
  };
}

const law = (pictures) => ({
  title: () => "Cosine of two isotropic vectors",
  caption: () => "(1 + cos)/2 is Beta((d−1)/2, (d−1)/2): exact",
  build: (t) => densities(pictures, t),
});

register({
  id: "null",
  order: 140,
  leads: 90,
  name: "Null",
  title: "What isotropy looks like",
  intro: "How the cosine of two vectors of random direction is distributed, by dimension.",
  wants: (found) => found.study.has("null"),
  lead: (found) => found.pictures.null.length > 0 && law(found.pictures.null),
  draw(host, found) {
    const rows = found.study.get("null");
    if (found.pictures.null.length) new Chart(grid(host), law(found.pictures.null));
    const sites = distinct(rows.map((i) => T.site[i])), metrics = distinct(rows.map((i) => T.metric[i]));
    const cell = new Map(rows.map((i) => [`${T.site[i]}|${T.metric[i]}`, T.value[i]]));
    const lines = metrics.filter((metric) => metric !== "dimension")
      .map((metric) => [meaning(metric).label, ...sites.map((site) => cell.get(`${site}|${metric}`) ?? null)]);
    const names = sites.map((site) => site.replace("=", " = ")), most = Math.max(...rows.map((i) => T.n[i] ?? 0));
    const many = most > 2 ? ` of pairs, and of ${number(most)} vectors` : ""; // spectra depend on their number
    panel(host, `Isotropic values${many}`, plainTable(["", ...names], lines, "Isotropic values by dimension"));
  },
});
