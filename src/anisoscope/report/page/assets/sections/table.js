// All measurements: filtered, sorted, paged, exported.
import { controls } from "../core/controls.js";
import { COUNT, data, distinct, SUBJECTS, T } from "../core/data.js";
import { element } from "../core/dom.js";
import { csv, download } from "../core/files.js";
import { register } from "../core/sections.js";
import { scrolling } from "../core/table.js";
import { number, valued } from "../core/text.js";
import { View } from "../core/address.js";

const HEAD = [
  "model",
  "site",
  "metric",
  "value",
  "low",
  "high",
  "null",
  "n",
  "step",
  "seed",
  "at",
  "positions",
  "run",
  "note",
];
const NUMERIC = new Set(["step", "at", "seed", "value", "low", "high", "null", "n"]);
const FILTERS = ["model", "site", "metric", "positions"];
const SHARED = [...FILTERS.filter((name) => name !== "metric"), "run"]; // said once where all rows have the same
const PAGE = 50;
const READ = {
  model: (i) => SUBJECTS[T.subject[i]].model || SUBJECTS[T.subject[i]].label,
  run: (i) => data.runs[SUBJECTS[T.subject[i]].run].label,
};
const cell = (name, i) => (READ[name] ? READ[name](i) : T[name][i]);
const valuesOf = (name) => distinct(Array.from({ length: COUNT }, (_, i) => cell(name, i)));
const capital = (text) => text.replace(/^./, (first) => first.toUpperCase());

function matches(i, view, words) {
  for (const name of FILTERS) if (view[name] && cell(name, i) !== view[name]) return false;
  if (!words.length) return true;
  const texts = [READ.model(i), READ.run(i), T.site[i], T.metric[i], T.note[i], T.positions[i]];
  const text = texts.join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

// What is missing comes last, whichever way.
function compare(name, sign) {
  return (a, b) => {
    const x = cell(name, a), y = cell(name, b);
    if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1;
    return (x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
  };
}

function select(view) {
  const words = view.text.toLowerCase().split(/\s+/).filter(Boolean), found = [];
  for (let i = 0; i < COUNT; i++) if (matches(i, view, words)) found.push(i);
  if (view.sort) found.sort(compare(view.sort.replace("-", ""), view.sort.startsWith("-") ? -1 : 1));
  return found;
}

function filters(bar, view) {
  const search = element("input", {
    type: "search",
    placeholder: "e.g. block.3 cosine",
    "aria-label": "Search in all columns",
    value: view.text,
  });
  let waiting = null;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => view.change({ text: search.value, page: 0 }, { replace: true }), 150);
  });
  bar.append(element("label", {}, "Search", search));
  for (const name of FILTERS) {
    const values = valuesOf(name);
    if (values.length < 2) continue;
    const list = ["", ...values].map((value) => element("option", { value }, value || "all"));
    const made = element("select", { "aria-label": capital(name) }, ...list);
    made.addEventListener("change", () => view.change({ [name]: made.value, page: 0 }));
    view.listen(() => (made.value = view[name]));
    made.value = view[name];
    bar.append(element("label", {}, capital(name), made));
  }
  view.listen(() => document.activeElement !== search && (search.value = view.text));
}

function heading(name, view) {
  const order = () => {
    const down = view.sort === name || (NUMERIC.has(name) && view.sort !== `-${name}`);
    view.change({ sort: down ? `-${name}` : name, page: 0 });
  };
  const made = element("th", { scope: "col", class: NUMERIC.has(name) ? "number" : null });
  made.append(element("button", { type: "button", onclick: order }, name));
  const mark = () => {
    const sorted = { [name]: "ascending", [`-${name}`]: "descending" }[view.sort];
    if (sorted) made.setAttribute("aria-sort", sorted);
    else made.removeAttribute("aria-sort");
  };
  view.listen(mark);
  mark();
  return made;
}

const SHORT = 26; // letters that stay on one line

function kindOf(name) {
  if (NUMERIC.has(name)) return "number";
  return valuesOf(name).every((text) => (text ?? "").length <= SHORT) ? "text short" : "text";
}

// A long name may break after a mark, where the screen is narrow.
const breakable = (text) => text.split(/(?<=[_/.-])/).flatMap((part) => [element("wbr"), part]).slice(1);

function line(i, columns) {
  const cells = [...columns].map(([name, kind]) => {
    const value = cell(name, i);
    const text = name === "value" ? valued(i) : kind === "number" ? number(value) : value || "";
    return element("td", { class: kind }, ...(name === "metric" && kind === "text" ? breakable(text) : [text]));
  });
  return element("tr", { title: T.protocol[i] }, ...cells);
}

register({
  id: "table",
  order: 1000,
  name: "Table",
  title: "All measurements",
  intro: "Four significant digits are shown; the CSV has six, the run folders have all.",
  wants: () => COUNT > 0,
  draw(host) {
    const view = new View("table", { text: "", model: "", site: "", metric: "", positions: "", sort: "", page: 0 });
    const told = HEAD.filter((name) => READ[name] || T[name].some((value) => value !== null && value !== ""));
    const same = told.filter((name) => SHARED.includes(name) && valuesOf(name).length === 1);
    const columns = new Map(told.filter((name) => !same.includes(name)).map((name) => [name, kindOf(name)]));
    const named = same.filter((name) => name !== "run" || cell("run", 0) !== cell("model", 0));
    const once = named.map((name) => `${name} ${cell(name, 0)}`).join(", ");
    if (once) host.append(element("p", { class: "hint" }, `The same in every row: ${once}.`));
    const bar = controls(host), body = element("tbody"), said = element("span", { role: "status" });
    let found = [];
    filters(bar, view);
    const save = () => {
      const rows = found.map((i) => [...HEAD.map((name) => cell(name, i)), T.protocol[i]]);
      download("measurements.csv", csv([...HEAD, "protocol"], rows), "text/csv");
    };
    bar.append(element("button", { type: "button", onclick: save }, "Export CSV"));
    const heads = [...columns.keys()].map((name) => heading(name, view));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
    const turn = (by) => () => view.change({ page: view.page + by }, { replace: true });
    const back = element("button", { type: "button", onclick: turn(-1) }, "Back");
    const on = element("button", { type: "button", onclick: turn(1) }, "Next");
    host.append(scrolling(table, "All measurements", "wide"), element("div", { class: "pager" }, back, on, said));
    const draw = () => {
      found = select(view);
      const first = view.page * PAGE, rows = found.slice(first, first + PAGE), last = first + rows.length;
      body.replaceChildren(...rows.map((i) => line(i, columns)));
      const range = `${(first + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${
        found.length.toLocaleString("en")
      }`;
      said.textContent = found.length ? range : "Nothing matches.";
      back.disabled = view.page === 0;
      on.disabled = last >= found.length;
    };
    view.listen(draw);
    draw();
  },
});
