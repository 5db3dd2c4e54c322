// How many dimensions are in use: spectral metrics by layer, both kinds of anisotropy at once, eigenvalues.
import { View } from "../core/address.js";
import { axis, Chart, logarithmic, PERCENT, visible } from "../core/chart.js";
import { controls, metricOptions, options, segments, select } from "../core/controls.js";
import { colourOf, depthColour, symbolOf } from "../core/colours.js";
import { data, distinct, meaning, pick, SUBJECTS, T, title } from "../core/data.js";
import { grid } from "../core/dom.js";
import { register } from "../core/sections.js";
import { hover, labelOf, number, shown } from "../core/text.js";
import { layerChart } from "../core/layer_chart.js";

const RATIO = "participation_ratio_unbiased";
const spectral = (found) => new Set([...found.layered.keys()].filter((name) => meaning(name).group === "spectrum"));

function bySite(metric, subject) {
  return new Map((pick(data.layered.get(metric)).get(subject) || []).map((i) => [`${T.site[i]}\n${T.seed[i]}`, i]));
}

// To the right: drift; downwards: few dimensions. The thresholds are those of the verdict.
function twoKinds(t) {
  const rows = [], traces = [], all = [...pick(data.layered.get(RATIO)).keys()];
  for (const subject of visible(all)) {
    const cosines = bySite("mean_cosine", subject),
      ratios = bySite(RATIO, subject),
      sizes = bySite("dimension", subject);
    const places = [...cosines.keys()].filter((place) => ratios.has(place) && sizes.has(place));
    const used = (place) => T.value[ratios.get(place)], size = (place) => T.value[sizes.get(place)];
    const cosine = (place) => T.value[cosines.get(place)];
    const say = (place) =>
      `${hover(cosines.get(place))}<br>dimensions: ${number(used(place))} of ${number(size(place))}`;
    traces.push({
      x: places.map(cosine),
      y: places.map((place) => used(place) / size(place)),
      text: places.map(say),
      name: labelOf(subject),
      hovertemplate: "%{text}<extra></extra>",
      mode: "markers",
      type: "scatter",
      cliponaxis: false,
      marker: { color: colourOf(subject, t), size: 9, symbol: symbolOf(subject) },
    });
    const label = SUBJECTS[subject].label;
    rows.push(...places.map((place) => [label, place.split("\n")[0], cosine(place), used(place), size(place)]));
  }
  const threshold = (place) => ({ type: "line", line: { color: t.soft, width: 1, dash: "dot" }, ...place });
  return {
    data: traces,
    subjects: all,
    table: { head: ["model", "site", "mean_cosine", RATIO, "dimension"], rows },
    layout: {
      xaxis: axis(t, "average cosine", { rangemode: "tozero" }),
      yaxis: axis(t, "share of dimensions in use", { rangemode: "tozero", tickformat: PERCENT }),
      shapes: [
        threshold({ yref: "paper", x0: 0.1, x1: 0.1, y0: 0, y1: 1 }),
        threshold({ xref: "paper", x0: 0, x1: 1, y0: 0.1, y1: 0.1 }),
      ],
    },
  };
}

const ownerOf = (one) => {
  const owner = one.model || SUBJECTS.find((subject) => subject.run === one.run)?.label || "";
  return data.runs.length > 1 && owner !== data.runs[one.run].label ? `${owner} · ${data.runs[one.run].label}` : owner;
};

function eigenvalues(host, spectra) {
  const names = distinct(spectra.map(ownerOf));
  const view = new View("spectrum-of", { owner: names[0] }, { allowed: { owner: () => names } });
  if (names.length > 1) select(controls(host), "Spectrum of", options(names), view, "owner");
  const mine = () => spectra.filter((one) => ownerOf(one) === view.owner);
  const chart = new Chart(grid(host), {
    title: () => "Eigenvalues of the covariance",
    caption: () => {
      const several = mine().length > 1 ? "the first site faint, the last strong; " : "";
      return `share of the variance by rank; ${several}dotted: isotropic`;
    },
    build: (t) => eigenvalueLines(mine(), t),
  });
  view.listen(() => chart.refresh());
}

function eigenvalueLines(mine, t) {
  const name = (one) => one.site + (one.step === null ? "" : `, step ${number(one.step)}`);
  const traces = mine.map((one, k) => ({
    x: one.ranks,
    y: one.shares.map((share) => (share > 1e-9 ? share : null)),
    name: shown(name(one)),
    mode: "lines+markers",
    type: "scatter",
    line: { color: depthColour(mine.length > 1 ? k / (mine.length - 1) : 0.7, t), width: 1.8 },
    marker: { size: 4 },
    hovertemplate: `${shown(name(one))}<br>rank %{x}: %{y:.3g}<extra></extra>`,
  }));
  const d = mine[0].dimension, dotted = { color: t.soft, dash: "dot", width: 1.2 };
  const hovertemplate = "isotropic: 1/d = %{y:.3g}<extra></extra>";
  traces.push({
    x: [1, d],
    y: [1 / d, 1 / d],
    mode: "lines",
    type: "scatter",
    name: "isotropic",
    line: dotted,
    hovertemplate,
  });
  const rows = mine.flatMap((one) => one.ranks.map((rank, k) => [one.site, one.step, rank, one.shares[k]]));
  const layout = {
    xaxis: axis(t, "rank", logarithmic(traces.flatMap(({ x }) => x))),
    yaxis: axis(t, "share of variance", logarithmic(traces.flatMap(({ y }) => y))),
  };
  return { data: traces, table: { head: ["site", "step", "rank", "share"], rows }, layout };
}

register({
  id: "spectrum",
  order: 30,
  name: "Spectrum",
  title: "Spectrum",
  intro:
    "How many dimensions the vectors use around their mean. This is the part of anisotropy that the cosine cannot " +
    "see, as the spectrum cannot see drift.",
  wants: (found) => spectral(found).size > 0 || found.pictures.spectrum.length > 0,
  draw(host, found) {
    const metrics = spectral(found);
    if (metrics.size) {
      const first = metrics.has(RATIO) ? RATIO : [...metrics][0];
      const view = new View("spectrum", { metric: first, scale: "linear" }, {
        allowed: { metric: () => [...metrics] },
      });
      const bar = controls(host), both = metrics.has(RATIO) && found.layered.has("mean_cosine");
      select(bar, "Measure", metricOptions(metrics).map(({ value, label }) => ({ value, label })), view, "metric");
      segments(bar, "Scale", options(["linear", "log"]), view, "scale");
      const box = grid(host, both);
      const chart = new Chart(box, {
        title: () => title(view.metric),
        caption: () => meaning(view.metric).meaning,
        build: (t) => layerChart({ metric: view.metric, log: view.scale === "log" }, t),
      });
      view.listen(() => chart.refresh());
      const caption = () => "to the right: drift; downwards: few dimensions; dotted: the thresholds of the verdict";
      if (both) new Chart(box, { title: () => "Two kinds of anisotropy", caption, build: twoKinds });
    }
    if (found.pictures.spectrum.length) eigenvalues(host, found.pictures.spectrum);
  },
});
