// Sampled vectors by their texts: a picture, the nearest of the one that is chosen, and hubs.
import { View } from "../core/address.js";
import { axis, Chart } from "../core/chart.js";
import { controls, options, select } from "../core/controls.js";
import { colourOf, faint } from "../core/colours.js";
import { SUBJECTS } from "../core/data.js";
import { element, grid, panel } from "../core/dom.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { number, wrapped } from "../core/text.js";

const subjectOf = (one) => SUBJECTS.findIndex((s) => s.run === one.run && (!one.model || s.model === one.model));
const where = (site) => (site === "vectors" ? "" : ` at ${site}`); // a file of vectors has no sites
const cut = (text, most = 60) => (text.length > most ? `${text.slice(0, most)}…` : text);

function build(models, view, t) {
  const one = models[view.model], site = one.sites[view.site], colour = colourOf(subjectOf(one), t);
  const beside = new Set(site.near[view.vector]), dots = site.points.map((_, k) => k);
  const close = (k) => k !== view.vector && beside.has(site.text[k]);
  const colourOfDot = (k) => (k === view.vector || close(k) ? colour : faint(colour, 0.65));
  const trace = {
    type: "scatter",
    mode: "markers",
    x: dots.map((k) => site.points[k][0]),
    y: dots.map((k) => site.points[k][1] ?? 0),
    text: dots.map((k) => wrapped(one.texts[site.text[k]])),
    customdata: dots,
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      opacity: 1, // plotly makes dots of several sizes paler
      size: dots.map((k) => (k === view.vector ? 13 : close(k) ? 9 : 6)),
      color: dots.map(colourOfDot),
      line: { width: dots.map((k) => (k === view.vector ? 2 : 0)), color: t.ink },
    },
  };
  const rows = dots.map((k) => [one.texts[site.text[k]], ...site.points[k]]);
  return {
    data: [trace],
    words: `${dots.length} sampled vectors.`,
    table: { head: ["text", "first component", "second"], rows },
    layout: { xaxis: axis(t, "first principal component"), yaxis: axis(t, "second component") },
  };
}

function lists(host, models, view) {
  const one = models[view.model], site = one.sites[view.site], text = (k) => one.texts[k];
  const nearest = site.near[view.vector].map((k, j) => [text(k), site.cosines[view.vector][j]]);
  const hubs = site.hubs.map(([k, count]) => [text(k), count]);
  const among = `how many of ${number(site.among)} vectors have it among their 10 nearest; 10 on average`;
  const hint = (words) => element("p", { class: "hint" }, words);
  host.replaceChildren();
  const chosen = hint(`of ${text(site.text[view.vector])}`);
  panel(host, "Nearest by cosine", chosen, plainTable(["text", "cosine"], nearest, "Nearest"));
  panel(host, "Hubs", hint(among), plainTable(["text", "vectors"], hubs, "Hubs"));
}

register({
  id: "neighbours",
  order: 45,
  name: "Neighbours",
  title: "Neighbours and hubs, by text",
  intro:
    "A sample of the vectors, each with the text it was computed from (a token in brackets). The picture shows two " +
    "of many dimensions; the lists use all of them, so trust the lists.",
  wants: (found) => found.pictures.neighbours.length > 0,
  draw(host, found) {
    const models = found.pictures.neighbours, numbers = (list) => [...list.keys()];
    const last = models[0].sites.length - 1;
    const view = new View("neighbours", { model: 0, site: last, vector: 0 }, {
      allowed: {
        model: () => numbers(models),
        site: (view) => numbers(models[view.model].sites),
        vector: (view) => numbers(models[view.model].sites[view.site].text),
      },
    });
    const bar = controls(host), sites = () => models[view.model].sites;
    if (models.length > 1) {
      select(bar, "Model", options(numbers(models), (k) => SUBJECTS[subjectOf(models[k])].label), view, "model");
    }
    if (models.some((one) => one.sites.length > 1)) {
      select(bar, "Site", () => options(numbers(sites()), (k) => sites()[k].site), view, "site");
    }
    const words = (k) => cut(models[view.model].texts[sites()[view.site].text[k]]);
    select(bar, "Vector", () => options(numbers(sites()[view.site].text), words), view, "vector");
    const chart = new Chart(grid(host), {
      title: () => `Sampled vectors${where(sites()[view.site].site)}`,
      caption: () => "hover over a point to read its text, click it to see its nearest neighbours",
      height: 440,
      click: (point) => view.change({ vector: point.customdata }),
      build: (t) => build(models, view, t),
    });
    const box = grid(host, true);
    const update = () => {
      if (view.site >= sites().length) view.site = sites().length - 1;
      if (view.vector >= sites()[view.site].text.length) view.vector = 0;
      chart.refresh();
      lists(box, models, view);
    };
    view.listen(update);
    update();
  },
});
