// The versions of one row over the time in which they are valid: a line for each, the last valid one at the end.
// `spansOf` is pure.

import { tickLabels, timeTicks } from "./axis.js";
import { h } from "./dom.js";
import { iso, millis, value } from "./format.js";

export const VERSIONS_MAX = 40;
const TICKS = 6;
const TICKS_NARROW = 3;
const OWN = ["valid_from", "valid_to", "known_from", "known_to", "version", "_version", "_updated_at"];

/**
 * What is drawn, of an answer of the server: {low, high, spans: [{from, to, known, values, title}]}. `to`: null until
 * now. `known`: false where the table was corrected later. `key`: the columns of the table's key. The column that says
 * from when a version is valid is not among its values.
 */
export function spansOf({ columns, rows }, key) {
  const names = columns.map((column) => column.name);
  const valid = names.indexOf("valid_from");
  const isValid = (name) => rows.every((row) => row[names.indexOf(name)] === row[valid]);
  const values = columns.filter(({ name }) => !OWN.includes(name) && !key.includes(name) && !isValid(name));
  const spans = rows.slice(-VERSIONS_MAX).map((row) => {
    const of = Object.fromEntries(row.map((cell, at) => [names[at], cell]));
    const text = values.map(({ name, type }) => `${name} ${value(of[name], type)}`).join(", ");
    return {
      from: millis(of.valid_from),
      to: millis(of.valid_to),
      known: of.known_to === null || of.known_to === undefined,
      knownFrom: millis(of.known_from),
      knownTo: millis(of.known_to),
      version: of.version,
      text,
    };
  });
  const times = spans.flatMap(({ from, to }) => [from, to]).filter((at) => at !== null);
  const low = Math.min(...times);
  const high = Math.max(...times, low + 1000);
  return { low, high: spans.some(({ to }) => to === null) ? high + (high - low) * 0.25 : high, spans };
}

/** The answer with its columns in the order in which one reads them: the key, the values, and the times. */
export function inOrder({ columns, rows }) {
  const places = columns.map((_, at) => at).filter((at) => columns[at].name !== "_updated_at");
  const last = (at) => OWN.indexOf(columns[at].name);
  places.sort((a, b) => last(a) - last(b) || a - b);
  return { columns: places.map((at) => columns[at]), rows: rows.map((row) => places.map((at) => row[at])) };
}

const until = (at) => (at === null ? "now" : iso(at));

/** The timeline's element. */
export function historyLine({ low, high, spans }, { name, narrow }) {
  const edge = (high - low) * 0.01;
  const [from, to] = [low - edge, high + edge];
  const place = (at) => `${((100 * (at - from)) / (to - from)).toFixed(3)}%`;
  const ticks = timeTicks(low, high, narrow ? TICKS_NARROW : TICKS);
  const labels = tickLabels(ticks);
  return h(
    "div",
    { key: "history", class: "timeline versions", role: "img", "aria-label": `Versions of ${name}, by valid time` },
    spans.map((span, at) =>
      h(
        "div",
        { class: "session-lane", key: `${span.version} ${at}` },
        h("span", { class: "lane-name", title: span.text }, span.text),
        h(
          "span",
          { class: "sessions" },
          ticks.map((tick) => h("i", { key: `tick ${tick}`, class: "tick", style: { left: place(tick) } })),
          h("i", {
            key: "span",
            class: `session${span.known ? "" : " forgotten"}${span.to === null ? " on" : ""}`,
            title: [
              span.text,
              `valid ${iso(span.from)} to ${until(span.to)}`,
              span.knownFrom !== null && `known ${iso(span.knownFrom)} to ${until(span.knownTo)}`,
              `version ${span.version}`,
            ]
              .filter(Boolean)
              .join("\n"),
            style: {
              left: place(span.from),
              width: `calc(${place(span.to ?? high)} - ${place(span.from)})`,
              "--weight": "60",
            },
          }),
        ),
      ),
    ),
    h(
      "div",
      { class: "session-lane axis", key: "axis" },
      h("span", { class: "lane-name" }),
      h(
        "span",
        { class: "sessions" },
        ticks.map((tick, at) =>
          h(
            "span",
            { key: `label ${tick}`, class: "tick-label", style: { left: place(tick) } },
            h("span", null, labels[at][0]),
            h("span", null, labels[at][1]),
          ),
        ),
      ),
    ),
  );
}
