// What can be saved: tables as CSV, charts as images.
import { data, SUBJECTS, T } from "./data.js";

export const ROW_HEAD = ["model", "run", "site", "positions", "step", "metric", "value", "low", "high", "null", "n"];

export function rowCells(i) {
  const subject = SUBJECTS[T.subject[i]];
  const where = [subject.model || subject.label, data.runs[subject.run].label, T.site[i], T.positions[i], T.step[i]];
  return [...where, T.metric[i], T.value[i], T.low[i], T.high[i], T.null[i], T.n[i]];
}

export const rowTable = (rows) => ({ head: ROW_HEAD, rows: rows.map(rowCells) });

export function csv(head, rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    // A leading =, +, - or @ would be a formula to a spreadsheet; numbers are numbers.
    const text = typeof value === "string" && /^[=+\-@\t]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function download(name, content, type) {
  const inline = content.startsWith("data:");
  const link = document.createElement("a");
  link.href = inline ? content : URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  if (!inline) setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
