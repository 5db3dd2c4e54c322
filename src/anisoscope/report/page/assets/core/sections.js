// The sections of the page. A section is one module in sections/ that registers
//   id, order       its place in the address and on the page
//   name, title     in the list of sections, and as a heading
//   intro           a sentence or two about what is seen
//   wants(data)     whether the runs hold what it draws
//   draw(host, data, leads)   leads: its chart opens the page, and need not be drawn again
//   lead(data)      optional: the chart that may open the page, as options of Chart, or null; the first of
//                   those that the sections offer, in the order `leads`, is taken
const registered = [];

export const register = (section) => registered.push(section);
export const wanted = (data) =>
  registered.filter((section) => section.wants(data)).sort((one, other) => one.order - other.order);
export const leading = (sections) =>
  sections.filter((section) => section.lead).sort((one, other) => one.leads - other.leads);
