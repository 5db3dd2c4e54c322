// The measurements as columns, who is who, and the ways to pick some of them.
const read = JSON.parse(document.getElementById("data").textContent);

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

// T.metric[i], T.value[i], …: the columns of row i; T.subject[i] is the number of its model in its run.
export const T = Object.fromEntries(Object.entries(read.columns).map(([name, column]) => [name, unfold(column)]));
export const COUNT = T.subject.length;
export const SUBJECTS = read.subjects;
export const commandOf = (i) => read.runs[SUBJECTS[T.subject[i]].run].command;
export const meaning = (metric) =>
  read.metrics[metric] || { group: "other", label: metric.replaceAll("_", " "), meaning: "" };
export const title = (metric) => meaning(metric).label.replace(/^./, (first) => first.toUpperCase());

export function add(map, key, i) {
  const list = map.get(key);
  if (list) list.push(i);
  else map.set(key, [i]);
}

// Studies whose sites are not places along a model have sections of their own; files of vectors have bars.
export const SECTIONED = new Set(read.runs.filter((run) => run.sectioned).map((run) => run.command));
const APART = new Set([...SECTIONED, "vectors"]);
const ABLATED = /\.(as_it_is|without_bias|unit_gain|mean_removed)$/;
const PARAMETERS = new Set(["gain_norm", "bias_norm", "bias_over_gain", "implied_cosine", "cosine_above_implied"]);
export const ablationOf = (site) => ABLATED.exec(site)?.[1] ?? null;
export const withoutAblation = (site) => site.replace(ABLATED, "");

// What sections draw: rows along models by metric, the same for heads, rows of each study, steps of each subject.
function index() {
  const found = { layered: new Map(), heads: new Map(), study: new Map(), shares: [], tests: [], ablations: [] };
  const along = new Set();
  for (let i = 0; i < COUNT; i++) {
    if (T.layer[i] !== null || T.step[i] !== null || T.site[i] === "embeddings") along.add(T.subject[i]);
  }
  for (let i = 0; i < COUNT; i++) {
    if (T.metric[i] === "verdict" || T.value[i] === null) continue;
    const command = commandOf(i);
    if (APART.has(command) || !along.has(T.subject[i])) add(found.study, command, i);
    if (T.metric[i] === "cosine_share") found.shares.push(i);
    else if (!APART.has(command) && along.has(T.subject[i])) place(found, i);
  }
  return found;
}

function place(found, i) {
  const metric = T.metric[i];
  if (T.site[i] === "layers") found.tests.push(i);
  else if (T.head[i] !== null) add(found.heads, metric, i);
  else if (ABLATED.test(T.site[i]) || PARAMETERS.has(metric)) found.ablations.push(i);
  else if (T.at[i] === null) add(found.layered, metric, i);
}

function stepsOf(maps) {
  const found = new Map();
  for (const rows of maps.flatMap((map) => [...map.values()])) {
    for (const i of rows) if (T.step[i] !== null) add(found, T.subject[i], T.step[i]);
  }
  for (const [subject, steps] of found) found.set(subject, [...new Set(steps)].sort((a, b) => a - b));
  return found;
}

const indexed = index();
export const data = { ...read, ...indexed, steps: stepsOf([indexed.layered, indexed.heads]) };
export const lastStep = (subject) => data.steps.get(subject)?.at(-1) ?? null;
export const trainings = () => [...data.steps.keys()].filter((subject) => data.steps.get(subject).length > 1);

// Rows of a metric by subject, at the last step unless told otherwise.
export function pick(rows, { positions = "all", step = undefined } = {}) {
  const found = new Map();
  for (const i of rows || []) {
    const subject = T.subject[i];
    const wanted = step === undefined ? lastStep(subject) : step;
    if (T.positions[i] === positions && T.step[i] === wanted) add(found, subject, i);
  }
  return found;
}

// The rows of a study by one of their columns.
export function by(rows, column) {
  const found = new Map();
  for (const i of rows) add(found, T[column][i], i);
  return found;
}

export const distinct = (values) => [...new Set(values)];
export const spread = (values) => (values.length ? Math.max(...values) - Math.min(...values) : 0);
