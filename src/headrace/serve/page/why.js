// Where a row comes from: the records that it was made of, and what it waits for. Asks for one row at a time.

import { h } from "./dom.js";
import { clock, count } from "./format.js";
import { get } from "./live.js";
import { link, panel, shown } from "./parts.js";

/** `why(app, view)`: `ask(key)` shows a row, `ask(null)` none; `render(all)` is the panel, or null. */
export function why(app, view) {
  let key = null;
  let answer = null;
  let problem = null;

  async function ask(chosen) {
    if (JSON.stringify(chosen) !== JSON.stringify(key)) answer = null;
    key = chosen;
    problem = null;
    app.draw();
    if (chosen === null) return;
    const asked = new URLSearchParams(chosen.map((each) => ["key", each]));
    try {
      const found = await get(`/api/views/${encodeURIComponent(view)}/why?${asked}`);
      if (key === chosen) answer = found;
    } catch (error) {
      if (key === chosen) problem = error;
    }
    app.draw();
  }

  function render(all) {
    if (key === null) return null;
    return panel(
      "Where it comes from",
      {
        key: "why",
        wide: true,
        aside: h("button", { type: "button", class: "quiet", onclick: () => ask(null) }, "Close"),
      },
      problem && h("p", { class: "error", role: "alert" }, problem.message),
      answer && h("p", { class: "sentence", role: "status" }, sentence(answer)),
      answer?.origins.map((origin) => originOf(origin, all)),
    );
  }

  return { ask, render, again: () => key !== null && ask(key), chosen: () => key };
}

function sentence({ origins, waits_for, note, row }) {
  const made = note ? `Its records are not named: ${note}.` : `It is made of ${records(origins.length)}.`;
  if (row._status === "final") return `${made} It is final.`;
  if (waits_for === null || waits_for.startsWith("nothing")) return made;
  return `${made} It is open, and waits for ${waits_for.replace(/T([\d:.]+)\+00:00/g, " $1")}.`;
}

const records = (number) => (number === 1 ? "one record" : `${count(number)} records`);

function originOf({ source, topic, partition, offset, arrived_at, record }, all) {
  const known = all.topics.some((each) => each.name === topic);
  return h(
    "div",
    { class: "origin", key: `${topic} ${partition} ${offset}` },
    h(
      "p",
      { class: "about" },
      known ? link(source, "topics", topic) : source,
      ` partition ${partition}, offset ${count(offset)}`,
      arrived_at && ` · arrived ${clock(arrived_at, all.at)}`,
    ),
    record === null
      ? h("p", { class: "about" }, "The log does not have this record any more.")
      : h(
          "dl",
          { class: "record fields" },
          Object.entries(record).map(([name, value]) =>
            h("div", { key: name }, h("dt", null, name), h("dd", null, shown(value, timeLike(value)))),
          ),
        ),
  );
}

const timeLike = (value) => (/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(value) ? "timestamp" : "");
