// Rows as CSV (RFC 4180): every digit, null as nothing and an empty text as "". `csvOf` is pure.

export function csvOf(columns, rows) {
  const lines = [columns.map((column) => field(column.name)), ...rows.map((row) => row.map(field))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}

function field(it) {
  if (it === null || it === undefined) return "";
  const text = typeof it === "object" ? JSON.stringify(it) : String(it);
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Gives the reader a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
