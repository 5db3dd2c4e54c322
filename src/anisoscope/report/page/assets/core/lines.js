// Lines along the sites of models and along steps: value, interval, and the null of the same model in its colour.
import { axis, whole } from "./chart.js";
import { colourOf, faint, symbolOf } from "./colours.js";
import { add, data, distinct, spread, SUBJECTS, T } from "./data.js";
import { hover, labelOf, number, shown } from "./text.js";

// What a part of a block adds (block.3.attention, block.3.mlp) stands where its block does.
const PART = /^(.*block\.\d+)\.(attention|mlp)$/;
export const isPart = (i) => PART.test(T.site[i]);
function layerOf(i) {
  const part = T.layer[i] === null && PART.exec(T.site[i]);
  if (!part) return T.layer[i];
  const block = (k) => T.subject[k] === T.subject[i] && T.site[k] === part[1];
  return T.layer[(data.layered.get(T.metric[i]) || []).find(block)] ?? null;
}

// Where a site stands along its model: embeddings 0, block K at K + 1, the final norm after the last block.
export function along(rows) {
  const layers = rows.map(layerOf), numbered = layers.some((layer) => layer !== null);
  const last = Math.max(-1, ...layers);
  return rows.map((i, place) => {
    if (!numbered) return place;
    if (layers[place] === null) return T.site[i].endsWith("embeddings") ? 0 : last + 2;
    const before = T.site[i].endsWith(".before_norm");
    const after = T.site[i].endsWith("norm") && !before;
    return layers[place] + 1 + (after ? 1 : 0) - (before ? 0.5 : 0);
  });
}

// Towers, kinds of attention, parts of blocks and seeds are lines of their own.
export function linesOf(rows) {
  const seeds = distinct(rows.map((i) => T.seed[i])).length > 1;
  const found = new Map();
  for (const i of rows) {
    const tower = /^(encoder|decoder)\./.exec(T.site[i])?.[1] ?? "";
    const cross = T.site[i].endsWith(".cross") ? "cross" : "";
    const seed = seeds ? (T.seed[i] === null ? "mean of seeds" : `seed ${T.seed[i]}`) : "";
    const part = T.layer[i] === null ? PART.exec(T.site[i])?.[2] ?? "" : "";
    add(found, [tower, cross, part, seed].filter(Boolean).join(", "), i);
  }
  return found;
}

export function band(x, rows, colour, opacity) {
  const known = rows.map((_, k) => k).filter((k) => T.low[rows[k]] !== null && T.high[rows[k]] !== null);
  if (known.length < 2) return [];
  const back = [...known].reverse();
  return [{
    x: [...known, ...back].map((k) => x[k]),
    y: [...known.map((k) => T.high[rows[k]]), ...back.map((k) => T.low[rows[k]])],
    fill: "toself",
    fillcolor: faint(colour, opacity),
    line: { width: 0 },
    mode: "lines",
    hoverinfo: "skip",
    showlegend: false,
    type: "scatter",
  }];
}

export function line(x, rows, { colour, name, dash = "solid", symbol = "circle", width = 2, size = 7, text = hover }) {
  return {
    x,
    y: rows.map((i) => T.value[i]),
    name,
    text: rows.map((i) => text(i)),
    hovertemplate: "%{text}<extra></extra>",
    mode: "lines+markers",
    type: "scatter",
    line: { color: colour, width, dash },
    cliponaxis: false,
    marker: { color: colour, size, symbol },
  };
}

// The first of several seeds keeps the line of its model, the others are broken in ways of their own.
export const SEED_DASHES = ["dash", "dot", "dashdot", "longdash"];
export const seedDash = (turn, first = "solid") => turn ? SEED_DASHES[(turn - 1) % SEED_DASHES.length] : first;
export function seedsTold(rows) {
  const [first, ...others] = distinct(rows.map((i) => T.seed[i]).filter((seed) => seed !== null));
  return others.length ? `solid: seed ${first}, broken: ${others.length > 1 ? "the others" : `seed ${others[0]}`}` : "";
}
const DASHES = { attention: "longdash", mlp: "longdashdot" };
export const withParts = (rows) => rows.some((i) => T.layer[i] === null && PART.test(T.site[i]));

// One line for each tower, part and seed of each subject, with its interval as a band.
export function layerTraces(found, t, { relative = false, subjects }) {
  const traces = [], nulls = [];
  for (const subject of subjects) {
    const colour = colourOf(subject, t), opacity = Math.min(0.17, 1.4 / subjects.length);
    const seeds = distinct(found.get(subject).map((i) => T.seed[i]).filter((seed) => seed !== null));
    let turn = 0;
    for (const [label, rows] of linesOf(found.get(subject))) {
      const place = along(rows), longest = Math.max(...place, 1);
      const order = rows.map((_, k) => k).sort((a, b) => place[a] - place[b]);
      const sorted = order.map((k) => rows[k]), x = order.map((k) => (relative ? place[k] / longest : place[k]));
      const part = ["attention", "mlp"].find((one) => label.includes(one));
      const own = SUBJECTS[subject].dash;
      const dash = part
        ? DASHES[part]
        : /seed \d/.test(label)
        ? seedDash(seeds.indexOf(T.seed[rows[0]]), own)
        : turn++
        ? "dot"
        : own;
      const size = sorted.length > 40 || part ? 4 : sorted.length > 1 ? 7 : 11;
      const name = labelOf(subject) + (label ? `, ${shown(label)}` : "");
      const width = label.startsWith("seed") || part ? 1.3 : 2;
      traces.push(...band(x, sorted, colour, opacity));
      const look = { colour, name, dash, symbol: symbolOf(subject), size, width };
      traces.push({ ...line(x, sorted, look), subject, fill: "none" });
      nulls.push({ colour, x, rows: sorted });
    }
  }
  return { traces, nulls, same: apart(traces) };
}

// Lines that lie on each other would hide each other: one that is covered is wide and pale, and the legend says so.
export function apart(traces) {
  const drawn = traces.filter((trace) => trace.fill === "none"), same = new Map();
  const near = ["x", "y"].map((name) => 0.004 * spread(drawn.flatMap((trace) => trace[name])));
  const alike = (a, b) =>
    a.x.length === b.x.length &&
    a.x.every((x, k) => Math.abs(x - b.x[k]) <= near[0] && Math.abs(a.y[k] - b.y[k]) <= near[1]);
  drawn.forEach((trace, k) => {
    for (const under of drawn.slice(0, k).filter((one) => alike(one, trace))) {
      under.line.width = Math.min(under.line.width + 4, 10);
      if (under.marker) under.marker.size = Math.min(under.marker.size + 5, 17);
      under.opacity = 0.4;
      trace.on ??= under.name;
      if (under.subject !== trace.subject && !same.has(trace.subject)) same.set(trace.subject, under.subject);
    }
  });
  return same;
}

// Averages over all pairs: of n isotropic vectors in d dimensions, mean 0 and standard deviation √(2/(d·n·(n−1))).
const AVERAGES = new Set(["mean_cosine", "mean_cosine_inter", "mean_cosine_intra"]);
const placeOf = (i) => [T.subject[i], T.site[i], T.positions[i], T.step[i], T.seed[i]].join("\n");
let dimensions = null;
export function nullReach(i) {
  dimensions ??= new Map((data.layered.get("dimension") || []).map((k) => [placeOf(k), T.value[k]]));
  const d = dimensions.get(placeOf(i)), n = T.n[i];
  return AVERAGES.has(T.metric[i]) && d && n > 1 ? 1.96 * Math.sqrt(2 / (d * n * (n - 1))) : 0;
}

// The null of each line in its own colour, or one grey line with its name where all are the same.
export function nullMarks(nulls, t, range) {
  const known = nulls.map((one) => ({
    ...one,
    at: one.rows.map((_, k) => k).filter((k) => T.null[one.rows[k]] !== null),
  }))
    .filter((one) => one.at.length);
  const values = known.flatMap((one) => one.at.map((k) => T.null[one.rows[k]]));
  if (!values.length) return { traces: [], shapes: [], annotations: [] };
  const low = Math.min(...values), high = Math.max(...values);
  if (high - low <= 1e-6 + 0.004 * range) return sameNull(known, low, t, range);
  return { traces: known.map((one) => ownNull(one)), shapes: [], annotations: [] };
}

function sameNull(known, value, t, range) {
  const reaches = widest(known), most = Math.max(...reaches.values()), least = Math.min(...reaches.values());
  const told = most < 1e-3 ? most.toExponential(0) : number(Number(most.toPrecision(1)));
  const around = most ? ` ± ${told}${most > 2 * least ? " at most" : ""}` : "";
  const dotted = { color: t.soft, width: 1.2, dash: "dot" };
  const across = { type: "line", xref: "paper", x0: 0, x1: 1, layer: "below", line: dotted };
  const place = { xref: "paper", y: value, showarrow: false, ...freeEnd(known, value, range) };
  const text = `isotropic: ${number(value)}${around}`;
  return {
    traces: most ? [spreadOfNull(reaches, value, t)] : [],
    shapes: [{ ...across, y0: value, y1: value }],
    annotations: [{ ...place, text, font: { size: 10.5, color: t.soft } }],
  };
}

// At each place the reach of the null of the fewest vectors: 95 % of averages of as many isotropic ones.
function widest(known) {
  const found = new Map();
  for (const { x, rows, at } of known) {
    for (const k of at) found.set(x[k], Math.max(found.get(x[k]) ?? 0, nullReach(rows[k])));
  }
  return found;
}

function spreadOfNull(reaches, value, t) {
  const sorted = [...reaches].sort((a, b) => a[0] - b[0]), [[x, half]] = sorted;
  const ends = sorted.length > 1 ? sorted : [[x - 0.3, half], [x + 0.3, half]], back = [...ends].reverse();
  return {
    x: [...ends, ...back].map(([at]) => at),
    y: [...ends.map(([, reach]) => value + reach), ...back.map(([, reach]) => value - reach)],
    fill: "toself",
    fillcolor: faint(t.soft, 0.2),
    line: { width: 0 },
    mode: "lines",
    hoverinfo: "skip",
    showlegend: false,
    type: "scatter",
  };
}

// Where the name of a null hides the fewest points: under or over its line, at the right or left end.
function freeEnd(known, value, range) {
  const points = known.flatMap(({ x, rows, at }) => at.map((k) => [x[k], T.value[rows[k]] - value]));
  const middle = (Math.min(...points.map(([x]) => x)) + Math.max(...points.map(([x]) => x))) / 2;
  const ends = [1, 0].flatMap((x) => ["top", "bottom"].map((yanchor) => ({ x, yanchor })));
  const covered = ({ x, yanchor }) =>
    points.filter(([at, off]) => {
      const away = (yanchor === "top" ? -off : off) / range;
      return at >= middle === (x === 1) && away > -0.03 && away < 0.15;
    }).length;
  const { x, yanchor } = ends.reduce((best, end) => covered(end) < covered(best) ? end : best);
  return { x, xanchor: x ? "right" : "left", yanchor, yshift: yanchor === "top" ? -1 : 1 };
}

function ownNull({ x, rows, at, colour }) {
  return {
    x: at.map((k) => x[k]),
    y: at.map((k) => T.null[rows[k]]),
    mode: at.length > 1 ? "lines" : "markers",
    type: "scatter",
    line: { color: colour, width: 1.2, dash: "dot" },
    marker: { symbol: "line-ew-open", size: 12, color: colour },
    opacity: 0.8,
    name: "isotropic",
    showlegend: false,
    hovertemplate: "isotropic: %{y:.4g}<extra></extra>",
  };
}

// Names of sites as ticks where all models agree on them and they are few; counted layers elsewhere.
export function siteAxis(found, subjects, t, relative = false) {
  if (relative) return axis(t, "relative depth", { range: around(1) });
  const rows = subjects.map((subject) => found.get(subject));
  const places = rows.map((mine) => along(mine)), most = Math.max(1, ...places.flat());
  const names = namesAt(rows, places);
  const towers = rows.some((mine) => [...linesOf(mine).keys()].some((label) => /coder|cross/.test(label)));
  if (!names || towers || names.size > 26) {
    return axis(t, "layer (0: embeddings)", { range: around(most), ...whole(most) });
  }
  const sorted = [...names].sort((a, b) => a[0] - b[0]);
  return axis(t, sorted.some(([, name]) => /^\d+$/.test(name)) ? "block" : "site", {
    tickvals: sorted.map(([place]) => place),
    ticktext: sorted.map(([, name]) => shown(name)),
    ...(subjects.length > 1 ? { range: around(most) } : {}),
  });
}

// From 0 to `most` with room for the markers at both ends.
const around = (most) => [-0.05 * most, 1.05 * most];

// The site at each place, or null where two sites of different names share one.
function namesAt(rows, places) {
  const names = new Map();
  const short = (site) => site.replace(/^.*block\.(\d+)$/, "$1").replace("final_norm", "norm");
  for (const [k, mine] of rows.entries()) {
    for (const [j, i] of mine.entries()) {
      if (PART.test(T.site[i])) continue;
      const name = short(T.site[i]).replace("embeddings", "emb.").replace(/^embedding$/, "pooled"),
        place = places[k][j];
      if (names.has(place) && names.get(place) !== name) return null;
      names.set(place, name);
    }
  }
  return names;
}

// Steps are spaced evenly, whatever lies between them.
export function stepAxis(steps, t) {
  const every = Math.ceil(steps.length / 8), last = steps.length - 1;
  const marked = steps.map((_, k) => k).filter((k) => (k % every === 0 && last - k >= every) || k === last);
  return axis(t, "step", { tickvals: marked, ticktext: marked.map((k) => number(steps[k])) });
}
