// Hits of stored queries, with the words that were asked for marked. `piecesOf` is pure; texts stay text.

import { h } from "./dom.js";
import { clock } from "./format.js";
import { panel, shown } from "./parts.js";

const HITS_MAX = 50;
const CELLS_MAX = 8;
const OWN = ["query", "version", "highlights"];

/** A text in pieces, each with whether it is one that was asked for. `spans`: [[begin, end]] in characters. */
export function piecesOf(text, spans) {
  const characters = [...text]; // as the server counts them, and not as UTF-16
  const pieces = [];
  const add = (from, to, marked) => from < to && pieces.push({ text: characters.slice(from, to).join(""), marked });
  let at = 0;
  for (const [begin, end] of spans) {
    add(at, begin, false);
    add(Math.max(at, begin), end, true);
    at = Math.max(at, end);
  }
  add(at, characters.length, false);
  return pieces;
}

/** The panel of hits [{at, row}], with the columns that were searched; `keyed(hit)` tells them apart. */
export function hitsPanel(hits, texts, today, keyed) {
  return panel(
    "Latest hits",
    { key: "hits", wide: true, about: "The words that a query asked for are marked." },
    h(
      "ol",
      { class: "hits" },
      hits.slice(0, HITS_MAX).map((hit) => h("li", { key: keyed(hit), tabindex: "0" }, one(hit, texts, today))),
    ),
  );
}

function one({ at, row }, texts, today) {
  const marks = marksOf(row.highlights);
  const rest = Object.entries(row).filter(
    ([name]) => !OWN.includes(name) && !texts.includes(name) && !name.startsWith("_"),
  );
  return [
    h(
      "p",
      { key: "query" },
      h("strong", null, row.query),
      h("span", { class: "muted" }, ` version ${row.version} · ${clock(at, today)}`),
    ),
    texts
      .filter((name) => typeof row[name] === "string")
      .map((name) =>
        h(
          "p",
          { key: `text ${name}` },
          h("span", { class: "column" }, name),
          piecesOf(row[name], spansOf(marks[name])).map(({ text, marked }) => (marked ? h("mark", null, text) : text)),
        ),
      ),
    rest.length > 0 &&
      h(
        "dl",
        { class: "rest", key: "rest" },
        rest
          .slice(0, CELLS_MAX)
          .map(([name, cell]) => h("div", { key: name }, h("dt", null, name), h("dd", null, shown(cell, "string")))),
      ),
  ];
}

function marksOf(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/** Anybody may append hits, with any text as `highlights`. */
const spansOf = (said) => (Array.isArray(said) ? said.filter(Array.isArray) : []);
