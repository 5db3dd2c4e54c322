// Elements without markup: every text becomes a text node, so no name can become an element or a script.
const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const element = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const drawing = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

export function grid(host, two = false) {
  const made = element("div", { class: two ? "charts two" : "charts" });
  host.append(made);
  return made;
}

export function panel(host, heading, ...children) {
  const made = element("div", { class: "panel" }, element("h3", {}, heading), ...children);
  host.append(made);
  return made;
}
