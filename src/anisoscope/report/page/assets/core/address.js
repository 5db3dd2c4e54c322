// What was chosen, kept in the address: #heads?heads.metric=entropy&heads.step=64. A link shows the same view, and the
// back button takes the last choice back. Only what differs from the first view is written.
const views = [];
let section = "summary";

function parse() {
  const [place, query = ""] = location.hash.slice(1).split("?");
  return { place: decodeURIComponent(place), chosen: new URLSearchParams(query) };
}

// Values come back as what they were: numbers where the first value was a number.
function revive(text, first) {
  if (text === null) return first;
  return typeof first === "number" && Number.isFinite(Number(text)) ? Number(text) : text;
}

// A view has the properties that it is given, so the type checker is told to expect any.
export const View = /** @type {any} */ (class {
  // view.metric, view.step, …; allowed.step(view) lists what an address may say;
  // onchange() after every change, by the reader or by the back button.
  constructor(name, first, { allowed = {} } = {}) {
    this.name = name;
    this.defaults = first;
    this.allowed = allowed;
    this.listeners = [];
    this.read(parse().chosen);
    views.push(this);
  }

  read(chosen) {
    for (const [key, first] of Object.entries(this.defaults)) {
      const value = revive(chosen.get(`${this.name}.${key}`), first);
      const known = this.allowed[key]?.(this);
      this[key] = known && !known.includes(value) ? first : value;
    }
  }

  change(values, { replace = false } = {}) {
    Object.assign(this, values);
    write(replace);
    this.tell();
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  tell() {
    this.listeners.forEach((listener) => listener());
  }
});

function address() {
  const { chosen } = parse(); // with the choices of sections that are not drawn yet
  for (const view of views) {
    for (const [key, first] of Object.entries(view.defaults)) {
      if (view[key] === first || view[key] === null) chosen.delete(`${view.name}.${key}`);
      else chosen.set(`${view.name}.${key}`, view[key]);
    }
  }
  const query = chosen.toString();
  return `#${encodeURIComponent(section)}${query ? `?${query}` : ""}`;
}

function write(replace) {
  const now = address();
  if (now === location.hash || (now === "#summary" && !location.hash)) return;
  if (replace) history.replaceState(null, "", now);
  else history.pushState(null, "", now);
}

// The section in view: by a click it is a step to come back to, by scrolling it is not.
export function visit(id, { replace = false } = {}) {
  section = id;
  write(replace);
}

export const asked = () => parse().place;

export function follow(goto) {
  section = asked() || "summary";
  globalThis.addEventListener("popstate", () => {
    const { place, chosen } = parse();
    for (const view of views) {
      view.read(chosen);
      view.tell();
    }
    section = place || "summary";
    goto(section);
  });
}
