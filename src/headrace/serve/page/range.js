// Which stretch of event time a view's chart shows. A range is null (the newest rows, as they come), {last} (so many
// milliseconds up to the newest window) or {from, to}. `searchOf` and `rangeOf` keep it in the address. The arithmetic
// is pure.

import { h } from "./dom.js";
import { span } from "./format.js";

const HOUR = 3_600_000;
const LASTS = [
  [600_000, "last 10 minutes"],
  [HOUR, "last hour"],
  [6 * HOUR, "last 6 hours"],
  [24 * HOUR, "last day"],
  [7 * 24 * HOUR, "last 7 days"],
  [30 * 24 * HOUR, "last 30 days"],
  [365 * 24 * HOUR, "last year"],
];
const LEAST = 2; // milliseconds
const FIRST = Date.UTC(1970, 0, 1) - 62_135_596_800_000; // year 1
const LAST = Date.UTC(9999, 11, 31);

export const zoomed = ({ from, to }, factor) => bounded((from + to) / 2, Math.max(LEAST, (to - from) * factor));
export const moved = ({ from, to }, share) => bounded((from + to) / 2 + (to - from) * share, to - from);

function bounded(middle, size) {
  const [from, to] = [middle - size / 2, middle + size / 2].map((at) =>
    Math.round(Math.min(LAST, Math.max(FIRST, at))),
  );
  return { from, to };
}

/** The range that an address says; null where it says none. */
export function rangeOf(search) {
  const [from, to] = ["from", "to"].map((name) => Date.parse(search.get(name) ?? ""));
  if (from < to) return { from, to };
  const last = Number(search.get("last"));
  return LASTS.some(([size]) => size === last * 1000) ? { last: last * 1000 } : null;
}

export function searchOf(range) {
  if (range === null) return {};
  if (range.last) return { last: String(range.last / 1000) };
  return { from: new Date(range.from).toISOString(), to: new Date(range.to).toISOString() };
}

/** The buttons; `seen`: {from, to} of what is drawn, or null; `change(range)`. */
export function rangeBar(range, seen, change) {
  const chosen = range === null ? "newest" : range.last ? String(range.last) : "own";
  const step = (label, sign, act, disabled = false) =>
    h(
      "button",
      { type: "button", key: label, class: "step", "aria-label": label, title: label, disabled, onclick: act },
      h("span", { "aria-hidden": "true" }, sign),
    );
  const live = range === null || Boolean(range.last);
  return h(
    "div",
    { class: "range", key: "range", role: "group", "aria-label": "Range" },
    h(
      "label",
      { class: "choose" },
      h("span", { class: "unseen" }, "Range"),
      h(
        "select",
        {
          value: chosen,
          onchange: (event) => change(event.target.value === "newest" ? null : { last: Number(event.target.value) }),
        },
        [["newest", "newest rows"], ...LASTS.map(([size, title]) => [String(size), title])].map(([key, title]) =>
          h("option", { key, value: key, selected: key === chosen }, title),
        ),
        chosen === "own" && h("option", { key: "own", value: "own", selected: true, disabled: true }, "chosen range"),
      ),
    ),
    step("Earlier", "‹", () => change(moved(seen, -0.5)), seen === null),
    step("Later", "›", () => change(moved(seen, 0.5)), seen === null || live),
    step("Zoom in", "+", () => change(zoomed(seen, 0.5)), seen === null),
    step("Zoom out", "−", () => change(zoomed(seen, 2)), seen === null),
    !live && h("span", { class: "hint", key: "span" }, span(range.from, range.to)),
  );
}
