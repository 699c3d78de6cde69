// Why is this window still open? Each partition's event-time progress against the moment the next window closes.
// `waiting` is pure: it says what holds the window, in one sentence.

import { h } from "./dom.js";
import { clock, day, duration, millis, minute, plural, sessionGap, span, windowSize } from "./format.js";

const PARTITIONS_MAX = 24;

/** Whether a flow has a window that is open. */
export const isOpen = (flow) => Boolean(flow.window) && flow.closes_at !== null;

/** What a flow's first open window waits for: {partitions, closes, end, frontier, sentence}. `today`: an ISO text. */
export function waiting(flow, today = null) {
  const partitions = Object.entries(flow.places ?? {}).flatMap(([topic, places]) =>
    Object.entries(places).map(([number, place]) => ({
      topic,
      number: Number(number),
      at: millis(place.progress),
      idle: Boolean(place.idle),
      lag: place.lag,
    })),
  );
  partitions.sort((a, b) => a.topic.localeCompare(b.topic) || a.number - b.number);
  const closes = millis(flow.closes_at);
  const end = closes - flow.grace_seconds * 1000 - sessionGap(flow.window);
  const holding = partitions.filter((each) => !each.idle && (each.at === null || each.at < closes));
  const several = new Set(partitions.map((each) => each.topic)).size > 1;
  const named = (each) => `partition ${each.number}${several ? ` of ${each.topic}` : ""}`;
  return {
    partitions,
    closes,
    end,
    frontier: millis(flow.frontier),
    sentence: `${windowName(flow, end, today)} stays open until every partition has passed ${clock(closes, today)}${why(flow)}; ${held(flow, partitions, holding, named, today)}`,
  };
}

function windowName(flow, end, today) {
  const size = windowSize(flow.window);
  if (size) return `Window ${today === null ? `${minute(end - size)}–${minute(end)}` : span(end - size, end, today)}`;
  const at = today === null || today.startsWith(new Date(end).toISOString().slice(0, 10)) ? "" : `${day(end)} `;
  return sessionGap(flow.window) ? `The session up to ${at}${minute(end)}` : `The window that ends ${at}${minute(end)}`;
}

function why(flow) {
  const gap = sessionGap(flow.window) / 1000;
  const parts = [
    gap ? `${duration(gap)} without a record` : flow.grace_seconds && "its end",
    flow.grace_seconds && `${duration(flow.grace_seconds)} of grace`,
  ].filter(Boolean);
  return parts.length ? ` (${parts.join(" and ")})` : "";
}

function held(flow, partitions, holding, named, today) {
  if (flow.state === "stopped" || flow.state === "failed") return `its app does not run, so nothing moves.`;
  if (partitions.length === 0) return "nothing has been read yet.";
  if (holding.length === 0) {
    const quiet = partitions.filter((each) => each.idle).length;
    return quiet
      ? `${plural(quiet, "quiet partition")} move${quiet === 1 ? "s" : ""} on with the clock${soon(flow)}.`
      : "all have, so it closes with the next commit.";
  }
  const last = holding.reduce((a, b) => ((b.at ?? -Infinity) < (a.at ?? -Infinity) ? b : a));
  const others = holding.length - 1;
  const where = last.at === null ? "has no event with a time yet" : `is at ${clock(last.at, today)}`;
  const more =
    others === 0
      ? ""
      : others === 1
        ? ", and 1 other is not there either"
        : `, and ${others} others are not there either`;
  return `${named(last)} ${where}${more}.`;
}

/** How long that takes: a second of the clock is one of event time. */
function soon(flow) {
  const left = (millis(flow.closes_at) - millis(flow.frontier)) / 1000;
  return flow.frontier === null || left <= 0 ? "" : `, so it closes in about ${duration(Math.ceil(left))}`;
}

/** The picture: a line for each partition, the window's end, its grace, and the frontier. `today`: an ISO text. */
export function progress(flow, today) {
  const { partitions, closes, end, frontier, sentence } = waiting(flow, today);
  const times = [...partitions.map((each) => each.at), closes, end, frontier].filter((at) => at !== null);
  const size = windowSize(flow.window) ?? Math.max(60_000, sessionGap(flow.window));
  const high = Math.max(...times) + size * 0.12;
  const low = Math.min(end - size, Math.max(Math.min(...times), high - size * 8)) - size * 0.06;
  const place = (at) => `${(100 * Math.min(1, Math.max(0, (at - low) / (high - low)))).toFixed(2)}%`;
  const rows = partitions.slice(0, PARTITIONS_MAX);
  return h(
    "div",
    { class: "progress", key: "progress" },
    h("p", { class: "sentence" }, sentence),
    h(
      "div",
      { class: "lanes", "aria-hidden": "true" },
      rows.map((each) =>
        h(
          "div",
          {
            class: `lane${each.idle ? " idle" : ""}${!each.idle && (each.at ?? -Infinity) < closes ? " holds" : ""}`,
            key: `${each.topic} ${each.number}`,
          },
          h("span", { class: "lane-name" }, `${each.topic} ${each.number}`),
          h(
            "span",
            { class: "track" },
            h("i", {
              key: "grace",
              class: "grace",
              style: { left: place(end), width: `calc(${place(closes)} - ${place(end)})` },
            }),
            h("i", { key: "water", class: "water", style: { width: each.at === null ? "0%" : place(each.at) } }),
            frontier !== null && h("i", { key: "frontier", class: "frontier", style: { left: place(frontier) } }),
            h("i", { key: "closes", class: "closes", style: { left: place(closes) } }),
          ),
          h(
            "span",
            { class: "lane-at" },
            each.at === null ? "–" : clock(whole(each.at)),
            each.idle ? h("small", null, "quiet") : null,
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "key", "aria-hidden": "true" },
      h("span", { class: "key-water" }, "progress"),
      frontier !== null && h("span", { key: "f", class: "key-frontier" }, `frontier ${clock(whole(frontier), today)}`),
      closes > end && h("span", { key: "g", class: "key-grace" }, sessionGap(flow.window) ? "gap and grace" : "grace"),
      h("span", { key: "c", class: "key-closes" }, `closes ${clock(closes, today)}`),
    ),
    partitions.length > rows.length &&
      h("p", { class: "bounded" }, `Showing ${rows.length} of ${partitions.length} partitions.`),
  );
}

const whole = (at) => Math.floor(at / 1000) * 1000;
