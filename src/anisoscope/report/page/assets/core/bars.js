// Points with intervals beside names: for what has no order, such as files, interventions and variants.
import { axis } from "./chart.js";
import { distinct, T } from "./data.js";
import { hover, inLines } from "./text.js";

const reach = (rows, side) => rows.map((i) => (T[side][i] === null ? 0 : Math.abs(T[side][i] - T.value[i])));

export function bars(rows, names, { colours, name, hollow = false, t }) {
  return {
    type: "bar",
    orientation: "h",
    x: rows.map((i) => T.value[i]),
    y: names,
    name,
    text: rows.map((i) => hover(i)),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      color: hollow ? "rgba(0,0,0,0)" : colours,
      line: { color: hollow ? colours : t.ground, width: hollow ? 1.6 : 0 },
    },
    error_x: {
      type: "data",
      symmetric: false,
      array: reach(rows, "high"),
      arrayminus: reach(rows, "low"),
      visible: rows.some((i) => T.low[i] !== null),
      color: t.ink,
      thickness: 1.2,
      width: 4,
    },
  };
}

// The null of each bar as a short line across it.
export function nullTicks(rows, names, t) {
  const known = rows.map((_, k) => k).filter((k) => T.null[rows[k]] !== null);
  if (!known.length) return [];
  return [{
    type: "scatter",
    mode: "markers",
    x: known.map((k) => T.null[rows[k]]),
    y: known.map((k) => names[k]),
    name: "isotropic",
    marker: { symbol: "line-ns-open", size: 18, color: t.soft, line: { width: 2 } },
    hovertemplate: "isotropic: %{x:.4g}<extra></extra>",
  }];
}

export const heightFor = (count, each = 34) => Math.max(220, 110 + each * count);

// The names of the traces, long ones in lines, so that they leave room for the bars on a phone.
export function nameAxis(t, traces) {
  const names = distinct(traces.flatMap((trace) => trace.y));
  const ticks = { tickvals: names, ticktext: names.map((name) => inLines(name)) };
  return axis(t, "", { type: "category", autorange: "reversed", showgrid: false, ticklabelstandoff: 6, ...ticks });
}
