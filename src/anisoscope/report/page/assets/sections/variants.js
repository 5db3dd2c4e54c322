// Arms of a study side by side: the mean of each over seeds with its interval, and each seed as a point.
import { View } from "../core/address.js";
import { heightFor, nameAxis } from "../core/bars.js";
import { axis, Chart } from "../core/chart.js";
import { controls, metricOptions, options, select } from "../core/controls.js";
import { colourOf, faint, symbolOf } from "../core/colours.js";
import { data, distinct, meaning, SUBJECTS, T, title } from "../core/data.js";
import { element, grid, panel } from "../core/dom.js";
import { rowTable } from "../core/files.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { barsTold, between, extremes, hover, shown } from "../core/text.js";

const DIFFERENCE = "_difference";
const rowsOf = (found) =>
  (found.study.get("variants") || []).filter((i) => {
    return T.head[i] === null && T.positions[i] === "all" && T.at[i] === null;
  });
const plain = (rows) => rows.filter((i) => !T.metric[i].endsWith(DIFFERENCE));
// A metric by block has a mean over the blocks; the loss has no site.
const sitesOf = (rows, metric) => {
  const sites = distinct(rows.filter((i) => T.metric[i] === metric).map((i) => T.site[i]));
  return sites.sort((a, b) => Number(b === "blocks") - Number(a === "blocks"));
};
const siteName = (site) => (site === "blocks" ? "mean over blocks" : site || "whole model");
const modelOf = (i) => SUBJECTS[T.subject[i]].model || SUBJECTS[T.subject[i]].label;

function arms(rows, { metric, site }, t) {
  const mine = rows.filter((i) => T.metric[i] === metric && T.site[i] === site);
  const means = mine.filter((i) => T.seed[i] === null), seeds = mine.filter((i) => T.seed[i] !== null);
  const point = (list, size, opacity) => ({
    type: "scatter",
    mode: "markers",
    x: list.map((i) => T.value[i]),
    y: list.map((i) => shown(modelOf(i))),
    text: list.map((i) => hover(i)),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      size,
      color: list.map((i) => faint(colourOf(T.subject[i], t), opacity)),
      symbol: list.map((i) => symbolOf(T.subject[i])),
    },
  });
  const reach = (side) => means.map((i) => (T[side][i] === null ? 0 : Math.abs(T[side][i] - T.value[i])));
  const ends = {
    type: "data",
    symmetric: false,
    array: reach("high"),
    arrayminus: reach("low"),
    color: t.soft,
    width: 5,
  };
  const nulls = distinct(mine.map((i) => T.null[i])).filter((value) => value !== null);
  const dotted = { color: t.soft, width: 1.2, dash: "dot" };
  const traces = [{ ...point(means, 13, 1), error_x: ends }, point(seeds, 8, 0.6)];
  return {
    data: traces,
    height: heightFor(distinct(mine.map(modelOf)).length, 44),
    words: extremes(means, meaning(metric).label),
    table: rowTable(mine),
    layout: {
      xaxis: axis(t, meaning(metric).label),
      yaxis: nameAxis(t, traces),
      shapes: nulls.length === 1
        ? [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: nulls[0], x1: nulls[0], line: dotted }]
        : [],
    },
  };
}

// What each arm changes of the metric against the control, within each seed.
function differences(host, rows, { metric, site }) {
  const found = rows.filter((i) => T.metric[i] === metric + DIFFERENCE && T.site[i] === site);
  const outside = (i) => (T.low[i] === null ? "no interval" : T.low[i] * T.high[i] > 0 ? "yes" : "no");
  const cells = found.map((i) => [modelOf(i), T.value[i], between(T.low[i], T.high[i]), outside(i), T.note[i]]);
  const head = ["arm", "difference", "95 % interval", "excludes 0?", "how"];
  host.replaceChildren();
  if (found.length) {
    panel(host, `${title(metric)}: difference from the control`, plainTable(head, cells, "Differences"));
  }
}

const order = (rows) => {
  const present = distinct(plain(rows).map((i) => T.metric[i]));
  return ["mean_cosine", "validation_loss"].find((name) => present.includes(name)) || present[0];
};
const first = (rows) => ({ metric: order(rows), site: sitesOf(rows, order(rows))[0] });
function caption(rows, { metric, site }) {
  const mine = rows.filter((i) => T.metric[i] === metric && T.site[i] === site);
  const known = mine.some((i) => T.null[i] !== null) ? "; dotted: isotropic" : "";
  return `large: mean over seeds; ${barsTold(mine)}small: each seed${known}`;
}

register({
  id: "variants",
  order: 90,
  leads: 65,
  name: "Variants",
  title: "Variants side by side",
  intro: "Models trained alike except for one part. Seeds are pairs: each change is taken within a seed. " +
    "Where many differences are tested, some intervals exclude 0 by chance: Holm's p accounts for that.",
  wants: (found) => plain(rowsOf(found)).length > 0,
  lead(found) {
    const rows = rowsOf(found), view = first(rows);
    return {
      title: () => title(view.metric),
      caption: () => caption(rows, view),
      height: 260,
      build: (t) => arms(rows, view, t),
    };
  },
  draw(host) {
    const rows = rowsOf(data), metrics = new Set(plain(rows).map((i) => T.metric[i]));
    const view = new View("variants", first(rows), { allowed: { metric: () => [...metrics] } });
    const bar = controls(host);
    select(bar, "Metric", metricOptions(metrics), view, "metric");
    select(bar, "Where", () => options(sitesOf(rows, view.metric), siteName), view, "site");
    const chart = new Chart(grid(host), {
      title: () => `${title(view.metric)}, ${siteName(view.site)}`,
      caption: () => caption(rows, view),
      height: 260,
      build: (t) => arms(rows, view, t),
    });
    view.listen(() => {
      if (!sitesOf(rows, view.metric).includes(view.site)) view.change({ site: sitesOf(rows, view.metric)[0] });
      chart.refresh();
      differences(table, rows, view);
    });
    const table = element("div", {});
    host.append(table);
    differences(table, rows, view);
  },
});
