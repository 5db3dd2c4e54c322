// Densities of cosines, and the marks across them: floor and thresholds.
import { faint } from "./colours.js";
import { number, shown } from "./text.js";

/** @returns {any} */
export function density(name, x, y, colour, { filled = false, dash = "solid" } = {}) {
  return {
    x,
    y,
    name: shown(name),
    mode: "lines",
    type: "scatter",
    line: { color: colour, width: filled ? 2.4 : 1.6, dash },
    hovertemplate: `${shown(name)}<br>cosine %{x:.3f}<br>density %{y:.3g}<extra></extra>`,
    ...(filled ? { fill: "tozeroy", fillcolor: faint(colour, 0.14) } : { fill: "none" }),
  };
}

// Lines across the densities, [cosine, words] each. A line ends at its label, the rightmost highest, so that no label
// covers a line.
export function marks(found, x, t) {
  const all = [...found].sort((a, b) => a[0] - b[0]), line = { color: t.soft, width: 1.2, dash: "dash" };
  const height = (k) => 1 - 0.085 * (all.length - 1 - k), left = x[0] + 0.3 * (x.at(-1) - x[0]);
  return {
    shapes: all.map(([at], k) => ({ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: height(k), line })),
    annotations: all.map(([at, text], k) => ({
      x: at,
      yref: "paper",
      y: height(k),
      yanchor: "top",
      xanchor: at < left ? "left" : "right",
      xshift: at < left ? 4 : -4,
      showarrow: false,
      text: `${text}: ${Math.abs(at) < 0.01 ? number(Number(at.toPrecision(2))) : at.toFixed(2)}`,
      font: { size: 11.5, color: t.ink },
    })),
  };
}
