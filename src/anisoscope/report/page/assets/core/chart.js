// A chart: drawn when it comes into view, exported in light colours, readable as a table.
import { colourOf, LIGHT, theme } from "./colours.js";
import { SUBJECTS } from "./data.js";
import { drawing, element } from "./dom.js";
import { csv, download } from "./files.js";
import { View } from "./address.js";
import { plainTable } from "./table.js";
import { number, shown } from "./text.js";

export const charts = [];
const DASHES = { solid: "", dash: "5 3", dot: "2 2", dashdot: "6 2 2 2" };
const FONT = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif";

// Models that the reader switched off, everywhere.
const page = new View("page", { hide: "" });
const hidden = () => new Set(page.hide ? page.hide.split(",").map(Number) : []);
page.listen(() => refreshAll());
export const refreshAll = () => charts.forEach((chart) => chart.refresh());
export const visible = (subjects) => [...subjects].filter((subject) => !hidden().has(subject));
const hide = (subjects) => page.change({ hide: [...subjects].sort((a, b) => a - b).join(",") });

export function plotly() {
  // The library is a part of the page that runs when the first chart is drawn.
  if (!globalThis.Plotly) {
    document.head.append(element("script", {}, document.getElementById("plotly").textContent));
  }
  return globalThis.Plotly;
}

const chartOf = new WeakMap(); // plot → chart
const watcher = new IntersectionObserver(
  (entries) => entries.forEach((entry) => entry.isIntersecting && chartOf.get(entry.target).show()),
  { rootMargin: "300px" },
);

export function axis(t, title, more = {}) {
  return {
    title: { text: title, font: { size: 12, color: t.soft }, standoff: 8 },
    gridcolor: t.grid,
    linecolor: t.line,
    tickcolor: t.line,
    zeroline: false,
    automargin: true,
    tickfont: { size: 11, color: t.soft },
    showline: true,
    ticks: "",
    exponentformat: "e", // powers are set with style attributes, which the page's policy forbids
    ...more,
  };
}

export const PERCENT = ".3~p"; // 0.5%, 12.5%, 100%: no two ticks read alike
// Layers, steps and heads are counted: no ticks between them.
export const whole = (most) => ({ dtick: Math.max(1, Math.ceil(most / 12)) });
// Powers of ten; where there are fewer than three of them, 2 and 5 between them too, each written in full.
export function logarithmic(values) {
  const known = values.filter((value) => value > 0), least = Math.min(...known), most = Math.max(...known);
  if (most >= 1000 * least) return { type: "log", dtick: 1 };
  const powers = [-1, 0, 1, 2, 3].map((k) => k + Math.floor(Math.log10(least)));
  const tickvals = powers.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
  return { type: "log", tickvals, ticktext: tickvals.map(number) };
}
export const legendAbove = { showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 } };

export class Chart {
  // title() and caption() are texts; build(theme) gives { data, layout, table, words, subjects, same }, or null where
  // there is nothing to draw; `same`: subjects whose line lies on that of another; click(point) follows a click.
  constructor(host, { title, caption = () => "", height = 380, build, click = null, level = "h3" }) {
    this.title = title;
    this.captionText = caption;
    this.height = height;
    this.build = build;
    this.click = click;
    this.drawn = false;
    this.stale = true;
    this.plot = element("div", { class: "plot", role: "img" });
    this.plot.style.minHeight = `${height}px`;
    chartOf.set(this.plot, this);
    this.heading = element(level);
    this.caption = element("figcaption");
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Models shown" });
    this.details = element("details", { ontoggle: () => this.fillTable() }, element("summary", {}, "Data as a table"));
    const header = element("header", {}, this.heading, this.tools());
    host.append(element("figure", {}, header, this.caption, this.legend, this.plot, this.details));
    this.say();
    charts.push(this);
    watcher.observe(this.plot);
  }

  tools() {
    const tool = (kind, what) => {
      const about = { type: "button", "aria-label": `${what} of this chart`, onclick: () => this.save(kind) };
      return element("button", about, kind.toUpperCase());
    };
    return element("div", { class: "tools" }, tool("svg", "SVG"), tool("png", "PNG"), tool("csv", "Data as CSV"));
  }

  say() {
    this.heading.textContent = this.title();
    this.caption.textContent = this.captionText();
    this.caption.hidden = !this.caption.textContent;
  }

  show() {
    this.drawn = true;
    if (this.stale) this.draw();
  }

  refresh() {
    this.stale = true;
    this.say();
    if (this.drawn) this.draw();
  }

  draw() {
    this.stale = false;
    const t = theme(), built = this.build(t);
    this.built = built;
    this.fillLegend(built?.subjects || [], built?.same);
    this.plot.querySelector(".empty")?.remove();
    if (!built?.data.length) return this.drawNothing();
    this.plot.style.minHeight = `${built.height || this.height}px`;
    this.plot.setAttribute("aria-label", `${this.title()}. ${built.words || ""} The data follow as a table.`);
    const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
    plotly().react(this.plot, built.data, this.layout(built, t), config);
    if (this.click && !this.bound) this.plot.on("plotly_click", (event) => this.click(event.points[0]));
    this.bound = true;
    if (this.details.open) this.fillTable();
  }

  drawNothing() {
    if (globalThis.Plotly && this.plot.layout) globalThis.Plotly.purge(this.plot);
    this.bound = false;
    this.plot.setAttribute("aria-label", `${this.title()}: nothing to draw for this choice`);
    this.plot.append(element("p", { class: "empty" }, "Nothing to draw for this choice."));
  }

  layout(built, t, more = {}) {
    const own = built.layout || {};
    return {
      height: built.height || this.height,
      margin: { l: 54, r: 16, t: 14, b: 46 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false,
      font: { family: FONT, size: 12, color: t.ink },
      hovermode: "closest",
      dragmode: "zoom",
      hoverlabel: { align: "left", bgcolor: t.ground, bordercolor: t.line, font: { size: 12, color: t.ink } },
      ...own,
      ...more,
      xaxis: own.xaxis || axis(t, ""),
      yaxis: own.yaxis || axis(t, ""),
    };
  }

  fillLegend(subjects, same = new Map()) {
    this.legend.hidden = subjects.length < 2;
    const keys = subjects.length < 2 ? [] : subjects.map((subject) => this.key(subject, same.get(subject)));
    this.legend.replaceChildren(...keys);
    if (subjects.length <= 6) return;
    const off = hidden(), some = subjects.some((subject) => off.has(subject));
    const all = new Set(some ? [...off].filter((one) => !subjects.includes(one)) : [...off, ...subjects]);
    this.legend.append(element("button", { type: "button", onclick: () => hide(all) }, some ? "show all" : "hide all"));
  }

  key(subject, under) {
    const off = hidden(), stroke = colourOf(subject, theme());
    const dash = { "stroke-width": 3, "stroke-dasharray": DASHES[SUBJECTS[subject].dash] };
    const line = drawing("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke, ...dash });
    const toggle = () => {
      if (!off.delete(subject)) off.add(subject);
      hide(off);
      this.legend.querySelector(`[data-subject="${subject}"]`)?.focus();
    };
    const about = { type: "button", "aria-pressed": String(!off.has(subject)), "data-subject": subject };
    const sample = drawing("svg", { "aria-hidden": "true" }, line);
    const as = under === undefined ? "" : ` (on the line of ${SUBJECTS[under].label})`;
    return element("button", { ...about, onclick: toggle }, sample, SUBJECTS[subject].label + as);
  }

  fillTable() {
    this.details.querySelector(".scroll")?.remove();
    const table = this.details.open ? (this.built || this.build(theme()))?.table : null;
    if (table) this.details.append(plainTable(table.head, table.rows, `Data of ${this.title()}`));
  }

  async save(kind) {
    const built = this.build(LIGHT);
    const name = this.title().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
    if (!built) return;
    if (kind === "csv") {
      download(`${name}.csv`, csv(built.table.head, built.table.rows), "text/csv");
      return;
    }
    const height = (built.height || this.height) + 60;
    const layout = this.layout(built, LIGHT, {
      height,
      paper_bgcolor: "#ffffff",
      plot_bgcolor: "#ffffff",
      showlegend: (built.subjects || []).length > 1 || built.layout?.showlegend,
      title: { text: shown(this.title()), font: { size: 15 }, x: 0.02 },
      margin: { l: 60, r: 20, t: 64, b: 50 },
    });
    const size = { format: kind, width: 960, height, scale: kind === "png" ? 2 : 1 };
    download(`${name}.${kind}`, await plotly().toImage({ data: built.data, layout }, size));
  }
}
