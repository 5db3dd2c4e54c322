// Theme, sections, links, print.
const asked = window.matchMedia("(prefers-color-scheme: dark)");
const remembered = { get: () => { try { return localStorage.getItem("anisoscope-theme"); } catch { return null; } }, set: (value) => { try { localStorage.setItem("anisoscope-theme", value); } catch { /* a file opened without storage keeps no memory */ } } };
let chosen = remembered.get();

function applyTheme() {
  const now = chosen || (asked.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  document.getElementById("theme").setAttribute("aria-label", `Colours: ${now}. Switch to ${now === "dark" ? "light" : "dark"}`);
  charts.forEach((chart) => chart.refresh());
}
document.getElementById("theme").addEventListener("click", () => {
  chosen = theme().dark ? "light" : "dark";
  remembered.set(chosen);
  applyTheme();
});
asked.addEventListener("change", applyTheme);
applyTheme();

[startLayers, startDrift, startSpectrum, startDimensions, startHeads, startSeries, startBlock, startNorms, startCalibrate, startNull, startCompare, startTable].forEach((start) => start());

// The list of sections follows what is there, and marks where the reader is.
const sections = [...document.querySelectorAll("main > section:not([hidden])")];
const links = new Map(sections.map((section) => [section.id, element("a", { href: `#${section.id}` }, section.dataset.name)]));
document.getElementById("sections").replaceChildren(...[...links.values()].map((link) => element("li", {}, link)));
const inView = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (!entry.isIntersecting) return;
  links.forEach((link, id) => { if (id === entry.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
  const link = links.get(entry.target.id), nav = link.closest("nav");
  nav.scrollLeft = link.offsetLeft - nav.offsetLeft - nav.clientWidth / 2 + link.clientWidth / 2;
}), { rootMargin: "-15% 0px -75% 0px" });
sections.forEach((section) => inView.observe(section));
if (location.hash.length > 1) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();

// On paper everything is drawn, in light colours and as wide as the page.
let before = null;
window.addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  charts.forEach((chart) => { chart.drawn = true; chart.draw(); if (chart.plot.layout) window.Plotly.relayout(chart.plot, { width: 660 }); });
});
window.addEventListener("afterprint", () => {
  document.documentElement.dataset.theme = before;
  charts.forEach((chart) => { if (chart.plot.layout) window.Plotly.relayout(chart.plot, { width: null, autosize: true }); chart.refresh(); });
});
