// Studies with sections of their own: untrained blocks, norms, thresholds, nulls, comparisons.
function startBlock() {
  const rows = (STUDY.get("block") || []).filter((i) => T.seed[i] === null && T.value[i] !== null);
  if (!rows.length) return;
  const swept = rows.filter((i) => T.at[i] !== null), host = open("block"), bar = controls(host);
  const subjects = [...new Set(swept.map((i) => T.subject[i]))], metrics = new Set(swept.map((i) => T.metric[i]));
  const state = { subject: subjects[0], metric: metrics.has("mean_cosine") ? "mean_cosine" : [...metrics][0], at: 0, even: false };
  const norms = () => [...new Set(swept.filter((i) => T.subject[i] === state.subject).map((i) => T.at[i]))].sort((a, b) => a - b);
  const title = () => `${meaning(state.metric).label[0].toUpperCase()}${meaning(state.metric).label.slice(1)} against the drift norm`;
  const update = () => { chart.retitle(title()); chart.refresh(); scores?.refresh(); fill(); };
  if (subjects.length > 1) select(bar, "Block", subjects.map((subject) => ({ value: subject, label: SUBJECTS[subject].label })), state.subject, (value) => { state.subject = Number(value); place(); update(); });
  select(bar, "Metric", metricOptions(metrics), state.metric, (value) => { state.metric = value; update(); });
  const holder = element("div");
  bar.append(holder);
  const place = () => {
    const known = norms();
    state.at = Math.min(Math.floor(known.length / 2), known.length - 1);
    holder.replaceChildren();
    slider(holder, "Drift norm N", known, state.at, (norm) => `N = ${number(norm)}`, (k) => { state.at = k; update(); });
  };
  place();
  segments(bar, "Spacing of N", [{ value: "linear", label: "linear" }, { value: "even", label: "even" }], "linear", (value) => { state.even = value === "even"; chart.refresh(); });
  const box = grid(host, DATA.pictures.scores.length > 0);
  const chart = new Chart(box, { title: title(), caption: "the N of the slider is marked", build: (t) => blockCurves(swept, state, norms(), t) });
  const scores = DATA.pictures.scores.length ? new Chart(box, { title: "Attention scores at this N", caption: "density over all heads and draws, each curve scaled to its peak; the smallest N in grey", build: (t) => blockScores(state, norms(), t) }) : null;
  const panel = element("div", { class: "panel", "aria-live": "polite" });
  host.append(panel);
  function fill() {
    const norm = norms()[state.at], here = swept.filter((i) => T.subject[i] === state.subject && T.at[i] === norm);
    const fixed = rows.filter((i) => T.subject[i] === state.subject && T.at[i] === null);
    const cells = [...here, ...fixed].map((i) => [T.site[i], meaning(T.metric[i]).label, T.value[i], interval(i), T.null[i], T.note[i]]);
    panel.replaceChildren(element("h3", {}, `${SUBJECTS[state.subject].label} at N = ${number(norm)}`), plainTable(["site", "metric", "value", "95 % interval", "null", "note"], cells, "Numbers at this drift norm"));
  }
  fill();
}

function blockCurves(swept, state, norms, t) {
  const rows = swept.filter((i) => T.subject[i] === state.subject && T.metric[i] === state.metric), bySite = new Map();
  rows.forEach((i) => add(bySite, T.site[i], i));
  const data = [], where = (norm) => (state.even ? norms.indexOf(norm) : norm);
  [...bySite].forEach(([site, mine], k) => {
    const colour = paletteAt(k, t), x = mine.map((i) => where(T.at[i]));
    if (mine.every((i) => T.low[i] !== null)) data.push({ x: [...x, ...x.slice().reverse()], y: [...mine.map((i) => T.high[i]), ...mine.map((i) => T.low[i]).reverse()], fill: "toself", fillcolor: faint(colour), line: { width: 0 }, mode: "lines", type: "scatter", hoverinfo: "skip", showlegend: false });
    data.push({ x, y: mine.map((i) => T.value[i]), name: shown(site), text: mine.map((i) => `N = ${number(T.at[i])}<br>${hover(i)}`), hovertemplate: "%{text}<extra></extra>", mode: "lines+markers", type: "scatter", line: { color: colour, width: 2 }, marker: { color: colour, size: 6, symbol: SYMBOLS[k % SYMBOLS.length] } });
  });
  const nulls = new Map(rows.filter((i) => T.null[i] !== null).map((i) => [`${where(T.at[i])}`, T.null[i]]));
  const floor = nullShapes(nulls, t, spread(rows.map((i) => T.value[i])));
  const mark = { type: "line", yref: "paper", x0: where(norms[state.at]), x1: where(norms[state.at]), y0: 0, y1: 1, line: { color: t.accent, width: 1.4 } };
  return { data: [...floor.traces, ...data], words: extremes(rows, meaning(state.metric).label), table: { head: ["block", "site", "N", "metric", "value", "low", "high", "null", "n"], rows: rows.map((i) => [SUBJECTS[T.subject[i]].label, T.site[i], T.at[i], T.metric[i], T.value[i], T.low[i], T.high[i], T.null[i], T.n[i]]) }, layout: { showlegend: true, legend: { orientation: "h", y: 1.1 }, xaxis: axis(t, "drift norm N", state.even ? { tickvals: norms.map((_, k) => k), ticktext: norms.map(number) } : {}), yaxis: axis(t, meaning(state.metric).label), shapes: [mark, ...floor.shapes], annotations: floor.annotations } };
}

function blockScores(state, norms, t) {
  const subject = SUBJECTS[state.subject];
  const mine = DATA.pictures.scores.find((one) => one.run === subject.run && one.model === subject.model);
  const at = mine ? mine.norms.indexOf(norms[state.at]) : -1;
  if (at < 0) return null;
  const scaled = (y) => { const peak = Math.max(...y, 1e-300); return y.map((density) => density / peak); };
  const curve = (k, colour, name, fill) => ({ x: mine.curves[k].x, y: scaled(mine.curves[k].y), customdata: mine.curves[k].y, name, mode: "lines", type: "scatter", line: { color: colour, width: 2, shape: "hv" }, fill: fill ? "tozeroy" : "none", fillcolor: faint(colour.length === 7 ? colour : "#888888", 0.14), hovertemplate: `${name}<br>score %{x:.3g}<br>density %{customdata:.3g}<extra></extra>` });
  const data = [curve(0, t.soft, `N = ${number(mine.norms[0])}`, false), ...(at ? [curve(at, paletteAt(0, t), `N = ${number(mine.norms[at])}`, true)] : [])];
  const rows = mine.curves.flatMap((one, k) => one.x.map((x, b) => [mine.norms[k], x, one.y[b]]));
  return { data, table: { head: ["N", "score", "density"], rows }, layout: { showlegend: true, legend: { orientation: "h", y: 1.1 }, xaxis: axis(t, "score before softmax"), yaxis: axis(t, "density over its peak", { rangemode: "tozero" }) } };
}

function startNorms() {
  const here = (i) => T.step[i] === lastStep(T.subject[i]) && T.positions[i] === "all";
  const ablated = ABLATIONS.filter((i) => here(i) && T.metric[i] === "mean_cosine"), others = ABLATIONS.filter((i) => here(i) && !ABLATED.test(T.site[i]));
  if (!ablated.length && !others.length) return;
  const host = open("norms"), names = { as_it_is: "as it is", without_bias: "without bias", unit_gain: "unit gain", mean_removed: "mean removed before" };
  if (ablated.length) new Chart(grid(host), { title: "Average cosine after the norm", caption: "of the seeded sample of vectors, all pairs of it", build: (t) => {
    const all = [...new Set(ablated.map((i) => T.subject[i]))], data = [];
    for (const subject of all.filter((one) => !hiddenSubjects.has(one))) {
      const mine = ablated.filter((i) => T.subject[i] === subject), several = new Set(mine.map((i) => T.site[i].replace(ABLATED, ""))).size > 1;
      const y = mine.map((i) => shown((several ? `${T.site[i].replace(ABLATED, "")} ` : "") + names[ABLATED.exec(T.site[i])[1]]));
      data.push({ x: mine.map((i) => T.value[i]), y, text: mine.map((i) => hover(i)), hovertemplate: "%{text}<extra></extra>", type: "scatter", mode: "markers", name: shown(SUBJECTS[subject].label), marker: { size: 11, color: colourOf(subject, t), symbol: symbolOf(subject) }, error_x: { type: "data", symmetric: false, array: mine.map((i) => (T.high[i] ?? T.value[i]) - T.value[i]), arrayminus: mine.map((i) => T.value[i] - (T.low[i] ?? T.value[i])), color: t.soft, thickness: 1.2, width: 4 } });
    }
    return { data, subjects: all, table: { head: ROW_HEAD, rows: ablated.map(rowCells) }, layout: { xaxis: axis(t, "average cosine", { rangemode: "tozero" }), yaxis: axis(t, "", { type: "category", autorange: "reversed" }), shapes: [{ type: "line", yref: "paper", x0: 0, x1: 0, y0: 0, y1: 1, line: { color: t.soft, dash: "dot", width: 1.2 } }] } };
  } });
  if (others.length) host.append(element("div", { class: "panel" }, element("h3", {}, "Gains, biases, and the cosine that they imply"), plainTable(["model", "norm", "metric", "value", "note"], others.map((i) => [SUBJECTS[T.subject[i]].label, T.site[i], T.metric[i].replaceAll("_", " "), T.value[i], T.note[i]]), "Parameters of norms")));
}

function startCalibrate() {
  const floors = DATA.pictures.floors, rows = STUDY.get("calibrate") || [];
  if (!rows.length) return;
  const host = open("calibrate"), bar = controls(host), runs = [...new Set(rows.map((i) => SUBJECTS[T.subject[i]].run))];
  const state = { run: runs[0] };
  if (runs.length > 1) select(bar, "Vectors", runs.map((run) => ({ value: run, label: DATA.runs[run].label })), state.run, (value) => { state.run = Number(value); chart?.refresh(); fill(); });
  const words = { raw: "as they are", centred: "centred", without_top: "top components removed", whitened: "whitened", isotropic: "isotropic" };
  const thresholds = () => rows.filter((i) => SUBJECTS[T.subject[i]].run === state.run && T.metric[i] === "threshold");
  const chart = floors.length ? new Chart(grid(host), { title: "Cosine of unrelated pairs", caption: "vertical lines: thresholds for the vectors as they are, by false-positive rate", build: (t) => {
    const mine = floors.find((one) => one.run === state.run);
    if (!mine) return null;
    const data = Object.entries(mine.curves).map(([name, y], k) => ({ x: mine.x, y, name: words[name] || name, mode: "lines", type: "scatter", line: name === "isotropic" ? { color: t.soft, dash: "dot", width: 1.4 } : { color: paletteAt(k, t), width: 2, shape: "spline" }, hovertemplate: `${words[name] || name}<br>cosine %{x:.3f}<br>density %{y:.3g}<extra></extra>` }));
    const raw = thresholds().filter((i) => T.site[i] === "raw");
    const shapes = raw.map((i) => ({ type: "line", yref: "paper", x0: T.value[i], x1: T.value[i], y0: 0, y1: 0.96, line: { color: paletteAt(0, t), width: 1, dash: "dash" } }));
    const annotations = raw.map((i, k) => ({ x: T.value[i], yref: "paper", y: 0.97 - 0.07 * k, xanchor: "left", showarrow: false, text: ` ${number(100 * T.at[i])} %: ${number(T.value[i])}`, font: { size: 11, color: t.soft } }));
    return { data, table: { head: ["cosine", ...Object.keys(mine.curves)], rows: mine.x.map((x, k) => [x, ...Object.values(mine.curves).map((curve) => curve[k])]) }, layout: { showlegend: true, legend: { orientation: "h", y: 1.1 }, xaxis: axis(t, "cosine"), yaxis: axis(t, "density", { rangemode: "tozero" }), shapes, annotations } };
  } }) : null;
  const panel = element("div", { class: "panel" });
  host.append(panel);
  function fill() {
    const mine = rows.filter((i) => SUBJECTS[T.subject[i]].run === state.run), sites = [...new Set(mine.map((i) => T.site[i]))];
    const name = (i) => (T.at[i] === null ? T.metric[i].replaceAll("_", " ") : `threshold at ${number(100 * T.at[i])} %`), table = new Map();
    mine.forEach((i) => { if (!table.has(name(i))) table.set(name(i), new Map()); table.get(name(i)).set(T.site[i], T.value[i]); });
    panel.replaceChildren(element("h3", {}, "Floor, thresholds, nearest neighbours"), plainTable(["", ...sites.map((site) => words[site] || site)], [...table].map(([metric, by]) => [metric, ...sites.map((site) => by.get(site) ?? null)]), "Thresholds by correction"));
  }
  fill();
}

function startNull() {
  const rows = STUDY.get("null") || [];
  if (!rows.length) return;
  const host = open("null");
  if (DATA.pictures.densities.length) new Chart(grid(host), { title: "Cosine of two isotropic vectors", caption: "(1 + cos)/2 is Beta((d−1)/2, (d−1)/2): exact", build: (t) => {
    const curves = [...DATA.pictures.densities].sort((a, b) => a.dimension - b.dimension);
    const data = curves.map((one, k) => ({ x: one.x, y: one.y, name: `d = ${one.dimension}`, mode: "lines", type: "scatter", line: { width: 2, color: paletteAt(k, t) }, hovertemplate: `d = ${one.dimension}<br>cosine %{x:.3f}<br>density %{y:.3g}<extra></extra>` }));
    return { data, table: { head: ["d", "cosine", "density"], rows: curves.flatMap((one) => one.x.map((x, k) => [one.dimension, x, one.y[k]])) }, layout: { showlegend: true, legend: { orientation: "h", y: 1.1 }, xaxis: axis(t, "cosine"), yaxis: axis(t, "density", { rangemode: "tozero" }) } };
  } });
  const sites = [...new Set(rows.map((i) => T.site[i]))], metrics = [...new Set(rows.map((i) => T.metric[i]))], cell = new Map(rows.map((i) => [`${T.site[i]}|${T.metric[i]}`, i]));
  const value = (site, metric) => { const i = cell.get(`${site}|${metric}`); return i === undefined ? null : T.value[i]; };
  host.append(element("div", { class: "panel" }, element("h3", {}, "Isotropic values"), plainTable(["", ...sites], metrics.map((metric) => [meaning(metric).label, ...sites.map((site) => value(site, metric))]), "Isotropic values by dimension")));
}

function startCompare() {
  const kept = STUDY.get("compare") || [];
  const pairs = [...new Set(kept.map((i) => T.subject[i]))].map((subject) => ({ value: `kept:${subject}`, label: SUBJECTS[subject].label }));
  const cosines = pick(LAYERED.get("mean_cosine")), subjects = [...cosines.keys()];
  const sites = new Set((cosines.get(subjects[0]) || []).map((i) => T.site[i]));
  const other = subjects.slice(1).find((subject) => cosines.get(subject).some((i) => sites.has(T.site[i])));
  const two = other !== undefined;
  if (!pairs.length && !two) return;
  const host = open("compare"), bar = controls(host), state = { metric: "mean_cosine", kept: pairs[0]?.value ?? null, first: subjects[0], second: other };
  const update = () => { chart.retitle(title(), caption()); chart.refresh(); };
  const title = () => `Difference in ${meaning(state.metric).label}`;
  const caption = () => (state.kept ? "intervals as the comparison has them: paired by sequence group where the data are the same" : "intervals combined as if the two were independent; `anisoscope compare` pairs them by sequence");
  if (pairs.length) select(bar, "Comparison", [...pairs, ...(two ? [{ value: "", label: "two models of this page" }] : [])], state.kept, (value) => { state.kept = value || null; free.hidden = Boolean(state.kept); update(); });
  const free = element("div", { class: "controls", style: "margin:0" });
  free.hidden = Boolean(state.kept);
  bar.append(free);
  if (two) for (const side of ["first", "second"]) select(free, side === "first" ? "First" : "Second", subjects.map((subject) => ({ value: subject, label: SUBJECTS[subject].label })), state[side], (value) => { state[side] = Number(value); update(); });
  const metrics = new Set([...kept.map((i) => T.metric[i]), ...(two ? [...LAYERED.keys()] : [])]);
  select(bar, "Metric", metricOptions(metrics), state.metric, (value) => { state.metric = value; update(); });
  const chart = new Chart(grid(host), { title: title(), caption: caption(), height: 420, build: (t) => {
    const found = state.kept ? keptDifferences(kept, Number(state.kept.slice(5)), state.metric) : differences(state);
    if (!found.length) return null;
    const colour = (one) => (one.low !== null && one.low * one.high > 0 ? paletteAt(1, t) : t.soft);
    const data = [{ x: found.map((one) => one.value), y: found.map((one) => shown(one.site)), text: found.map((one) => `<b>${shown(one.site)}</b><br>difference: ${number(one.value)}<br>${one.low === null ? "no interval" : `95 %: ${number(one.low)} … ${number(one.high)}`}<br>${shown(one.note)}<br>n = ${number(one.n)}`), hovertemplate: "%{text}<extra></extra>", mode: "markers", type: "scatter", marker: { size: 9, color: found.map(colour) }, error_x: { type: "data", symmetric: false, array: found.map((one) => (one.high ?? one.value) - one.value), arrayminus: found.map((one) => one.value - (one.low ?? one.value)), color: t.soft, thickness: 1.3, width: 3 } }];
    const moved = found.filter((one) => one.low !== null && one.low * one.high > 0).length;
    return { data, words: `${moved} of ${found.length} sites differ by more than their interval.`, table: { head: ["site", "metric", "difference", "low", "high", "note", "n"], rows: found.map((one) => [one.site, state.metric, one.value, one.low, one.high, one.note, one.n]) }, layout: { xaxis: axis(t, "second minus first"), yaxis: axis(t, "", { type: "category", autorange: "reversed" }), shapes: [{ type: "line", yref: "paper", x0: 0, x1: 0, y0: 0, y1: 1, line: { color: t.soft, width: 1.2, dash: "dot" } }] } };
  } });
}

const keptDifferences = (rows, subject, metric) => rows.filter((i) => T.subject[i] === subject && T.metric[i] === metric && T.value[i] !== null).map((i) => ({ site: T.site[i], value: T.value[i], low: T.low[i], high: T.high[i], note: T.note[i], n: T.n[i] }));

function differences({ first, second, metric }) {
  const found = pick(LAYERED.get(metric)), before = new Map((found.get(first) || []).map((i) => [T.site[i], i]));
  return (found.get(second) || []).filter((j) => before.has(T.site[j])).map((j) => {
    const i = before.get(T.site[j]), value = T.value[j] - T.value[i];
    const known = [i, j].every((k) => T.low[k] !== null && T.high[k] !== null);
    const reach = known ? Math.hypot(T.high[i] - T.low[i], T.high[j] - T.low[j]) / 2 : null;
    return { site: T.site[j], value, low: known ? value - reach : null, high: known ? value + reach : null, note: `${number(T.value[i])} → ${number(T.value[j])}, not paired`, n: T.n[j] };
  });
}
