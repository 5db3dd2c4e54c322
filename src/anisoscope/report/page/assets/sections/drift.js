// Average cosine against drift, one point for each site, and the tests over layers.
import { View } from "../core/address.js";
import { axis, Chart, visible } from "../core/chart.js";
import { controls, segments } from "../core/controls.js";
import { colourOf, faint, symbolOf } from "../core/colours.js";
import { data, distinct, pick, SUBJECTS, T } from "../core/data.js";
import { element, grid, panel } from "../core/dom.js";
import { apart, linesOf } from "../core/lines.js";
import { register } from "../core/sections.js";
import { plainTable } from "../core/table.js";
import { hover, labelOf, number } from "../core/text.js";

const WORDS = { drift_ratio: "drift ratio", drift_norm: "drift norm" };
const placeOf = (i) => `${T.site[i]}\n${T.seed[i]}`;

function joined(against) {
  const found = new Map(), others = pick(data.layered.get(against));
  for (const [subject, rows] of pick(data.layered.get("mean_cosine"))) {
    const at = new Map((others.get(subject) || []).map((i) => [placeOf(i), i]));
    const pairs = rows.filter((i) => at.has(placeOf(i))).map((i) => [i, at.get(placeOf(i))]);
    if (pairs.length) found.set(subject, pairs);
  }
  return found;
}

function scatter(against, t) {
  const found = joined(against), subjects = visible(found.keys());
  const traces = subjects.map((subject) => {
    const pairs = found.get(subject), colour = colourOf(subject, t);
    const several = linesOf(pairs.map(([i]) => i)).size > 1;
    return {
      subject,
      fill: "none",
      x: pairs.map(([, j]) => T.value[j]),
      y: pairs.map(([i]) => T.value[i]),
      name: labelOf(subject),
      text: pairs.map(([i, j]) => `${hover(i)}<br>${WORDS[against]}: ${number(T.value[j])}`),
      hovertemplate: "%{text}<extra></extra>",
      mode: pairs.length > 1 && !several ? "lines+markers" : "markers",
      type: "scatter",
      line: { color: faint(colour, 0.35), width: 1 },
      cliponaxis: false,
      marker: { color: colour, size: 9, symbol: symbolOf(subject) },
    };
  });
  const cells = ([i, j]) => [T.site[i], T.value[i], T.low[i], T.high[i], T.value[j], T.low[j], T.high[j], T.n[i]];
  const rows = subjects.flatMap((subject) =>
    found.get(subject).map((pair) => [SUBJECTS[subject].label, ...cells(pair)])
  );
  const head = ["model", "site", "mean_cosine", "low", "high", against, `${against}_low`, `${against}_high`, "n"];
  const xaxis = axis(t, WORDS[against], { rangemode: "tozero" });
  const layout = { xaxis, yaxis: axis(t, "average cosine", { rangemode: "tozero" }) };
  return { data: traces, subjects: [...found.keys()], same: apart(traces), table: { head, rows }, layout };
}

// Student's t is infinite where a correlation is exactly ±1; among n! orders no p is below 2/n!.
function floored(p, n) {
  const orders = Array.from({ length: n }, (_, k) => k + 1).reduce((product, k) => product * k, 1);
  if (p === 0) return `< ${number(2 / orders)}`;
  return p !== undefined && p !== null && p < 1e-12 ? "< 1e-12" : p ?? null;
}

// Spearman and Pearson over layers, with their p-values.
function tests(host, rows) {
  const value = new Map(rows.map((i) => [`${T.subject[i]}|${T.metric[i]}`, T.value[i]]));
  const lines = [];
  for (const subject of distinct(rows.map((i) => T.subject[i]))) {
    for (const [against, words] of Object.entries(WORDS)) {
      for (const method of ["spearman", "pearson"]) {
        const [r, p, pt] = ["", "_p", "_p_asymptotic"].map((end) => value.get(`${subject}|${method}_${against}${end}`));
        const layers = T.n[rows.find((i) => T.subject[i] === subject)];
        const name = method.replace(/^./, (first) => first.toUpperCase());
        if (r !== undefined) {
          lines.push([SUBJECTS[subject].label, words, name, r, p ?? null, floored(pt, layers), layers]);
        }
      }
    }
  }
  const hint = "Correlation of the average cosine with drift; p by permutation, and by Student's t as in the paper.";
  const table = plainTable(["model", "against", "method", "correlation", "p", "p (t)", "layers"], lines, "Tests");
  panel(host, "Tests over layers", element("p", { class: "hint" }, hint), table);
}

register({
  id: "drift",
  order: 20,
  name: "Drift",
  title: "Is it drift?",
  intro: "Average cosine against how far the mean lies from the origin, one point for each site. The drift ratio " +
    "‖x̄‖²/E‖x‖² does not depend on the scale of the vectors, their drift norm ‖x̄‖ does.",
  wants: () => joined("drift_ratio").size > 0,
  draw(host, found) {
    const view = new View("drift", { against: "drift_ratio" }, { allowed: { against: () => Object.keys(WORDS) } });
    segments(
      controls(host),
      "Against",
      Object.entries(WORDS).map(([value, label]) => ({ value, label })),
      view,
      "against",
    );
    const chart = new Chart(grid(host), {
      title: () => `Average cosine against ${WORDS[view.against]}`,
      height: 430,
      build: (t) => scatter(view.against, t),
    });
    view.listen(() => chart.refresh());
    if (found.tests.length) tests(host, found.tests);
  },
});
