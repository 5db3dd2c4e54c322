// One metric along the sites of all models that are shown.
import { axis, visible } from "./chart.js";
import { data, meaning, pick, spread, T } from "./data.js";
import { rowTable } from "./files.js";
import { layerTraces, nullMarks, siteAxis } from "./lines.js";
import { extremes, number, shown } from "./text.js";

export function layerChart({ metric, positions = "all", relative = false, log = false, mark = false }, t) {
  const found = pick(data.layered.get(metric), { positions });
  if (!found.size) return null;
  const all = [...found.keys()], subjects = visible(all), label = meaning(metric).label;
  const rows = subjects.flatMap((subject) => found.get(subject)), values = rows.map((i) => T.value[i]);
  const { traces, nulls, same } = layerTraces(found, t, { relative, subjects });
  const positive = log && Math.min(...values) > 0;
  const marks = nullMarks(nulls, t, spread(values));
  const layout = {
    xaxis: siteAxis(found, subjects, t, relative),
    yaxis: axis(t, label, positive ? { type: "log" } : {}),
  };
  const flat = positive ? {} : { shapes: marks.shapes, annotations: marks.annotations };
  if (mark && rows.length) (flat.annotations ??= []).push(peak(traces, rows, t));
  return {
    data: [...marks.traces, ...traces],
    subjects: all,
    same,
    table: rowTable(rows),
    words: extremes(rows, label),
    layout: { ...layout, ...flat },
  };
}

// The highest point, with its number and place.
export function peak(traces, rows, t, words = (i) => `${number(Number(T.value[i].toPrecision(2)))} at ${T.site[i]}`) {
  const top = rows.reduce((best, i) => (T.value[i] > T.value[best] ? i : best), rows[0]);
  const drawn = traces.filter((trace) => trace.fill !== "toself");
  const trace = drawn.find((one) => one.y.includes(T.value[top]));
  const x = trace.x[trace.y.indexOf(T.value[top])], all = drawn.flatMap((one) => one.x);
  const right = x > (Math.min(...all) + Math.max(...all)) / 2;
  const place = { x, y: T.value[top], ax: right ? -34 : 34, ay: -18, xanchor: right ? "right" : "left" };
  const look = { arrowcolor: t.soft, arrowwidth: 1, arrowhead: 0, standoff: 5, font: { size: 12.5, color: t.ink } };
  return { ...place, ...look, text: shown(words(top)), bgcolor: t.ground, borderpad: 2 };
}
