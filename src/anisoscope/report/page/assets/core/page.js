// Theme, sections, links, print.
import { asked, follow, visit } from "./address.js";
import { Chart, charts, refreshAll } from "./chart.js";
import { theme } from "./colours.js";
import { data } from "./data.js";
import { element } from "./dom.js";
import { leading, wanted } from "./sections.js";

const root = document.documentElement;
const main = document.getElementById("main");
const system = globalThis.matchMedia("(prefers-color-scheme: dark)");

// A file that was opened without storage keeps no memory of the theme.
function remembered(value) {
  try {
    if (value) localStorage.setItem("anisoscope-theme", value);
    return localStorage.getItem("anisoscope-theme");
  } catch {
    return value ?? null;
  }
}

let chosen = remembered();
function applyTheme() {
  const now = chosen || (system.matches ? "dark" : "light");
  const button = document.getElementById("theme");
  root.dataset.theme = now;
  button.setAttribute("aria-label", `Colours: ${now}. Switch to ${now === "dark" ? "light" : "dark"}`);
  refreshAll();
}

function startTheme() {
  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme().dark ? "light" : "dark";
    remembered(chosen);
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  applyTheme();
}

function place({ id, title, name, intro }) {
  const heading = element("h2", { id: `${id}-title` }, title);
  const about = { id, "aria-labelledby": `${id}-title`, "data-name": name };
  const made = element("section", about, heading, element("p", { class: "intro" }, intro));
  main.insertBefore(made, document.getElementById("provenance"));
  return made;
}

// The chart that matters most for these runs, and the section that it comes from.
function drawLead(sections) {
  for (const section of leading(sections)) {
    const found = section.lead(data);
    if (!found) continue;
    new Chart(document.getElementById("lead"), { ...found, level: "h2" });
    return section;
  }
  document.getElementById("lead").remove();
  return null;
}

// Sections are filled one after the other while the reader looks at the first screen; their charts are drawn when they
// come into view. Whoever follows a link into the page finds everything before it in place.
const waiting = [];
function fillUpTo(id) {
  const all = id === null || id === "provenance";
  const count = all ? waiting.length : waiting.findIndex((one) => one.section.id === id) + 1;
  for (const { section, host } of waiting.splice(0, count)) section.draw(host, data, section === leader);
}

function fillLater() {
  if (!waiting.length) return;
  const soon = globalThis.requestIdleCallback || ((work) => setTimeout(work, 50));
  soon(() => {
    if (waiting.length) fillUpTo(waiting[0].section.id);
    fillLater();
  });
}

// Where a link led: it stands in the address until the reader moves on, also on a page too short to scroll there.
let aimed = null;
const links = new Map();

function goto(id) {
  const target = document.getElementById(id);
  if (!target) return;
  fillUpTo(id);
  aimed = id;
  target.scrollIntoView();
  if (links.has(id)) mark(id);
}

function mark(id) {
  for (const [one, link] of links) {
    if (one === id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const link = links.get(id), nav = link.closest("nav");
  nav.scrollLeft = link.offsetLeft - nav.offsetLeft - nav.clientWidth / 2 + link.clientWidth / 2;
}

// The list of sections follows what is there, and marks where the reader is.
function startNavigation() {
  const sections = [...document.querySelectorAll("main > section")];
  for (const one of sections) {
    links.set(one.id, element("a", { href: `#${one.id}` }, one.getAttribute("data-name")));
  }
  document.getElementById("sections").replaceChildren(...[...links.values()].map((link) => element("li", {}, link)));
  document.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest('a[href^="#"]');
    const id = link?.getAttribute("href").slice(1);
    if (!links.has(id)) return;
    event.preventDefault();
    visit(id);
    goto(id);
  });
  const watch = new IntersectionObserver((entries) => {
    const entered = entries.find((entry) => entry.isIntersecting);
    if (!entered || aimed) return;
    mark(entered.target.id);
    visit(entered.target.id, { replace: true });
  }, { rootMargin: "-15% 0px -75% 0px" });
  sections.forEach((section) => watch.observe(section));
  for (const move of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    document.addEventListener(move, () => (aimed = null), { capture: true, passive: true });
  }
}

// On paper everything is drawn, in light colours and as wide as the page.
function startPrint() {
  let before = null;
  globalThis.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    fillUpTo(null);
    for (const chart of charts) {
      chart.drawn = true;
      chart.draw();
      if (chart.plot.layout) globalThis.Plotly.relayout(chart.plot, { width: 660 });
    }
  });
  globalThis.addEventListener("afterprint", () => {
    root.dataset.theme = before;
    for (const chart of charts) {
      if (chart.plot.layout) globalThis.Plotly.relayout(chart.plot, { width: null, autosize: true });
      chart.refresh();
    }
  });
}

startTheme();
const sections = wanted(data);
const leader = drawLead(sections);
waiting.push(...sections.map((section) => ({ section, host: place(section) })));
const first = asked();
follow(goto);
startNavigation();
startPrint();
if (first && first !== "summary") goto(first);
fillLater();
