// Two themes, one palette: a model keeps its colour, symbol and dash in every chart.
import { data, SUBJECTS } from "./data.js";

export const LIGHT = {
  ink: "#1d2126",
  soft: "#565d66",
  line: "#d9dbd6",
  grid: "#ecede9",
  ground: "#ffffff",
  accent: "#0064a0",
  dark: false,
};
const DARK = {
  ink: "#e8eaec",
  soft: "#a5adb6",
  line: "#3a4148",
  grid: "#252a2f",
  ground: "#191d21",
  accent: "#7cc0ec",
  dark: true,
};
export const theme = () => (document.documentElement.dataset.theme === "dark" ? DARK : LIGHT);

const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function mix(colour, other, share) {
  const a = parts(colour), b = parts(other);
  const mixed = a.map((part, k) => Math.round(part * (1 - share) + b[k] * share));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

const readable = (colour, t) => (t.dark ? mix(colour, "#ffffff", 0.32) : colour);
export const colourOf = (subject, t) => readable(SUBJECTS[subject].colour, t);
export const faint = (colour, opacity = 0.16) => `rgba(${parts(colour).join(",")},${opacity})`;
export const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "hexagon"];
export const symbolOf = (subject) => SYMBOLS[SUBJECTS[subject].look % SYMBOLS.length];
export const paletteAt = (k, t) => readable(data.palette[k % data.palette.length], t);
export const depthColour = (share, t) => {
  return t.dark ? mix("#31586f", "#cfe9fb", share) : mix("#a9cfe8", "#053a5c", share);
};

export const sequential = (t) =>
  t.dark ? [[0, "#213647"], [0.5, "#2f78a8"], [1, "#bfe3fa"]] : [[0, "#e2edf5"], [0.5, "#7db7dc"], [1, "#054a78"]];
export const diverging = (t) =>
  t.dark ? [[0, "#5fb4ea"], [0.5, "#20252a"], [1, "#f29a5c"]] : [[0, "#00598c"], [0.5, "#f7f7f5"], [1, "#b34e00"]];
export const colourBar = (t, tickformat = "") => ({
  thickness: 10,
  outlinewidth: 0,
  tickfont: { size: 11, color: t.soft },
  tickformat,
  len: 0.9,
});
