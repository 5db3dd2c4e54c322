// Elements, themes, and a chart: drawn when it comes into view, exported in light colours, readable as a table.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const LIGHT = { ink: "#1d2126", soft: "#565d66", line: "#d9dbd6", grid: "#ecede9", ground: "#ffffff", accent: "#0064a0", dark: false };
const DARK = { ink: "#e8eaec", soft: "#a5adb6", line: "#3a4148", grid: "#252a2f", ground: "#191d21", accent: "#7cc0ec", dark: true };
const theme = () => (document.documentElement.dataset.theme === "dark" ? DARK : LIGHT);

function mix(colour, other, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const a = parts(colour), b = parts(other);
  return "#" + a.map((part, k) => Math.round(part * (1 - share) + b[k] * share).toString(16).padStart(2, "0")).join("");
}
const readable = (colour, t) => (t.dark ? mix(colour, "#ffffff", 0.32) : colour);
const colourOf = (subject, t) => readable(SUBJECTS[subject].colour, t);
const faint = (colour, opacity = 0.16) => `rgba(${[1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).join(",")},${opacity})`;
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon"];
const symbolOf = (subject) => SYMBOLS[SUBJECTS[subject].look % SYMBOLS.length];
const PALETTE = DATA.palette;
const paletteAt = (k, t) => readable(PALETTE[k % PALETTE.length], t);
const depthColour = (share, t) => (t.dark ? mix("#31586f", "#cfe9fb", share) : mix("#a9cfe8", "#053a5c", share));

const SEQUENTIAL = (t) => [[0, t.dark ? "#191d21" : "#f4f8fb"], [0.5, t.dark ? "#2b6d99" : "#7db7dc"], [1, t.dark ? "#bfe3fa" : "#054a78"]];
const DIVERGING = (t) => [[0, t.dark ? "#5fb4ea" : "#00598c"], [0.5, t.dark ? "#20252a" : "#f7f7f5"], [1, t.dark ? "#f29a5c" : "#b34e00"]];

const hiddenSubjects = new Set();
const charts = [];

function plotly() {
  if (!window.Plotly) document.head.append(element("script", {}, document.getElementById("plotly").textContent));
  return window.Plotly;
}

const watcher = new IntersectionObserver(
  (entries) => entries.forEach((entry) => { if (entry.isIntersecting) entry.target.chart.show(); }),
  { rootMargin: "300px" },
);

function axis(t, title, more = {}) {
  return {
    title: { text: title, font: { size: 12, color: t.soft }, standoff: 8 }, gridcolor: t.grid, linecolor: t.line, tickcolor: t.line,
    zeroline: false, automargin: true, tickfont: { size: 11, color: t.soft }, showline: true, ticks: "", ...more,
  };
}

class Chart {
  // build(theme) gives { data, layout, table: { head, rows }, words, subjects } or null where there is nothing to draw.
  constructor(host, { title, caption = "", height = 380, build, click = null }) {
    Object.assign(this, { title, height, build, click, drawn: false, stale: true });
    this.plot = element("div", { class: "plot", role: "img", style: `min-height:${height}px` });
    this.plot.chart = this;
    this.heading = element("h3", {}, title);
    this.caption = element("figcaption", {}, caption);
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Models shown" });
    this.details = element("details", { ontoggle: () => this.fillTable() }, element("summary", {}, "Data as a table"));
    const tool = (kind, what) => element("button", { type: "button", "aria-label": `${what} of ${title}`, onclick: () => this.save(kind) }, kind.toUpperCase());
    const tools = element("div", { class: "tools" }, tool("svg", "SVG"), tool("png", "PNG"), tool("csv", "Data as CSV"));
    this.figure = element("figure", {}, element("header", {}, this.heading, tools), this.caption, this.legend, this.plot, this.details);
    host.append(this.figure);
    charts.push(this);
    watcher.observe(this.plot);
  }

  show() { this.drawn = true; if (this.stale) this.draw(); }
  refresh() { this.stale = true; if (this.drawn) this.draw(); }

  retitle(title, caption) {
    this.title = title;
    this.heading.textContent = title;
    if (caption !== undefined) this.caption.textContent = caption;
  }

  draw() {
    this.stale = false;
    const t = theme(), built = this.build(t);
    this.built = built;
    this.fillLegend(built ? built.subjects || [] : []);
    this.plot.querySelector(".empty")?.remove();
    if (!built || !built.data.length) {
      if (window.Plotly && this.plot.layout) window.Plotly.purge(this.plot);
      this.plot.setAttribute("aria-label", `${this.title}: nothing to draw for this choice`);
      this.plot.append(element("p", { class: "empty" }, "Nothing to draw for this choice."));
      return;
    }
    this.plot.setAttribute("aria-label", `${this.title}. ${built.words || ""} The data follow as a table.`);
    plotly().react(this.plot, built.data, this.layout(built, t), { displayModeBar: false, responsive: true, doubleClick: "reset" });
    if (this.click && !this.bound) { this.plot.on("plotly_click", (event) => this.click(event.points[0])); this.bound = true; }
    if (this.details.open) this.fillTable();
  }

  layout(built, t, more = {}) {
    const own = built.layout || {};
    return {
      height: this.height, margin: { l: 54, r: 16, t: 12, b: 46 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: t.ink }, hovermode: "closest", dragmode: "zoom",
      hoverlabel: { align: "left", bgcolor: t.ground, bordercolor: t.line, font: { size: 12, color: t.ink } },
      ...own, ...more, xaxis: own.xaxis || axis(t, ""), yaxis: own.yaxis || axis(t, ""),
    };
  }

  fillLegend(subjects) {
    this.legend.replaceChildren();
    this.legend.hidden = subjects.length < 2;
    if (subjects.length < 2) return;
    const key = (subject) => {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const dash = { solid: "", dash: "5 3", dot: "2 2", dashdot: "6 2 2 2" }[SUBJECTS[subject].dash];
      for (const [name, value] of Object.entries({ x1: 0, x2: 22, y1: 5, y2: 5, stroke: colourOf(subject, theme()), "stroke-width": 3, "stroke-dasharray": dash })) line.setAttribute(name, value);
      svg.setAttribute("aria-hidden", "true");
      svg.append(line);
      return svg;
    };
    for (const subject of subjects) {
      const pressed = !hiddenSubjects.has(subject);
      this.legend.append(element("button", { type: "button", "aria-pressed": String(pressed), "data-subject": subject, onclick: () => toggleSubject(subject, this) }, key(subject), SUBJECTS[subject].label));
    }
    if (subjects.length > 6) {
      const all = subjects.some((subject) => hiddenSubjects.has(subject));
      this.legend.append(element("button", { type: "button", onclick: () => {
        subjects.forEach((subject) => (all ? hiddenSubjects.delete(subject) : hiddenSubjects.add(subject)));
        charts.forEach((chart) => chart.refresh());
      } }, all ? "show all" : "hide all"));
    }
  }

  fillTable() {
    this.details.querySelector(".scroll")?.remove();
    if (!this.details.open) return;
    const table = (this.built || this.build(theme()))?.table;
    if (table) this.details.append(plainTable(table.head, table.rows, `Data of ${this.title}`));
  }

  async save(kind) {
    const built = this.build(LIGHT), name = this.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
    if (!built) return;
    if (kind === "csv") { download(`${name}.csv`, csv(built.table.head, built.table.rows), "text/csv"); return; }
    const several = (built.subjects || []).length > 1 || built.layout?.showlegend;
    const layout = this.layout(built, LIGHT, { paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", showlegend: several, title: { text: shown(this.title), font: { size: 15 }, x: 0.02 }, margin: { l: 60, r: 20, t: 48, b: 50 } });
    layout.height = this.height + 60;
    const image = await plotly().toImage({ data: built.data, layout }, { format: kind, width: 960, height: layout.height, scale: kind === "png" ? 2 : 1 });
    download(`${name}.${kind}`, image);
  }
}

function toggleSubject(subject, chart) {
  if (!hiddenSubjects.delete(subject)) hiddenSubjects.add(subject);
  charts.forEach((one) => one.refresh());
  chart.legend.querySelector(`[data-subject="${subject}"]`)?.focus();
}

function plainTable(head, rows, name, most = 300) {
  const kinds = head.map((_, k) => (rows.some((row) => typeof row[k] === "number") ? "number" : "text"));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head.map((cell, k) => element("th", { scope: "col", class: kinds[k] }, cell)))));
  const body = element("tbody");
  for (const row of rows.slice(0, most)) {
    body.append(element("tr", {}, ...row.map((value, k) => element("td", { class: kinds[k] }, typeof value === "number" ? number(value) : value ?? "–"))));
  }
  table.append(body);
  const box = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
  if (rows.length > most) box.append(element("p", { class: "hint" }, `${rows.length - most} more rows are in the CSV.`));
  return box;
}

// -- controls -------------------------------------------------------------------------------------------------------------

function controls(host) { const made = element("div", { class: "controls" }); host.append(made); return made; }

function select(host, label, options, value, onchange) {
  const made = element("select", { "aria-label": label, onchange: () => onchange(made.value) });
  let group = null;
  for (const option of options) {
    if (option.group && group?.label !== option.group) { group = element("optgroup", { label: option.group }); made.append(group); }
    (option.group ? group : made).append(element("option", { value: option.value, selected: String(option.value) === String(value) }, option.label));
  }
  host.append(element("label", {}, label, made));
  return made;
}

let groups = 0;
function segments(host, label, options, value, onchange) {
  const name = `choice-${groups++}`;
  const box = element("div", { class: "segments" }, ...options.map((option) => element("label", {}, element("input", { type: "radio", name, value: option.value, checked: option.value === value, onchange: () => onchange(option.value) }), option.label)));
  host.append(element("fieldset", {}, element("legend", {}, label), box));
}

function slider(host, label, values, start, words, onchange) {
  const said = element("output", {}, words(values[start]));
  const made = element("input", { type: "range", "aria-label": label, min: 0, max: values.length - 1, step: 1, value: start, "aria-valuetext": words(values[start]) });
  made.addEventListener("input", () => {
    said.textContent = words(values[made.value]);
    made.setAttribute("aria-valuetext", words(values[made.value]));
    onchange(Number(made.value));
  });
  host.append(element("label", {}, label, element("span", { class: "slider" }, made, said)));
  return made;
}

function metricOptions(metrics) {
  const names = Object.keys(DATA.metrics).filter((name) => metrics.has(name));
  const titles = { direction: "Direction", spectrum: "Spectrum", neighbourhood: "Neighbourhood", counts: "Counts", attention: "Attention", block: "Block", vocabulary: "Vocabulary", other: "More" };
  return names.map((name) => ({ value: name, label: meaning(name).label, group: titles[meaning(name).group] || meaning(name).group }));
}

function open(id) { const section = document.getElementById(id); section.hidden = false; return section; }
const grid = (host, two = false) => { const made = element("div", { class: two ? "charts two" : "charts" }); host.append(made); return made; };
const visible = (found) => [...found.keys()].filter((subject) => !hiddenSubjects.has(subject));
