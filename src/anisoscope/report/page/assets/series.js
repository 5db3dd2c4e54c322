// Checkpoints of a training: metrics over steps, layers at a step, queries and keys in the plane of their head.
function startSeries() {
  const subjects = [...STEPS.keys()].filter((subject) => STEPS.get(subject).length > 1);
  if (!subjects.length) return;
  const host = open("series"), bar = controls(host);
  const state = { subject: subjects[0], metric: null, at: 0 };
  const metricsOf = () => new Set([...LAYERED.keys()].filter((metric) => LAYERED.get(metric).some((i) => T.subject[i] === state.subject && T.step[i] !== null)));
  const first = () => { const metrics = metricsOf(); return ["mean_cosine", "query_key_cosine"].find((name) => metrics.has(name)) || [...metrics][0]; };
  state.metric = first();
  state.at = STEPS.get(state.subject).length - 1;
  const update = () => { over.retitle(`${label()} over training`); at.retitle(`${label()} by layer, step ${number(STEPS.get(state.subject)[state.at])}`); [over, at, plane].forEach((chart) => chart?.refresh()); };
  const label = () => { const text = meaning(state.metric).label; return text[0].toUpperCase() + text.slice(1); };
  const restart = () => { state.metric = first(); state.at = STEPS.get(state.subject).length - 1; moving.replaceChildren(); choosers(); update(); };
  if (subjects.length > 1) select(bar, "Training", subjects.map((subject) => ({ value: subject, label: SUBJECTS[subject].label })), state.subject, (value) => { state.subject = Number(value); restart(); });
  const moving = element("div", { class: "controls", style: "margin:0" });
  bar.append(moving);
  const choosers = () => {
    select(moving, "Metric", metricOptions(metricsOf()), state.metric, (value) => { state.metric = value; update(); });
    slider(moving, "Step", STEPS.get(state.subject), state.at, (step) => number(step), (k) => { state.at = k; update(); });
  };
  choosers();
  const box = grid(host, true);
  const over = new Chart(box, { title: `${label()} over training`, caption: "a line for each site, the first faint and the last strong; the step of the slider is marked", build: (t) => overSteps(state, t) });
  const at = new Chart(box, { title: `${label()} by layer, step ${number(STEPS.get(state.subject)[state.at])}`, caption: "the first step in grey", build: (t) => atStep(state, t) });
  const plane = DATA.pictures.planes.length ? startPlane(host, state) : null;
}

function stepAxis(steps, t) {
  const every = Math.ceil(steps.length / 8);
  const shownSteps = steps.map((_, k) => k).filter((k) => k % every === 0 || k === steps.length - 1);
  return axis(t, "step", { tickvals: shownSteps, ticktext: shownSteps.map((k) => number(steps[k])) });
}

function overSteps(state, t) {
  const steps = STEPS.get(state.subject), place = new Map(steps.map((step, k) => [step, k]));
  const rows = (LAYERED.get(state.metric) || []).filter((i) => T.subject[i] === state.subject && T.positions[i] === "all" && T.step[i] !== null);
  const bySite = new Map();
  rows.forEach((i) => add(bySite, T.site[i], i));
  const sites = [...bySite.keys()], data = [];
  sites.forEach((site, k) => {
    const mine = bySite.get(site).sort((a, b) => T.step[a] - T.step[b]), share = sites.length > 1 ? k / (sites.length - 1) : 0.7;
    const colour = depthColour(share, t), x = mine.map((i) => place.get(T.step[i]));
    if (sites.length <= 8 && mine.every((i) => T.low[i] !== null)) data.push({ x: [...x, ...x.slice().reverse()], y: [...mine.map((i) => T.high[i]), ...mine.map((i) => T.low[i]).reverse()], fill: "toself", fillcolor: faint(colour, 0.15), line: { width: 0 }, mode: "lines", type: "scatter", hoverinfo: "skip", showlegend: false });
    data.push({ x, y: mine.map((i) => T.value[i]), text: mine.map((i) => hover(i)), name: shown(site), hovertemplate: "%{text}<extra></extra>", mode: "lines+markers", type: "scatter", line: { color: colour, width: 2 }, marker: { size: 5, color: colour } });
  });
  const nulls = new Map(rows.filter((i) => T.null[i] !== null).map((i) => [`${place.get(T.step[i])}`, T.null[i]]));
  const floor = nullShapes(nulls, t, spread(rows.map((i) => T.value[i])));
  const mark = { type: "line", yref: "paper", x0: state.at, x1: state.at, y0: 0, y1: 1, line: { color: t.accent, width: 1.4 } };
  return { data: [...floor.traces, ...data], words: extremes(rows, meaning(state.metric).label), table: { head: ROW_HEAD, rows: rows.map(rowCells) }, layout: { xaxis: stepAxis(steps, t), yaxis: axis(t, meaning(state.metric).label), shapes: [mark, ...floor.shapes], annotations: floor.annotations } };
}

function atStep(state, t) {
  const steps = STEPS.get(state.subject), rows = LAYERED.get(state.metric), mine = (step) => {
    const found = pick(rows, { step });
    return new Map([...found].filter(([subject]) => subject === state.subject));
  };
  const now = mine(steps[state.at]);
  if (!now.size) return null;
  const subjects = [state.subject];
  const { data, nulls } = layerTraces(now, t, { subjects });
  const start = mine(steps[0]);
  const before = (start.size ? layerTraces(start, t, { subjects }).data : []).filter((trace) => trace.fill !== "toself").map((trace) => ({ ...trace, line: { ...trace.line, color: t.soft, width: 1.3, dash: "dot" }, marker: { ...trace.marker, color: t.soft, size: 4 } }));
  // The axis holds still while the slider moves.
  const all = rows.filter((i) => T.subject[i] === state.subject && T.positions[i] === "all" && T.step[i] !== null).map((i) => T.value[i]);
  const pad = 0.06 * (spread(all) || 1), floor = nullShapes(nulls, t, spread(all));
  const ticks = siteTicks(now, subjects), here = now.get(state.subject);
  return { data: [...before, ...floor.traces, ...data], words: extremes(here, meaning(state.metric).label), table: { head: ROW_HEAD, rows: here.map(rowCells) }, layout: { xaxis: axis(t, ticks ? "site" : "layer", ticks || {}), yaxis: axis(t, meaning(state.metric).label, { range: [Math.min(...all) - pad, Math.max(...all) + pad] }), shapes: floor.shapes, annotations: floor.annotations } };
}

// Queries and keys of a head on the plane that holds most of them over all steps.
function startPlane(host, state) {
  const mine = () => DATA.pictures.planes.filter((plane) => plane.run === SUBJECTS[state.subject].run);
  const choice = { site: mine()[0]?.site, series: mine()[0]?.series, head: 0 }, bar = controls(host);
  const sites = [...new Set(DATA.pictures.planes.map((plane) => plane.site))], seeds = [...new Set(DATA.pictures.planes.map((plane) => plane.series))];
  const heads = Math.max(...DATA.pictures.planes.map((plane) => plane.query[0].length));
  const update = () => { chart.retitle(`Queries and keys of ${choice.site}, head ${choice.head}`); chart.refresh(); };
  if (seeds.length > 1) select(bar, "Seed", seeds.map((value) => ({ value, label: value })), choice.series, (value) => { choice.series = value; update(); });
  select(bar, "Layer", sites.map((value) => ({ value, label: value })), choice.site, (value) => { choice.site = value; update(); });
  select(bar, "Head", Array.from({ length: heads }, (_, k) => ({ value: k, label: String(k) })), 0, (value) => { choice.head = Number(value); update(); });
  const chart = new Chart(grid(host), { title: `Queries and keys of ${choice.site}, head ${choice.head}`, caption: "projected on the first two directions of all steps together; lines are the paths of the means, points a sample at the step of the slider", height: 460, build: (t) => {
    const plane = mine().find((one) => one.site === choice.site && one.series === choice.series);
    if (!plane || choice.head >= plane.query[0].length) return null;
    const step = STEPS.get(state.subject)[state.at];
    const at = Math.max(0, plane.steps.findLastIndex((one) => one <= step)), data = [], rows = [];
    for (const [side, colour, name] of [["query", paletteAt(0, t), "queries"], ["key", paletteAt(1, t), "keys"]]) {
      const path = plane[side].map((heads_) => heads_[choice.head]), points = plane[`${side}_points`]?.[at]?.[choice.head] || [];
      data.push({ x: points.map((p) => p[0]), y: points.map((p) => p[1]), mode: "markers", type: "scatter", name: `${name}, sample`, marker: { size: 5, color: faint(colour, 0.4) }, hoverinfo: "skip", showlegend: false });
      data.push({ x: path.map((p) => p[0]), y: path.map((p) => p[1]), mode: "lines+markers", type: "scatter", name, line: { color: colour, width: 1.6 }, marker: { color: colour, size: path.map((_, k) => (k === at ? 13 : 4)), symbol: side === "query" ? "circle" : "square" }, text: plane.steps.map((one) => `mean of ${name}<br>step ${number(one)}`), hovertemplate: "%{text}<br>(%{x:.3g}, %{y:.3g})<extra></extra>" });
      path.forEach((p, k) => rows.push([name, plane.steps[k], p[0], p[1]]));
    }
    const share = plane.share[choice.head], percent = (value) => `${Math.round(100 * value)} %`;
    return { data, table: { head: ["mean of", "step", "x", "y"], rows }, layout: { showlegend: true, legend: { orientation: "h", y: 1.06 }, xaxis: axis(t, `first direction (${percent(share[0])})`, { zeroline: true, zerolinecolor: t.line }), yaxis: axis(t, `second (${percent(share[1])})`, { zeroline: true, zerolinecolor: t.line }) } };
  } });
  return chart;
}
