// Plain tables. A table that is wider than its place shows a shaded edge where it goes on.
import { element } from "./dom.js";
import { number } from "./text.js";

const MOST = 300;
const SHORT = 26; // letters that stay on one line
const INTERVAL = /^-?[\d.,e-]+ … -?[\d.,e-]+$/;

export function scrolling(table, name, more = "") {
  const box = element("div", { class: `scroll ${more}`, tabindex: "0", role: "region", "aria-label": name }, table);
  const mark = () => {
    const left = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("goes-on", left > 2);
    box.classList.toggle("came-from", box.scrollLeft > 2);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  new ResizeObserver(mark).observe(table);
  return box;
}

export function plainTable(head, rows, name) {
  const numeric = (value) => typeof value === "number" || INTERVAL.test(value ?? "");
  const text = (k) => (rows.every((row) => String(row[k] ?? "").length <= SHORT) ? "text short" : "text");
  const kinds = head.map((_, k) => (rows.some((row) => numeric(row[k])) ? "number" : text(k)));
  const cell = (value) => (typeof value === "number" ? number(value) : value ?? "–");
  const heads = head.map((text, k) => element("th", { scope: "col", class: kinds[k] }, text));
  const lines = rows.slice(0, MOST).map((row) =>
    element("tr", {}, ...row.map((value, k) => element("td", { class: kinds[k] }, cell(value))))
  );
  const table = element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...lines),
  );
  const box = scrolling(table, name);
  if (rows.length > MOST) {
    box.append(element("p", { class: "hint" }, `${rows.length - MOST} more rows are in the CSV.`));
  }
  return box;
}
