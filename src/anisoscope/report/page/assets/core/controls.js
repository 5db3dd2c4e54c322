// Controls bound to a view: they change it, and follow when it changes by the back button.
import { data, meaning } from "./data.js";
import { element } from "./dom.js";

const GROUPS = {
  direction: "Direction",
  spectrum: "Spectrum",
  neighbourhood: "Neighbourhood",
  activations: "Activations",
  counts: "Counts",
  attention: "Attention",
  output: "Output",
  block: "Block",
  vocabulary: "Vocabulary",
  other: "More",
};

export function controls(host) {
  const made = element("div", { class: "controls" });
  host.append(made);
  return made;
}

export const options = (values, label = (value) => String(value)) =>
  values.map((value) => ({ value, label: label(value) }));

export function metricOptions(metrics) {
  const names = Object.keys(data.metrics).filter((name) => metrics.has(name));
  const group = (name) => GROUPS[meaning(name).group] || meaning(name).group;
  return names.map((name) => ({ value: name, label: meaning(name).label, group: group(name) }));
}

function fill(made, list, value) {
  const groups = new Map();
  made.replaceChildren();
  for (const option of list) {
    let home = made;
    if (option.group) {
      home = groups.get(option.group) || element("optgroup", { label: option.group });
      if (!groups.has(option.group)) made.append(home);
      groups.set(option.group, home);
    }
    const chosen = String(option.value) === String(value);
    home.append(element("option", { value: option.value, selected: chosen }, option.label));
  }
}

// `list` is a list of options, or a function that gives one where it depends on other choices.
export function select(host, label, list, view, key) {
  const given = () => (typeof list === "function" ? list() : list);
  const made = element("select", { "aria-label": label, onchange: () => change() });
  const change = () => {
    const option = given().find((one) => String(one.value) === made.value);
    view.change({ [key]: option ? option.value : made.value });
  };
  const sync = () => fill(made, given(), view[key]);
  sync();
  view.listen(sync);
  host.append(element("label", {}, label, made));
  return made;
}

let count = 0;
export function segments(host, label, list, view, key) {
  const name = `choice-${count++}`;
  const inputs = list.map(({ value }) =>
    element("input", { type: "radio", name, value, onchange: () => view.change({ [key]: value }) })
  );
  const labels = list.map((option, k) => element("label", {}, inputs[k], option.label));
  const sync = () => inputs.forEach((input, k) => (input.checked = list[k].value === view[key]));
  sync();
  view.listen(sync);
  const box = element("div", { class: "segments" }, ...labels);
  host.append(element("fieldset", {}, element("legend", {}, label), box));
}

// A slider over known values (steps, drift norms); `values` is a function because they may depend on other choices.
export function slider(host, label, values, view, key, words) {
  const said = element("output");
  const made = element("input", { type: "range", "aria-label": label, min: 0, step: 1 });
  const box = element("label", {}, label, element("span", { class: "slider" }, made, said));
  const sync = () => {
    const known = values();
    box.hidden = known.length < 2;
    if (!known.length) return;
    made.max = known.length - 1;
    made.value = Math.max(0, known.indexOf(view[key]));
    said.textContent = words(known[made.value]);
    made.setAttribute("aria-valuetext", words(known[made.value]));
  };
  // While it is dragged the address is rewritten, so that one drag is one step back at most.
  made.addEventListener("input", () => view.change({ [key]: values()[made.value] }, { replace: true }));
  sync();
  view.listen(sync);
  host.append(box);
  return made;
}
