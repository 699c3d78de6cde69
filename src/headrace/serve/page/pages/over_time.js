// A view over event time: a chart in which a correction is seen as one, of sessions a timeline; the range and the column
// that are shown, and the corrections since the page was opened. Pure but for what uPlot draws.

import { chart, seriesOf, SERIES_MAX } from "../chart.js";
import { h } from "../dom.js";
import { clock, count, day, millis, minute, numeric, plural, span, value, windowKind } from "../format.js";
import { empty, panel } from "../parts.js";
import { rangeBar } from "../range.js";
import { LANES_MAX, lanesOf, timeline } from "../timeline.js";

const WINDOW = ["window_start", "window_end"];

/**
 * The panel. `known`: {name, flow, rows, results, corrections, column, range, loaded, more}; `act`: what
 * can be done: {choose(range), show(column), boxes}, the last to choose groups by.
 */
export function overTime(known, act) {
  const { name, flow, rows, results, range } = known;
  const numbers = results.filter((each) => numeric(each.type));
  if (numbers.length === 0) return null;
  const chosen = numbers.find((each) => each.name === known.column)?.name ?? numbers[0].name;
  const label = (row) => (flow?.groups ?? []).map((group) => value(row[group])).join(" · ");
  const sessions = windowKind(flow?.window) === "session";
  const marked = ["sliding", "cumulative"].includes(windowKind(flow?.window)) ? WINDOW[1] : WINDOW[0]; // where a result has its mark
  const points = rows.map((row) => ({
    at: millis(row[marked]),
    start: millis(row.window_start),
    end: millis(row.window_end),
    group: label(row),
    number: row[chosen] === null ? null : Number(row[chosen]),
    final: row._status === "final",
    corrected: row._corrections > 0,
  }));
  const seen = points.length
    ? { from: Math.min(...points.map((each) => each.start)), to: Math.max(...points.map((each) => each.end)) }
    : null;
  const drawn = sessions ? lanesOf(points) : dataOf(points, { ...known, label, chosen, marked, choose: act.choose });
  return panel(
    "Over event time",
    {
      key: "chart",
      wide: true,
      aside: [
        act.boxes,
        columnChoice(numbers, chosen, act.show),
        rangeBar(range, range?.from ? range : seen, act.choose),
      ],
    },
    points.length === 0
      ? known.loaded
        ? nothing(range)
        : h("p", { class: "about", key: "reading" }, "Reading…")
      : sessions
        ? timeline(`${name} ${chosen}`, drawn, {
            unit: chosen,
            summary: `Timeline of ${plural(points.length, "session")}, ${span(seen.from, seen.to)}. The table below has all numbers.`,
            narrow: matchMedia("(max-width: 700px)").matches,
            zoom: (from, to) => act.choose({ from, to }),
          })
        : chart(`${name} ${chosen}`, drawn, summary(drawn, chosen, known.corrections.length)),
    points.length > 0 && legend(drawn, sessions, chosen),
    known.more &&
      h(
        "p",
        { class: "bounded", key: "bounded" },
        `The newest ${count(rows.length)} rows${range ? " of this range" : ""}: zoom in, or go back, for others.`,
      ),
    correctionList(chosen, label, known),
  );
}

const nothing = (range) =>
  range === null
    ? empty("Nothing to draw yet", null)
    : empty("No window starts in this range", "Zoom out, or choose the newest rows.");

function columnChoice(numbers, chosen, show) {
  if (numbers.length < 2) return null;
  return h(
    "label",
    { class: "choose", key: "column" },
    "showing ",
    h(
      "select",
      { value: chosen, onchange: (event) => show(event.target.value) },
      numbers.map((each) =>
        h("option", { key: each.name, value: each.name, selected: each.name === chosen }, each.name),
      ),
    ),
  );
}

function dataOf(points, { corrections, label, chosen, marked, choose }) {
  const open = points.filter((point) => !point.final).map((point) => point.at);
  const old = corrections.map((each) => ({
    at: millis(each.now[marked]),
    group: label(each.now),
    was: Number(each.was[chosen] ?? 0),
    now: Number(each.now[chosen] ?? 0),
  }));
  const data = seriesOf(points);
  const drawn = new Set(data.xs);
  return {
    ...data,
    corrections: old.filter((each) => each.was !== each.now && drawn.has(each.at)),
    open: open.length ? Math.min(...open) : null,
    unit: chosen,
    connected: marked === WINDOW[1],
    lone: Math.max(1000, ...points.map((point) => point.end - point.start)),
    zoom: (from, to) => choose({ from, to }),
  };
}

function legend(drawn, sessions, chosen) {
  const item = (key, swatch, ...said) =>
    h("li", { key }, swatch && h("i", { class: `swatch ${swatch}`, "aria-hidden": "true" }), said);
  const bars = sessions ? drawn.lanes.flatMap((lane) => lane.bars) : [];
  const most = sessions ? LANES_MAX : SERIES_MAX;
  const all = drawn.left + (drawn.lanes ?? drawn.series).length;
  return h(
    "ul",
    { class: "legend", key: "legend" },
    sessions
      ? [
          item("bar", "s1", `a session: the darker, the larger its ${chosen}`),
          bars.some((bar) => !bar.final) && item("open", "open-session", "open: may still grow"),
          bars.some((bar) => bar.corrected) && item("corrected", "corrected-session", "corrected"),
        ]
      : [
          drawn.series.map((each, at) => item(each.name, `s${at + 1}`, each.name || "all")),
          drawn.open !== null && item("open", "open", "open: may still grow"),
          drawn.corrections.length > 0 &&
            item("correction", "correction", "corrected: hollow what it was, full what it is"),
        ],
    drawn.left > 0 && h("li", { key: "left", class: "muted" }, `the ${most} largest of ${count(all)}`),
  );
}

function summary(data, chosen, corrections) {
  const last = data.xs.length - 1;
  const latest = data.series
    .map((each) => `${each.name || "all"} ${each.ys[last] === null ? "none" : value(each.ys[last])}`)
    .join(", ");
  return `Line chart of ${chosen} over ${plural(data.xs.length, "window")}; the newest, ${day(data.xs[last])} ${minute(data.xs[last])}: ${latest}. ${plural(corrections, "correction")} since the page was opened. The table below has all numbers.`;
}

function correctionList(chosen, label, { rows, corrections }) {
  const before = rows.filter((row) => row._corrections > 0).length;
  if (corrections.length === 0) {
    return h(
      "p",
      { class: "about", key: "corrections" },
      before
        ? `${plural(before, "result was", "results were")} corrected before; the next correction is shown here as it comes, − old and + new.`
        : "No result was corrected. When a straggler changes one, the old value stays in the chart, and both are listed here.",
    );
  }
  return h(
    "div",
    { key: "corrections" },
    h("h3", null, "Corrections"),
    h(
      "ol",
      { class: "corrections", "aria-live": "polite" },
      corrections.map((each) =>
        h(
          "li",
          { key: each.number },
          h("span", { class: "when" }, clock(Math.floor(each.at / 1000) * 1000)),
          h(
            "span",
            { class: "which" },
            `${day(millis(each.now.window_start))} ${minute(millis(each.now.window_start))}${label(each.now) ? ` ${label(each.now)}` : ""}`,
          ),
          h(
            "span",
            { class: "minus" },
            "−",
            h("span", { class: "unseen" }, " old"),
            ` ${chosen} ${value(each.was[chosen])}`,
          ),
          h(
            "span",
            { class: "plus" },
            "+",
            h("span", { class: "unseen" }, " new"),
            ` ${chosen} ${value(each.now[chosen])}`,
          ),
        ),
      ),
    ),
  );
}
