// Why is this window still open? Each partition's event-time progress against the moment the next window closes.
// `waiting` is pure: it says what holds the window, in one sentence.

import { h } from "./dom.js";
import { clock, duration, millis, minute, plural, windowSize } from "./format.js";

const PARTITIONS_MAX = 24;

/** What a windowed flow waits for: {partitions, closes, end, sentence}; null for a flow without windows. */
export function waiting(flow) {
  if (!flow.window) return null;
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
  const frontier = millis(flow.frontier);
  if (closes === null) return { partitions, closes, end: null, frontier, sentence: "No window is open." };
  const end = closes - flow.grace_seconds * 1000;
  const size = windowSize(flow.window);
  const name = size ? `${minute(end - size)}–${minute(end)}` : `that ends ${minute(end)}`;
  const until = `stays open until every partition has passed ${clock(closes)}${flow.grace_seconds ? ` (its end and ${duration(flow.grace_seconds)} of grace)` : ""}`;
  const holding = partitions.filter((each) => !each.idle && (each.at === null || each.at < closes));
  const several = new Set(partitions.map((each) => each.topic)).size > 1;
  const named = (each) => `partition ${each.number}${several ? ` of ${each.topic}` : ""}`;
  return {
    partitions,
    closes,
    end,
    frontier,
    sentence: `Window ${name} ${until}; ${held(flow, partitions, holding, named)}`,
  };
}

function held(flow, partitions, holding, named) {
  if (flow.state === "stopped" || flow.state === "failed") return `its app does not run, so nothing moves.`;
  if (partitions.length === 0) return "nothing has been read yet.";
  if (holding.length === 0) {
    const quiet = partitions.filter((each) => each.idle).length;
    return quiet
      ? `${plural(quiet, "quiet partition")} move${quiet === 1 ? "s" : ""} with the clock, so it closes shortly.`
      : "all have, so it closes with the next commit.";
  }
  const last = holding.reduce((a, b) => ((b.at ?? -Infinity) < (a.at ?? -Infinity) ? b : a));
  const others = holding.length - 1;
  const where = last.at === null ? "has no event with a time yet" : `is at ${clock(last.at)}`;
  const more =
    others === 0
      ? ""
      : others === 1
        ? ", and 1 other is not there either"
        : `, and ${others} others are not there either`;
  return `${named(last)} ${where}${more}.`;
}

/** The picture: a line for each partition, the window's end, its grace, and the frontier. */
export function progress(flow) {
  const about = waiting(flow);
  if (about === null) return null;
  const { partitions, closes, end, frontier, sentence } = about;
  const times = [...partitions.map((each) => each.at), closes, end, frontier].filter((at) => at !== null);
  if (times.length === 0) return h("p", { class: "sentence", key: "sentence" }, sentence);
  const size = windowSize(flow.window) ?? 60_000;
  const high = Math.max(...times) + size * 0.12;
  const low = Math.min((end ?? Math.min(...times)) - size, Math.max(Math.min(...times), high - size * 8)) - size * 0.06;
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
            class: `lane${each.idle ? " idle" : ""}${closes !== null && !each.idle && (each.at ?? -Infinity) < closes ? " holds" : ""}`,
            key: `${each.topic} ${each.number}`,
          },
          h("span", { class: "lane-name" }, `${each.topic} ${each.number}`),
          h(
            "span",
            { class: "track" },
            end !== null &&
              h("i", {
                key: "grace",
                class: "grace",
                style: { left: place(end), width: `calc(${place(closes)} - ${place(end)})` },
              }),
            h("i", { key: "water", class: "water", style: { width: each.at === null ? "0%" : place(each.at) } }),
            frontier !== null && h("i", { key: "frontier", class: "frontier", style: { left: place(frontier) } }),
            closes !== null && h("i", { key: "closes", class: "closes", style: { left: place(closes) } }),
          ),
          h(
            "span",
            { class: "lane-at" },
            each.at === null ? "–" : clock(Math.floor(each.at / 1000) * 1000),
            each.idle ? h("small", null, "quiet") : null,
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "key", "aria-hidden": "true" },
      h("span", { class: "key-water" }, "progress"),
      frontier !== null &&
        h("span", { key: "f", class: "key-frontier" }, `frontier ${clock(Math.floor(frontier / 1000) * 1000)}`),
      end !== null && flow.grace_seconds > 0 && h("span", { key: "g", class: "key-grace" }, "grace"),
      closes !== null && h("span", { key: "c", class: "key-closes" }, `closes ${clock(closes)}`),
    ),
    partitions.length > rows.length &&
      h("p", { class: "bounded" }, `Showing ${rows.length} of ${partitions.length} partitions.`),
  );
}
