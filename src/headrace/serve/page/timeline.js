// Sessions and matches over event time: a line for each key, a bar for each of them, the darker the larger its number.
// Dragging across asks for that stretch of time. `lanesOf` is pure.

import { tickLabels, timeTicks } from "./axis.js";
import { h } from "./dom.js";
import { span, value } from "./format.js";

export const LANES_MAX = 14;
const TICKS = 6;
const TICKS_NARROW = 3;
const DRAG_PIXELS = 6;

/**
 * What is drawn, of rows [{start, end, group, number, final, corrected, said}]: {low, high, lanes: [{name, bars}],
 * left}. The groups with the largest totals have a line each; `left` groups have none. A bar's `weight` is its number's
 * share of the largest; `said`: what it says of itself, in place of its number.
 */
export function lanesOf(rows) {
  const totals = new Map();
  for (const row of rows) totals.set(row.group, (totals.get(row.group) ?? 0) + Math.abs(row.number ?? 0));
  const names = [...totals.keys()]
    .sort((a, b) => totals.get(b) - totals.get(a) || a.localeCompare(b))
    .slice(0, LANES_MAX)
    .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const shown = rows.filter((row) => names.includes(row.group));
  const largest = Math.max(...shown.map((row) => Math.abs(row.number ?? 0)), 1e-9);
  const low = Math.min(...shown.map((row) => row.start));
  const high = Math.max(...shown.map((row) => row.end), low + 1000);
  return {
    low,
    high,
    lanes: names.map((name) => ({
      name,
      bars: shown
        .filter((row) => row.group === name)
        .sort((a, b) => a.start - b.start)
        .map((row) => ({ ...row, weight: Math.abs(row.number ?? 0) / largest })),
    })),
    left: totals.size - names.length,
  };
}

/** The timeline's element; `unit`: what the numbers are. */
export function timeline(key, { low, high, lanes }, { unit, summary, narrow, zoom }) {
  const edge = (high - low) * 0.01;
  const from = low - edge;
  const to = high + edge;
  const place = (at) => `${((100 * (at - from)) / (to - from)).toFixed(3)}%`;
  const ticks = timeTicks(from, to, narrow ? TICKS_NARROW : TICKS);
  const labels = tickLabels(ticks);
  return h(
    "div",
    { key, class: "timeline", role: "img", "aria-label": summary },
    lanes.map((lane) =>
      h(
        "div",
        { class: "session-lane", key: `lane ${lane.name}` },
        h("span", { class: "lane-name", title: lane.name }, lane.name || "all"),
        h(
          "span",
          { class: "sessions" },
          ticks.map((at) => h("i", { key: `tick ${at}`, class: "tick", style: { left: place(at) } })),
          lane.bars.map((bar) =>
            h("i", {
              key: `bar ${bar.start}`,
              class: `session${bar.final ? "" : " open"}${bar.corrected ? " corrected" : ""}`,
              title: [
                lane.name || "all",
                span(bar.start, bar.end),
                bar.said ?? `${unit} ${value(bar.number)}`,
                !bar.final && (bar.said === undefined ? "open: may still grow" : "open"),
                bar.corrected && "corrected",
              ]
                .filter(Boolean)
                .join("\n"),
              style: {
                left: place(bar.start),
                width: `calc(${place(bar.end)} - ${place(bar.start)})`,
                "--weight": String(Math.round(25 + 75 * bar.weight)),
              },
            }),
          ),
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
        ticks.map((at, index) =>
          h(
            "span",
            { key: `label ${at}`, class: "tick-label", style: { left: place(at) } },
            h("span", null, labels[index][0]),
            h("span", null, labels[index][1]),
          ),
        ),
      ),
    ),
    h("span", { class: "brush", key: "brush", hook: brush(from, to, zoom) }),
  );
}

/** Where the pointer is dragged across the lines: a band, and at the end `zoom(from, to)`. */
function brush(from, to, zoom) {
  return {
    mount(element) {
      let began = null;
      const area = () => element.parentElement.querySelector(".sessions").getBoundingClientRect();
      const within = (event) => Math.min(1, Math.max(0, (event.clientX - area().left) / area().width));
      element.parentElement.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0 && event.clientX >= area().left) began = within(event);
      });
      element.parentElement.addEventListener("pointermove", (event) => {
        if (began === null) return;
        const outer = element.parentElement.getBoundingClientRect();
        const [left, right] = [began, within(event)].sort((a, b) => a - b);
        element.style.left = `${area().left - outer.left + left * area().width}px`;
        element.style.width = `${(right - left) * area().width}px`;
        event.preventDefault();
      });
      const end = (event) => {
        if (began === null) return;
        const [left, right] = [began, within(event)].sort((a, b) => a - b);
        began = null;
        element.style.width = "0";
        const asked = element.asked;
        if ((right - left) * area().width < DRAG_PIXELS) return;
        asked.zoom(...[left, right].map((share) => Math.round(asked.from + share * (asked.to - asked.from))));
      };
      element.parentElement.addEventListener("pointerup", end);
      element.parentElement.addEventListener("pointerleave", end);
    },
    update: (element) => (element.asked = { from, to, zoom }),
  };
}
