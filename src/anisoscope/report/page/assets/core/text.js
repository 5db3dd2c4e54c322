// Numbers, intervals and hover texts as a reader sees them.
import { meaning, SUBJECTS, T } from "./data.js";

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1e-12) return "0";
  if (Number.isInteger(value)) return Math.abs(value) < 1e10 ? value.toLocaleString("en") : value.toExponential(3);
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  const rounded = Number(value.toPrecision(4));
  return size >= 1e3 ? rounded.toLocaleString("en") : String(rounded);
}

// A p-value that is too small to print is not called 0.
export const valued = (i) =>
  meaning(T.metric[i]).unit === "p" && T.value[i] !== null && T.value[i] < 1e-12 ? "< 1e-12" : number(T.value[i]);
export const between = (low, high) => (low === null || high === null ? "" : `${number(low)} … ${number(high)}`);
export const interval = (i) => between(T.low[i], T.high[i]);
// Of bars: what they are, said only where some are drawn.
export const barsTold = (rows) => (rows.some(interval) ? "bars: 95 % intervals; " : "");
export const spaced = (name) => name.replaceAll("_", " ");

// Plotly reads a little HTML in texts; names are shown as they are.
export const shown = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
// A long text in lines that fit a chart: a hover text is not wrapped by itself.
export const wrapped = (text) => shown(text).replace(/(.{34,44}?)\s/g, "$1<br>");
// A name that `shown` made, in lines of at most `most` letters, broken after a slash, dash, dot or space if it can be.
export function inLines(name, most = 22) {
  const letters = (text) => text.match(/&\w+;|[^]/g) ?? [];
  const lines = [""];
  for (const piece of name.match(/[^\s/_.-]*[\s/_.-]*/g)) {
    for (const letter of letters(piece).length > most ? letters(piece) : [piece]) {
      if (letters(lines.at(-1) + letter.trimEnd()).length > most) lines.push("");
      lines[lines.length - 1] += letter;
    }
  }
  return lines.join("<br>");
}
export const labelOf = (subject) => shown(SUBJECTS[subject].label);

export function hover(i, what = "") {
  const positions = T.positions[i] === "all" ? "" : `, ${T.positions[i]} positions`;
  const lines = [labelOf(T.subject[i]), shown(T.site[i]) + positions];
  if (T.step[i] !== null) lines.push(`step ${number(T.step[i])}`);
  if (T.seed[i] !== null) lines.push(`seed ${T.seed[i]}`);
  lines.push(`${shown(what || meaning(T.metric[i]).label)}: ${valued(i)}`);
  if (interval(i)) lines.push(`95 %: ${interval(i)}`);
  if (T.null[i] !== null) lines.push(`isotropic: ${number(T.null[i])}`);
  if (T.n[i] !== null) lines.push(`n = ${number(T.n[i])}`);
  return lines.join("<br>");
}

// What a chart says to those who do not see it.
export function extremes(rows, label) {
  if (!rows.length) return "";
  const sorted = [...rows].sort((a, b) => T.value[a] - T.value[b]);
  const several = new Set(rows.map((i) => T.site[i])).size > 1;
  const say = (i) => `${valued(i)}${several ? ` at ${T.site[i]}` : ""} (${SUBJECTS[T.subject[i]].label})`;
  return `${label}: highest ${say(sorted.at(-1))}, lowest ${say(sorted[0])}.`;
}
