// The matches of a pattern over event time: a line for each key, a bar from the first event of a match to its last.
// Asks for the newest, or for those of a range.

import { h } from "./dom.js";
import { millis, plural, span, value } from "./format.js";
import { calmly, get } from "./live.js";
import { empty, panel } from "./parts.js";
import { rangeBar, searchOf } from "./range.js";
import { LANES_MAX, lanesOf, timeline } from "./timeline.js";

const GAP_MS = 2000;
const OWN = ["match_start", "match_end", "_id", "_status", "_corrections", "_updated_at"];

/** Bars, of an answer of the server; rows of one match, as `rows="all"` makes them, are one. */
export function barsOf({ key, columns, rows }) {
  const names = columns.map((column) => column.name);
  const bars = new Map();
  for (const row of rows) {
    const of = Object.fromEntries(row.map((cell, at) => [names[at], cell]));
    const group = key.map((name) => value(of[name])).join(" · ");
    const measures = columns.filter(({ name }) => !OWN.includes(name) && !key.includes(name));
    bars.set(JSON.stringify([group, of.match_start, of.match_end]), {
      group,
      start: millis(of.match_start),
      end: millis(of.match_end),
      number: 1,
      final: of._status === "final",
      corrected: of._corrections > 0,
      said: measures.map(({ name, type }) => `${name} ${value(of[name], type)}`).join(", "),
    });
  }
  return [...bars.values()];
}

/** `matches(app, view)`: `load(range)` asks again; `render(range, choose)` is the panel. */
export function matches(app, view) {
  let answer = null;
  let problem = null;
  let range = null;
  let newest = null; // the end of the newest match

  const read = calmly(async () => {
    const asked = range;
    const bounds = asked?.last ? { from: new Date((newest ?? Date.now()) - asked.last).toISOString() } : searchOf(asked);
    try {
      const found = await get(`/api/views/${encodeURIComponent(view)}/matches?${new URLSearchParams(bounds)}`);
      if (asked !== range) return; // another range was chosen meanwhile
      [answer, problem] = [found, null];
      if (asked === null) newest = barsOf(found).reduce((last, { end }) => Math.max(last, end), newest ?? -Infinity);
    } catch (error) {
      if (asked === range) problem = error;
    }
    app.draw();
  }, GAP_MS);

  function load(chosen) {
    range = chosen;
    read();
  }

  function render(choose) {
    const bars = answer === null ? [] : barsOf(answer);
    const seen = bars.length
      ? { from: Math.min(...bars.map(({ start }) => start)), to: Math.max(...bars.map(({ end }) => end)) }
      : null;
    const drawn = lanesOf(bars);
    return panel(
      "Over event time",
      { key: "matches", wide: true, aside: rangeBar(range, range?.from ? range : seen, choose) },
      problem && h("p", { class: "error", role: "alert" }, problem.message),
      answer !== null &&
        (bars.length === 0
          ? empty(range === null ? "No match yet" : "No match in this range", "The first one is drawn as soon as it is there.")
          : timeline("matches", drawn, {
              summary: `Timeline of ${plural(bars.length, "match", "matches")}, ${span(seen.from, seen.to)}. The table below has them all.`,
              narrow: matchMedia("(max-width: 700px)").matches,
              zoom: (from, to) => choose({ from, to }),
            })),
      bars.length > 0 && legend(bars, drawn),
      answer?.truncated &&
        h("p", { class: "bounded" }, `The newest ${plural(answer.rows.length, "row")}: choose an earlier range for others.`),
    );
  }

  return { load, render, leave: read.close };
}

const legend = (bars, drawn) =>
  h(
    "ul",
    { class: "legend", key: "legend" },
    item("s1", "a match, from its first event to its last"),
    bars.some((bar) => !bar.final) && item("open-session", "open: an event that comes late may change it"),
    bars.some((bar) => bar.corrected) && item("corrected-session", "corrected"),
    drawn.left > 0 &&
      h("li", { key: "left", class: "muted" }, `the ${LANES_MAX} keys with the most matches, of ${drawn.left + LANES_MAX}`),
  );

const item = (swatch, said) =>
  h("li", { key: swatch }, h("i", { class: `swatch ${swatch}`, "aria-hidden": "true" }), said);
