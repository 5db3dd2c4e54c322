// The measurements as columns, and the ways to pick some of them.
const DATA = JSON.parse(document.getElementById("data").textContent);

function unfold(column) {
  let values = column.plain;
  if (!values) {
    values = [];
    for (let i = 0; i < column.pairs.length; i += 2) {
      for (let left = column.pairs[i + 1]; left > 0; left--) values.push(column.pairs[i]);
    }
  }
  return column.words ? values.map((code) => column.words[code]) : values;
}

const T = {};
for (const [name, column] of Object.entries(DATA.columns)) T[name] = unfold(column);
const COUNT = T.subject.length;
const SUBJECTS = DATA.subjects;
const commandOf = (i) => DATA.runs[SUBJECTS[T.subject[i]].run].command;

// Studies with a section of their own: their sites are no places along a model.
const OWN = new Set(["block", "null", "calibrate", "compare"]);
const ABLATED = /\.(as_it_is|without_bias|unit_gain|mean_removed)$/;
const PARAMETERS = new Set(["gain_norm", "bias_norm", "bias_over_gain", "implied_cosine"]);

// metric → rows along the sites of models; the same for heads; rows of each study; last step of each subject.
const LAYERED = new Map(), HEADS = new Map(), STUDY = new Map(), STEPS = new Map(), SHARES = [], TESTS = [], ABLATIONS = [];
function add(map, key, i) {
  const list = map.get(key);
  if (list) list.push(i); else map.set(key, [i]);
}
for (let i = 0; i < COUNT; i++) {
  const metric = T.metric[i], command = commandOf(i);
  if (OWN.has(command)) { add(STUDY, command, i); continue; }
  if (metric === "verdict" || T.value[i] === null) continue;
  if (T.step[i] !== null) {
    const steps = STEPS.get(T.subject[i]) || STEPS.set(T.subject[i], new Set()).get(T.subject[i]);
    steps.add(T.step[i]);
  }
  if (T.site[i] === "layers") TESTS.push(i);
  else if (T.head[i] !== null) add(HEADS, metric, i);
  else if (metric === "cosine_share") SHARES.push(i);
  else if (ABLATED.test(T.site[i]) || PARAMETERS.has(metric) || metric === "cosine_above_implied") ABLATIONS.push(i);
  else if (T.at[i] === null) add(LAYERED, metric, i);
}
for (const [subject, steps] of STEPS) STEPS.set(subject, [...steps].sort((a, b) => a - b));
const lastStep = (subject) => (STEPS.has(subject) ? STEPS.get(subject).at(-1) : null);

// Rows of a metric by subject, at the last step unless told otherwise; the first seed where there are several.
function pick(rows, { positions = "all", step } = {}) {
  const found = new Map(), seen = new Set();
  for (const i of rows || []) {
    const subject = T.subject[i];
    if (T.positions[i] !== positions || T.step[i] !== (step === undefined ? lastStep(subject) : step)) continue;
    const place = `${subject}\n${T.site[i]}`;
    if (seen.has(place)) continue;
    seen.add(place);
    add(found, subject, i);
  }
  return found;
}

// Where a site stands along its model: embeddings 0, block K at K + 1, the final norm after the last block.
function along(rows) {
  const numbered = rows.some((i) => T.layer[i] !== null);
  const last = Math.max(-1, ...rows.map((i) => T.layer[i] ?? -1));
  return rows.map((i, place) => {
    if (!numbered) return place;
    if (T.layer[i] === null) return T.site[i].endsWith("embeddings") ? 0 : last + 2;
    const after = T.site[i].endsWith("norm") && !T.site[i].includes("before") ? 1 : 0;
    return T.layer[i] + 1 + after - (T.site[i].endsWith(".before_norm") ? 0.5 : 0);
  });
}

// Towers and kinds of attention are lines of their own.
function stackOf(site) {
  const tower = /^(encoder|decoder)\./.exec(site);
  return (tower ? tower[1] : "") + (site.endsWith(".cross") ? " cross" : "");
}

function number(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1e-12) return "0";
  if (Number.isInteger(value)) return Math.abs(value) < 1e7 ? value.toLocaleString("en") : value.toExponential(3);
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}
const interval = (i) => (T.low[i] === null || T.high[i] === null ? "" : `${number(T.low[i])} … ${number(T.high[i])}`);
const meaning = (metric) => DATA.metrics[metric] || { group: "other", label: metric.replaceAll("_", " "), meaning: "" };

// Plotly reads a little HTML in texts; names are shown as they are.
const shown = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function hover(i, what = "") {
  const lines = [`<b>${shown(SUBJECTS[T.subject[i]].label)}</b>`, shown(T.site[i]) + (T.positions[i] === "all" ? "" : `, ${T.positions[i]} positions`)];
  if (T.step[i] !== null) lines.push(`step ${number(T.step[i])}`);
  lines.push(`${shown(what || meaning(T.metric[i]).label)}: <b>${number(T.value[i])}</b>`);
  if (interval(i)) lines.push(`95 %: ${interval(i)}`);
  if (T.null[i] !== null) lines.push(`isotropic: ${number(T.null[i])}`);
  if (T.n[i] !== null) lines.push(`n = ${number(T.n[i])}`);
  return lines.join("<br>");
}

const ROW_HEAD = ["model", "run", "site", "positions", "step", "metric", "value", "low", "high", "null", "n"];
function rowCells(i) {
  const subject = SUBJECTS[T.subject[i]];
  return [subject.model || subject.label, DATA.runs[subject.run].label, T.site[i], T.positions[i], T.step[i], T.metric[i], T.value[i], T.low[i], T.high[i], T.null[i], T.n[i]];
}

function csv(head, rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    // A leading =, +, - or @ would be a formula to a spreadsheet; numbers are numbers.
    const text = typeof value === "string" && /^[=+\-@\t]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function download(name, content, type) {
  const address = content.startsWith("data:") ? content : URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  if (!content.startsWith("data:")) setTimeout(() => URL.revokeObjectURL(address), 10000);
}
