// All measurements: filtered, sorted, paged, exported.
function startTable() {
  const host = open("table"), bar = controls(host), page = { size: 50, at: 0 };
  const head = ["model", "run", "site", "positions", "step", "at", "seed", "metric", "value", "low", "high", "null", "n", "note"];
  const read = { model: (i) => SUBJECTS[T.subject[i]].model || SUBJECTS[T.subject[i]].label, run: (i) => DATA.runs[SUBJECTS[T.subject[i]].run].label };
  const cell = (name, i) => (read[name] ? read[name](i) : T[name][i]);
  const shownColumns = head.filter((name) => read[name] || T[name].some((value) => value !== null && value !== ""));
  const numeric = new Set(["step", "at", "seed", "value", "low", "high", "null", "n"]);
  const filter = { text: "", model: "", site: "", metric: "", positions: "" }, sort = { by: null, down: false };
  let found = [];

  const search = element("input", { type: "search", placeholder: "e.g. block.3 cosine", "aria-label": "Search in all columns" });
  let waiting = null;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { filter.text = search.value; update(); }, 150); });
  bar.append(element("label", {}, "Search", search));
  for (const name of ["model", "site", "metric", "positions"]) {
    const values = [...new Set(Array.from({ length: COUNT }, (_, i) => cell(name, i)))];
    if (values.length > 1) select(bar, name[0].toUpperCase() + name.slice(1), [{ value: "", label: "all" }, ...values.map((value) => ({ value, label: value }))], "", (value) => { filter[name] = value; update(); });
  }
  bar.append(element("button", { type: "button", onclick: () => download("measurements.csv", csv([...head, "protocol"], found.map((i) => [...head.map((name) => cell(name, i)), T.protocol[i]])), "text/csv") }, "Export CSV"));

  const heads = shownColumns.map((name) => element("th", { scope: "col", class: numeric.has(name) ? "number" : null }, element("button", { type: "button", onclick: () => order(name) }, name)));
  const body = element("tbody");
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  host.append(element("div", { class: "scroll wide", tabindex: "0", role: "region", "aria-label": "All measurements" }, table));
  const said = element("span", { role: "status" });
  const back = element("button", { type: "button", onclick: () => turn(-1) }, "Back"), on = element("button", { type: "button", onclick: () => turn(1) }, "Next");
  host.append(element("div", { class: "pager" }, back, on, said));

  function order(name) {
    sort.down = sort.by === name ? !sort.down : numeric.has(name);
    sort.by = name;
    shownColumns.forEach((column, k) => { if (column === name) heads[k].setAttribute("aria-sort", sort.down ? "descending" : "ascending"); else heads[k].removeAttribute("aria-sort"); });
    update();
  }
  function turn(by) { page.at += by; draw(); }
  function matches(i, words) {
    for (const name of ["model", "site", "metric", "positions"]) if (filter[name] && cell(name, i) !== filter[name]) return false;
    if (!words.length) return true;
    const text = `${read.model(i)} ${read.run(i)} ${T.site[i]} ${T.metric[i]} ${T.note[i]} ${T.positions[i]}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }
  function update() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    found = [];
    for (let i = 0; i < COUNT; i++) if (matches(i, words)) found.push(i);
    if (sort.by) {
      const sign = sort.down ? -1 : 1;
      found.sort((a, b) => {
        const x = cell(sort.by, a), y = cell(sort.by, b);
        if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1; // what is missing comes last
        return (x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
      });
    }
    page.at = 0;
    draw();
  }
  function draw() {
    const first = page.at * page.size, rows = found.slice(first, first + page.size);
    body.replaceChildren(...rows.map((i) => element("tr", { title: T.protocol[i] }, ...shownColumns.map((name) => {
      const value = cell(name, i);
      return element("td", { class: numeric.has(name) ? "number" : "text" }, numeric.has(name) ? number(value) : value || "");
    }))));
    said.textContent = found.length ? `${(first + 1).toLocaleString("en")}–${(first + rows.length).toLocaleString("en")} of ${found.length.toLocaleString("en")}` : "Nothing matches.";
    back.disabled = page.at === 0;
    on.disabled = first + rows.length >= found.length;
  }
  update();
}
