// Layer × head maps; a head opens in a panel of its own.
function startHeads() {
  const metrics = new Set(HEADS.keys());
  if (!metrics.size) return;
  const host = open("heads"), choices = controls(host);
  const subjects = [...new Set([...HEADS.values()].flat().map((i) => T.subject[i]))];
  const preferred = ["query_key_cosine", "entropy_normalised", "salience_share"].find((name) => metrics.has(name)) || [...metrics][0];
  const state = { subject: subjects[0], metric: preferred, step: lastStep(subjects[0]), site: null, head: null };
  const update = () => { chart.retitle(title()); chart.refresh(); fillChoosers(); openHead(); };
  const title = () => `${meaning(state.metric).label[0].toUpperCase()}${meaning(state.metric).label.slice(1)} by layer and head`;
  if (subjects.length > 1) select(choices, "Model", subjects.map((subject) => ({ value: subject, label: SUBJECTS[subject].label })), state.subject, (value) => { state.subject = Number(value); state.step = lastStep(state.subject); placeSlider(); update(); });
  select(choices, "Metric", metricOptions(metrics), state.metric, (value) => { state.metric = value; update(); });
  const steps = element("div");
  choices.append(steps);
  const placeSlider = () => {
    steps.replaceChildren();
    const known = STEPS.get(state.subject) || [];
    if (known.length > 1) slider(steps, "Step", known, known.length - 1, (step) => number(step), (k) => { state.step = known[k]; chart.refresh(); openHead(); });
  };
  placeSlider();
  const rowsOf = (metric) => (HEADS.get(metric) || []).filter((i) => T.subject[i] === state.subject && T.step[i] === state.step && T.positions[i] === "all");
  const layerOf = (i) => T.site[i].replace(/\.head\.\d+.*$/, "");
  const chart = new Chart(grid(host), { title: title(), height: 440, click: (point) => choose(point.customdata), build: (t) => headMap(rowsOf(state.metric), layerOf, state.metric, t) });
  chart.caption.textContent = "a click opens the head below; the two lists under the map do the same";

  const chooser = controls(host);
  const layers = select(chooser, "Layer", [], null, (value) => choose([value, state.head ?? 0]));
  const heads = select(chooser, "Head", [], null, (value) => choose([state.site ?? layers.value, Number(value)]));
  const panel = element("div", { class: "panel", "aria-live": "polite", id: "head", tabindex: "-1" });
  host.append(panel);
  function fillChoosers() {
    const rows = rowsOf(state.metric), sites = [...new Set(rows.map(layerOf))], numbers = [...new Set(rows.map((i) => T.head[i]))].sort((a, b) => a - b);
    layers.replaceChildren(...sites.map((site) => element("option", { value: site, selected: site === state.site }, site)));
    heads.replaceChildren(...numbers.map((head) => element("option", { value: head, selected: head === state.head }, String(head))));
  }
  function choose([site, head]) { Object.assign(state, { site, head }); fillChoosers(); openHead(); }
  function openHead() {
    if (state.site === null) { panel.hidden = true; return; }
    panel.hidden = false;
    const rows = [...HEADS.keys()].flatMap((metric) => rowsOf(metric)).filter((i) => layerOf(i) === state.site && T.head[i] === state.head);
    const cells = rows.map((i) => [T.site[i].replace(/^.*\.head\.\d+\.?/, "") || "head", meaning(T.metric[i]).label, T.value[i], interval(i), T.null[i], T.n[i], T.note[i]]);
    panel.replaceChildren(
      element("h3", {}, `${state.site}, head ${state.head}`), element("p", { class: "hint" }, SUBJECTS[state.subject].label + (state.step === null ? "" : `, step ${number(state.step)}`)),
      plainTable(["of", "metric", "value", "95 % interval", "null", "n", "note"], cells, `All measurements of head ${state.head} of ${state.site}`),
    );
  }
  fillChoosers();
  openHead();
}

function headMap(rows, layerOf, metric, t) {
  if (!rows.length) return null;
  const sites = [...new Set(rows.map(layerOf))], heads = [...new Set(rows.map((i) => T.head[i]))].sort((a, b) => a - b);
  const cell = new Map(rows.map((i) => [`${layerOf(i)}|${T.head[i]}`, i]));
  const over = (give) => sites.map((site) => heads.map((head) => { const i = cell.get(`${site}|${head}`); return i === undefined ? null : give(i); }));
  const values = rows.map((i) => T.value[i]), signed = Math.min(...values) < 0, reach = Math.max(...values.map(Math.abs), 1e-12);
  const scale = signed ? { colorscale: DIVERGING(t), zmin: -reach, zmax: reach } : { colorscale: SEQUENTIAL(t) };
  const data = [{ type: "heatmap", x: heads.map(String), y: sites.map(shown), z: over((i) => T.value[i]), text: over((i) => hover(i)), customdata: over((i) => [layerOf(i), T.head[i]]), hovertemplate: "%{text}<extra></extra>", hoverongaps: false, xgap: 2, ygap: 2, colorbar: bar(t), ...scale }];
  return { data, words: extremes(rows, meaning(metric).label), table: { head: ROW_HEAD, rows: rows.map(rowCells) }, layout: { xaxis: axis(t, "head", { type: "category", showgrid: false }), yaxis: axis(t, "", { type: "category", showgrid: false }) } };
}
