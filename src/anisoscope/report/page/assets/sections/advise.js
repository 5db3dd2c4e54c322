// How few dimensions and bits keep the neighbours: measured and forecast, by bytes per vector.
import { View } from "../core/address.js";
import { axis, Chart, legendAbove, logarithmic } from "../core/chart.js";
import { paletteAt } from "../core/colours.js";
import { controls, options, select } from "../core/controls.js";
import { data, distinct, SUBJECTS, T } from "../core/data.js";
import { element, grid } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { barsTold } from "../core/text.js";

const WORDS = {
  raw: "as they are, leading dimensions",
  centred: "centred, principal",
  whitened: "whitened, principal",
};
const CODES = ["float32", "int8", "int4", "binary"];
const rowsOf = (run) => (data.study.get("advise") || []).filter((i) => SUBJECTS[T.subject[i]].run === run);

// {site: {metric: Map(dims → row)}} of a run.
function cells(run) {
  const found = {};
  for (const i of rowsOf(run)) {
    if (T.at[i] === null) continue;
    ((found[T.site[i]] ||= {})[T.metric[i]] ||= new Map()).set(T.at[i], i);
  }
  return found;
}

function line(site, of, metric, k, t) {
  const dims = [...of[metric].keys()], forecast = metric === "overlap_forecast", code = site.split(".")[1];
  const ends = dims.map((at) => of[metric].get(at)),
    reach = ends.map((i) => T.high[i] === null ? 0 : T.high[i] - T.value[i]);
  return {
    x: dims.map((at) => 1000 * T.value[of.memory_per_million.get(at)]),
    y: ends.map((i) => T.value[i]),
    text: dims.map((at) => `${at} dimensions, ${code}`),
    name: forecast ? `${code}, forecast` : code,
    showlegend: !forecast,
    mode: forecast ? "lines" : "lines+markers",
    type: "scatter",
    line: { color: paletteAt(k, t), width: forecast ? 1.2 : 2, dash: forecast ? "dot" : "solid" },
    ...(forecast ? {} : { error_y: { type: "data", array: reach, thickness: 1, width: 2 } }),
    hovertemplate: `%{text}<br>%{x:.0f} bytes<br>%{y:.3f}${forecast ? " forecast" : " kept"}<extra></extra>`,
  };
}

function picture(run, correction, t) {
  const found = cells(run), sites = CODES.map((code) => `${correction}.${code}`).filter((site) => found[site]);
  const lines = (metric) => sites.map((site, k) => found[site][metric] && line(site, found[site], metric, k, t));
  const rows = sites.flatMap((site) =>
    [...found[site].neighbour_overlap].map((
      [at, i],
    ) => [site, at, T.value[i], T.value[found[site].overlap_forecast.get(at)]])
  );
  const drawn = [...lines("neighbour_overlap"), ...lines("overlap_forecast")].filter(Boolean);
  return {
    data: drawn,
    table: { head: ["", "dimensions", "kept", "forecast"], rows },
    layout: {
      ...legendAbove,
      margin: { l: 54, r: 16, t: 56, b: 46 },
      xaxis: axis(t, "bytes per vector", logarithmic(drawn.flatMap((one) => one.x))),
      yaxis: axis(t, "neighbours kept", { range: [0, 1.03] }),
    },
  };
}

function numbers(host, run, correction) {
  const lines = [];
  for (const [site, of] of Object.entries(cells(run))) {
    if (!site.startsWith(`${correction}.`)) continue;
    for (const [at, i] of of.neighbour_overlap) {
      const value = (metric) => of[metric] ? T.value[of[metric].get(at)] : null;
      const more = ["overlap_forecast", "memory_per_million", "ndcg"].map(value);
      lines.push([site.split(".")[1], at, T.value[i], T.low[i], T.high[i], ...more]);
    }
  }
  const head = ["", "dimensions", "kept", "from", "to", "forecast", "GB per million", "nDCG@10"];
  const width = lines.some((line) => line[7] !== null) ? 8 : 7; // nDCG only where pairs were labelled
  const table = plainTable(head.slice(0, width), lines.map((line) => line.slice(0, width)), "Every variant");
  host.replaceChildren(element("h3", {}, `Every variant: ${WORDS[correction]}`), table);
}

register({
  id: "advise",
  order: 7,
  leads: 32,
  name: "Advice",
  title: "Dimensions, bits and centring",
  intro:
    "The share of a row's ten nearest neighbours that stays when vectors are stored in fewer dimensions and bits, " +
    "and (dotted) what a Gaussian cloud of the same mean and covariance would keep.",
  wants: (found) => found.study.has("advise"),
  draw(host, found) {
    const runs = distinct(found.study.get("advise").map((i) => SUBJECTS[T.subject[i]].run));
    const allowed = { run: () => runs, correction: () => Object.keys(WORDS) };
    const view = new View("advise", { run: runs[0], correction: "raw" }, { allowed });
    const bar = controls(host);
    if (runs.length > 1) select(bar, "Vectors", options(runs, (run) => data.runs[run].label), view, "run");
    select(bar, "Stored", options(Object.keys(WORDS), (name) => WORDS[name]), view, "correction");
    const chart = new Chart(grid(host), {
      title: () => `Neighbours kept: ${WORDS[view.correction]}`,
      caption: () => `${barsTold(rowsOf(view.run))}dotted: forecast from mean and covariance`,
      height: 420,
      build: (t) => picture(view.run, view.correction, t),
    });
    const panel = element("div", { class: "panel" });
    host.append(panel);
    numbers(panel, view.run, view.correction);
    view.listen(() => {
      chart.refresh();
      numbers(panel, view.run, view.correction);
    });
  },
});
