// Along the sites of models: any metric by layer, drift against cosine, spectrum, dimensions.

// One line for each tower of each subject, with its interval as a band; the isotropic value dotted.
function layerTraces(found, t, { relative = false, subjects = visible(found) } = {}) {
  const data = [], nulls = new Map();
  for (const subject of subjects) {
    const stacks = new Map();
    for (const i of found.get(subject)) add(stacks, stackOf(T.site[i]), i);
    let place = 0;
    for (const [stack, rows] of stacks) {
      const steps = along(rows), longest = Math.max(...steps, 1);
      const order = rows.map((_, k) => k).sort((a, b) => steps[a] - steps[b]);
      const sorted = order.map((k) => rows[k]), x = order.map((k) => (relative ? steps[k] / longest : steps[k]));
      const colour = colourOf(subject, t), name = shown(SUBJECTS[subject].label) + (stack ? `, ${stack}` : "");
      const banded = sorted.filter((i) => T.low[i] !== null && T.high[i] !== null);
      if (banded.length > 1) {
        const at = new Map(sorted.map((i, k) => [i, x[k]]));
        data.push({ x: [...banded.map((i) => at.get(i)), ...banded.map((i) => at.get(i)).reverse()], y: [...banded.map((i) => T.high[i]), ...banded.map((i) => T.low[i]).reverse()], fill: "toself", fillcolor: faint(colour, Math.min(0.17, 1.4 / subjects.length)), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false, type: "scatter" });
      }
      const dash = place++ ? "dot" : SUBJECTS[subject].dash;
      data.push({
        x, y: sorted.map((i) => T.value[i]), name, text: sorted.map((i) => hover(i)), hovertemplate: "%{text}<extra></extra>", mode: "lines+markers", type: "scatter",
        line: { color: colour, width: 2, dash }, cliponaxis: false, marker: { color: colour, size: sorted.length > 40 ? 4 : sorted.length > 1 ? 7 : 11, symbol: symbolOf(subject) },
      });
      sorted.forEach((i, k) => { if (T.null[i] !== null) nulls.set(`${x[k]}`, Math.max(T.null[i], nulls.get(`${x[k]}`) ?? -Infinity)); });
    }
  }
  return { data, nulls };
}

function nullShapes(nulls, t, range) {
  const values = [...nulls.values()];
  if (!values.length) return { traces: [], shapes: [], annotations: [] };
  const low = Math.min(...values), high = Math.max(...values);
  const name = { text: "isotropic", showarrow: false, font: { size: 10.5, color: t.soft }, xref: "paper", x: 1, xanchor: "right", yanchor: "bottom" };
  if (high - low <= 1e-6 + 0.01 * Math.abs(range)) {
    return { traces: [], shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: low, y1: low, line: { color: t.soft, width: 1.2, dash: "dot" } }], annotations: [{ ...name, y: low }] };
  }
  const points = [...nulls].map(([x, y]) => [Number(x), y]).sort((a, b) => a[0] - b[0]);
  return { traces: [{ x: points.map((p) => p[0]), y: points.map((p) => p[1]), mode: "lines+markers", marker: { size: 3, color: t.soft }, line: { color: t.soft, width: 1.2, dash: "dot" }, name: "isotropic", hovertemplate: "isotropic: %{y:.4g}<extra></extra>", type: "scatter" }], shapes: [], annotations: [] };
}

const spread = (values) => (values.length ? Math.max(...values) - Math.min(...values) : 0);

function siteTicks(found, subjects) {
  const rows = found.get(subjects[0]);
  const towers = new Set(rows.map((i) => stackOf(T.site[i])));
  if (subjects.length !== 1 || towers.size > 1 || rows.length > 26) return null;
  const x = along(rows);
  const short = rows.map((i) => T.site[i].replace(/^.*block\.(\d+)$/, "$1").replace("final_norm", "norm").replace("embeddings", "emb."));
  return { tickvals: x, ticktext: short.map(shown) };
}

function layerChart(metric, positions, relative, t, log = false) {
  const found = pick(LAYERED.get(metric), { positions });
  if (!found.size) return null;
  const all = [...found.keys()], subjects = visible(found), label = meaning(metric).label;
  const rows = subjects.flatMap((subject) => found.get(subject)), values = rows.map((i) => T.value[i]);
  const table = { head: ROW_HEAD, rows: rows.map(rowCells) };
  if (all.every((subject) => found.get(subject).length === 1)) return { ...dots(subjects, rows, label, t), subjects: all, table };
  const { data, nulls } = layerTraces(found, t, { relative });
  const floor = nullShapes(nulls, t, spread(values)), ticks = relative || !subjects.length ? null : siteTicks(found, subjects);
  const xaxis = axis(t, relative ? "relative depth" : ticks ? "site" : "layer (0: embeddings)", { rangemode: "tozero", ...(ticks || {}) });
  const yaxis = axis(t, label, log && Math.min(...values) > 0 ? { type: "log" } : {});
  return { data: [...floor.traces, ...data], subjects: all, table, words: extremes(rows, label), layout: { xaxis, yaxis, shapes: log ? [] : floor.shapes, annotations: log ? [] : floor.annotations } };
}

// Subjects of a single site, side by side.
function dots(subjects, rows, label, t) {
  const reach = (side) => rows.map((i) => (T[side][i] === null ? 0 : Math.abs(T[side][i] - T.value[i])));
  const y = subjects.map((subject) => shown(SUBJECTS[subject].label));
  const data = [{
    x: rows.map((i) => T.value[i]), y, text: rows.map((i) => hover(i)), hovertemplate: "%{text}<extra></extra>", mode: "markers", type: "scatter",
    error_x: { type: "data", symmetric: false, array: reach("high"), arrayminus: reach("low"), color: t.soft, thickness: 1.2, width: 4 },
    marker: { size: 11, color: subjects.map((subject) => colourOf(subject, t)), symbol: subjects.map(symbolOf) },
  }];
  const nulls = rows.filter((i) => T.null[i] !== null);
  if (nulls.length) data.push({ x: nulls.map((i) => T.null[i]), y: nulls.map((i) => shown(SUBJECTS[T.subject[i]].label)), mode: "markers", type: "scatter", marker: { symbol: "line-ns-open", size: 16, color: t.soft }, hovertemplate: "isotropic: %{x:.4g}<extra></extra>" });
  return { data, words: extremes(rows, label), layout: { xaxis: axis(t, label), yaxis: axis(t, "", { autorange: "reversed", type: "category" }), margin: { l: 20, r: 16, t: 12, b: 46 } } };
}

function extremes(rows, label) {
  if (!rows.length) return "";
  const by = [...rows].sort((a, b) => T.value[a] - T.value[b]);
  const say = (i) => `${number(T.value[i])} at ${T.site[i]} of ${SUBJECTS[T.subject[i]].label}`;
  return `${label}: highest ${say(by.at(-1))}, lowest ${say(by[0])}.`;
}

function startLayers() {
  const metrics = new Set(LAYERED.keys());
  if (!metrics.size) return;
  const host = open("layers"), bar = controls(host);
  const state = { metric: metrics.has("mean_cosine") ? "mean_cosine" : [...metrics][0], positions: "all", depth: "layer" };
  const update = () => { chart.retitle(heading(), meaning(state.metric).meaning); chart.refresh(); };
  const heading = () => { const label = meaning(state.metric).label; return label[0].toUpperCase() + label.slice(1); };
  select(bar, "Metric", metricOptions(metrics), state.metric, (value) => { state.metric = value; update(); });
  const kinds = ["all", "rest", "first"].filter((kind) => [...LAYERED.values()].some((rows) => rows.some((i) => T.positions[i] === kind)));
  const names = { all: "all", rest: "without the first", first: "first only" };
  if (kinds.length > 1) segments(bar, "Positions", kinds.map((value) => ({ value, label: names[value] })), "all", (value) => { state.positions = value; update(); });
  const shallow = pick(LAYERED.get(state.metric));
  if (shallow.size > 1 && [...shallow.values()].some((rows) => rows.length > 1)) segments(bar, "Depth", [{ value: "layer", label: "layer" }, { value: "relative", label: "relative" }], "layer", (value) => { state.depth = value; update(); });
  const chart = new Chart(grid(host), { title: heading(), caption: meaning(state.metric).meaning, height: 430, build: (t) => layerChart(state.metric, state.positions, state.depth === "relative", t) });
}

function startDrift() {
  const cosines = pick(LAYERED.get("mean_cosine")), state = { against: "drift_ratio" };
  const joined = (against) => {
    const found = new Map(), others = pick(LAYERED.get(against));
    for (const [subject, rows] of cosines) {
      const by = new Map((others.get(subject) || []).map((i) => [T.site[i], i]));
      const pairs = rows.filter((i) => by.has(T.site[i])).map((i) => [i, by.get(T.site[i])]);
      if (pairs.length) found.set(subject, pairs);
    }
    return found;
  };
  if (!joined("drift_ratio").size) return;
  const host = open("drift"), bar = controls(host), words = { drift_ratio: "drift ratio", drift_norm: "drift norm" };
  segments(bar, "Against", Object.entries(words).map(([value, label]) => ({ value, label })), state.against, (value) => { state.against = value; chart.retitle(`Average cosine against ${words[value]}`); chart.refresh(); });
  const chart = new Chart(grid(host), { title: "Average cosine against drift ratio", height: 430, build: (t) => {
    const found = joined(state.against), subjects = visible(found);
    const data = subjects.map((subject) => {
      const pairs = found.get(subject), colour = colourOf(subject, t);
      return { x: pairs.map(([, j]) => T.value[j]), y: pairs.map(([i]) => T.value[i]), name: shown(SUBJECTS[subject].label), text: pairs.map(([i, j]) => `${hover(i)}<br>${words[state.against]}: ${number(T.value[j])}`), hovertemplate: "%{text}<extra></extra>", mode: pairs.length > 1 ? "lines+markers" : "markers", type: "scatter", line: { color: faint(colour, 0.35), width: 1 }, cliponaxis: false, marker: { color: colour, size: 9, symbol: symbolOf(subject) } };
    });
    const rows = subjects.flatMap((subject) => found.get(subject).map(([i, j]) => [SUBJECTS[subject].label, T.site[i], T.value[i], T.low[i], T.high[i], T.value[j], T.low[j], T.high[j], T.n[i]]));
    const head = ["model", "site", "mean_cosine", "low", "high", state.against, `${state.against}_low`, `${state.against}_high`, "n"];
    return { data, subjects: [...found.keys()], table: { head, rows }, layout: { xaxis: axis(t, words[state.against], { rangemode: "tozero" }), yaxis: axis(t, "average cosine", { rangemode: "tozero" }) } };
  } });
  if (TESTS.length) driftTests(host);
}

// Spearman and Pearson over layers, with their p-values.
function driftTests(host) {
  const value = new Map(TESTS.map((i) => [`${T.subject[i]}|${T.metric[i]}`, i]));
  const rows = [];
  for (const subject of new Set(TESTS.map((i) => T.subject[i]))) {
    for (const against of ["drift_ratio", "drift_norm"]) for (const method of ["spearman", "pearson"]) {
      const [r, p, asymptotic] = ["", "_p", "_p_asymptotic"].map((end) => value.get(`${subject}|${method}_${against}${end}`));
      if (r !== undefined) rows.push([SUBJECTS[subject].label, against.replace("_", " "), method === "spearman" ? "Spearman" : "Pearson", T.value[r], p === undefined ? null : T.value[p], asymptotic === undefined ? null : T.value[asymptotic], T.n[r]]);
    }
  }
  const panel = element("div", { class: "panel" }, element("h3", {}, "Tests over layers"), element("p", { class: "hint" }, "Correlation of the average cosine with drift; p by permutation, and by Student's t as in the paper."));
  panel.append(plainTable(["model", "against", "method", "correlation", "p", "p (t)", "layers"], rows, "Correlation tests"));
  host.append(panel);
}

function startSpectrum() {
  const metrics = new Set([...LAYERED.keys()].filter((name) => meaning(name).group === "spectrum"));
  const spectra = DATA.pictures.eigenvalues;
  if (!metrics.size && !spectra.length) return;
  const host = open("spectrum");
  if (metrics.size) {
    const bar = controls(host), state = { metric: metrics.has("participation_ratio_unbiased") ? "participation_ratio_unbiased" : [...metrics][0], scale: "linear" };
    const label = () => { const text = meaning(state.metric).label; return text[0].toUpperCase() + text.slice(1); };
    select(bar, "Measure", metricOptions(metrics).map(({ value, label: text }) => ({ value, label: text })), state.metric, (value) => { state.metric = value; chart.retitle(label(), meaning(value).meaning); chart.refresh(); });
    segments(bar, "Scale", [{ value: "linear", label: "linear" }, { value: "log", label: "log" }], "linear", (value) => { state.scale = value; chart.refresh(); });
    const both = metrics.has("participation_ratio_unbiased") && LAYERED.has("mean_cosine") && LAYERED.has("dimension");
    const box = grid(host, both);
    const chart = new Chart(box, { title: label(), caption: meaning(state.metric).meaning, build: (t) => layerChart(state.metric, "all", false, t, state.scale === "log") });
    if (both) new Chart(box, { title: "Two kinds of anisotropy", caption: "to the right: drift; downwards: few dimensions. Dotted: the thresholds of the verdict", build: twoKinds });
  }
  if (spectra.length) startEigenvalues(host, spectra);
}

function twoKinds(t) {
  const cosine = pick(LAYERED.get("mean_cosine")), ratio = pick(LAYERED.get("participation_ratio_unbiased")), size = pick(LAYERED.get("dimension"));
  const rows = [], all = [...cosine.keys()].filter((subject) => ratio.has(subject)), data = [];
  for (const subject of all.filter((one) => !hiddenSubjects.has(one))) {
    const at = (found) => new Map((found.get(subject) || []).map((i) => [T.site[i], i]));
    const ratios = at(ratio), sizes = at(size);
    const here = cosine.get(subject).filter((i) => ratios.has(T.site[i]) && sizes.has(T.site[i]));
    const share = (i) => T.value[ratios.get(T.site[i])] / T.value[sizes.get(T.site[i])];
    const colour = colourOf(subject, t);
    data.push({ x: here.map((i) => T.value[i]), y: here.map(share), text: here.map((i) => `${hover(i)}<br>dimensions in use: ${number(T.value[ratios.get(T.site[i])])} of ${number(T.value[sizes.get(T.site[i])])}`), name: shown(SUBJECTS[subject].label), hovertemplate: "%{text}<extra></extra>", mode: "markers", type: "scatter", cliponaxis: false, marker: { color: colour, size: 9, symbol: symbolOf(subject) } });
    rows.push(...here.map((i) => [SUBJECTS[subject].label, T.site[i], T.value[i], T.value[ratios.get(T.site[i])], T.value[sizes.get(T.site[i])]]));
  }
  const line = (place) => ({ type: "line", line: { color: t.soft, width: 1, dash: "dot" }, ...place });
  return { data, subjects: all, table: { head: ["model", "site", "mean_cosine", "participation_ratio_unbiased", "dimension"], rows }, layout: {
    xaxis: axis(t, "average cosine", { rangemode: "tozero" }), yaxis: axis(t, "dimensions in use, as a share", { rangemode: "tozero", tickformat: ".0%" }),
    shapes: [line({ xref: "x", yref: "paper", x0: 0.1, x1: 0.1, y0: 0, y1: 1 }), line({ xref: "paper", yref: "y", x0: 0, x1: 1, y0: 0.1, y1: 0.1 })],
  } };
}

function startEigenvalues(host, spectra) {
  const owner = (one) => one.model || SUBJECTS.find((subject) => subject.run === one.run)?.label || "";
  const names = [...new Set(spectra.map((one) => `${DATA.runs[one.run].label}\n${owner(one)}`))];
  const state = { name: names[0] }, bar = controls(host);
  if (names.length > 1) select(bar, "Spectrum of", names.map((value) => ({ value, label: value.split("\n")[1] + (DATA.runs.length > 1 ? ` · ${value.split("\n")[0]}` : "") })), state.name, (value) => { state.name = value; chart.refresh(); });
  const chart = new Chart(grid(host), { title: "Eigenvalues of the covariance", caption: "as shares of their sum, by rank, on logarithmic axes; an isotropic spectrum is flat at 1/d. From the first site (faint) to the last (strong)", build: (t) => {
    const mine = spectra.filter((one) => `${DATA.runs[one.run].label}\n${owner(one)}` === state.name);
    const d = mine[0].dimension;
    const data = mine.map((one, k) => ({ x: one.ranks, y: one.shares.map((share) => (share > 1e-9 ? share : null)), name: shown(one.site) + (one.step === null ? "" : `, step ${one.step}`), mode: "lines", type: "scatter", line: { width: 2, color: depthColour(mine.length > 1 ? k / (mine.length - 1) : 0.7, t) }, hovertemplate: `${shown(one.site)}<br>rank %{x}: %{y:.3g} of the variance<extra></extra>` }));
    data.push({ x: [1, d], y: [1 / d, 1 / d], mode: "lines", type: "scatter", name: "isotropic", line: { color: t.soft, dash: "dot", width: 1.2 }, hovertemplate: "isotropic: 1/d = %{y:.3g}<extra></extra>" });
    const rows = mine.flatMap((one) => one.ranks.map((rank, k) => [owner(one), one.site, one.step, rank, one.shares[k]]));
    const least = Math.min(...mine.flatMap((one) => one.shares.filter((share) => share > 1e-9)));
    return { data, table: { head: ["model", "site", "step", "rank", "share"], rows }, layout: { showlegend: false, xaxis: axis(t, "rank", { type: "log", dtick: 1 }), yaxis: axis(t, "share of the variance", { type: "log", range: [Math.log10(least) - 0.15, 0.05], dtick: 1, exponentformat: "power" }) } };
  } });
}

function startDimensions() {
  const found = new Map();
  for (const i of SHARES) if (T.positions[i] === "all" && T.step[i] === lastStep(T.subject[i])) add(found, T.subject[i], i);
  if (!found.size) return;
  const host = open("dimensions"), state = { subject: [...found.keys()][0] };
  if (found.size > 1) select(controls(host), "Model", [...found.keys()].map((subject) => ({ value: subject, label: SUBJECTS[subject].label })), state.subject, (value) => { state.subject = Number(value); chart.refresh(); });
  const chart = new Chart(grid(host), { title: "Share of the average cosine by dimension", caption: "the largest terms of each site; empty where a dimension is not among them. A share above 100 % is balanced by negative terms", height: 440, build: (t) => {
    const rows = found.get(state.subject), sites = [...new Set(rows.map((i) => T.site[i]))], weight = new Map();
    for (const i of rows) weight.set(T.at[i], (weight.get(T.at[i]) || 0) + Math.abs(T.value[i]));
    const dims = [...weight].sort((a, b) => b[1] - a[1]).slice(0, 24).map(([dim]) => dim);
    const cell = new Map(rows.map((i) => [`${T.site[i]}|${T.at[i]}`, i]));
    const at = (dim, site) => cell.get(`${site}|${dim}`);
    const table = { head: ["model", "site", "dimension", "share"], rows: rows.map((i) => [SUBJECTS[state.subject].label, T.site[i], T.at[i], T.value[i]]) };
    const data = [{ type: "heatmap", x: sites.map(shown), y: dims.map(String), z: dims.map((dim) => sites.map((site) => { const i = at(dim, site); return i === undefined ? null : T.value[i]; })), text: dims.map((dim) => sites.map((site) => { const i = at(dim, site); return i === undefined ? "" : hover(i, `share of dimension ${dim}`); })), hovertemplate: "%{text}<extra></extra>", hoverongaps: false, colorscale: SEQUENTIAL(t), zmin: 0, xgap: 2, ygap: 2, colorbar: bar(t, ".0%") }];
    return { data, table, layout: { xaxis: axis(t, "", { type: "category", showgrid: false }), yaxis: axis(t, "dimension", { type: "category", autorange: "reversed", showgrid: false }) } };
  } });
}

const bar = (t, tickformat = "") => ({ thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: t.soft }, tickformat, len: 0.9 });
