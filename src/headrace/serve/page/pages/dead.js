// Dead letters: records that could not go where they should, with the reason, until somebody decides.

import { h } from "../dom.js";
import { count, iso, plural } from "../format.js";
import { calmly, get, post } from "../live.js";
import { badge, empty, heading, link } from "../parts.js";

const LETTERS_MAX = 200;

export function dead(app) {
  let letters = null;
  let total = 0;
  let problem = null;
  let seen = null;
  const busy = new Set();
  const said = new Map(); // letter -> what went wrong with it
  let done = "";

  const load = calmly(async () => {
    try {
      const answer = await get(`/api/dead-letters?limit=${LETTERS_MAX}`);
      letters = answer.dead_letters;
      total = answer.count;
      problem = null;
    } catch (error) {
      problem = error;
    }
    app.draw();
  });

  async function decide(letter, action, told) {
    busy.add(letter.id);
    said.delete(letter.id);
    app.draw();
    try {
      await post(`/api/dead-letters/${encodeURIComponent(letter.id)}/${action}`);
      letters = letters.filter((each) => each.id !== letter.id);
      total -= 1;
      done = told;
      document.getElementById("main").focus({ preventScroll: true }); // the button is gone
    } catch (error) {
      said.set(letter.id, error.message);
    }
    busy.delete(letter.id);
    app.draw();
    load();
  }

  const drop = async (letter) => {
    const sure = await app.ask({
      title: "Drop this letter?",
      text: `Letter ${letter.id} (${letter.reason}) is ended: it will not be replayed. Its text stays in the log’s history only.`,
      action: "Drop it",
    });
    if (sure) decide(letter, "drop", `Letter ${letter.id} was dropped.`);
  };

  function told(all) {
    const now = `${all.dead_letters.count} ${all.dead_letters.latest?.[0]?.id}`;
    if (seen !== null && seen !== now) load();
    seen = now;
  }

  function render() {
    return [
      heading(
        "Dead letters",
        total ? `${plural(total, "record")} could not go where they should, and wait for a decision.` : null,
      ),
      h("p", { class: "done", key: "done", role: "status" }, done),
      problem && h("p", { class: "error", role: "alert", key: "problem" }, problem.message),
      letters?.length === 0 &&
        empty(
          "No dead letters",
          "Every record went where it should. One that cannot (a bad line, an event from the future, a delivery that failed too often) would be kept here with its reason.",
        ),
      letters?.length > 0 &&
        h(
          "ul",
          { class: "letters", key: "letters" },
          letters.map((letter) => item(letter)),
        ),
      letters &&
        total > letters.length &&
        h("p", { class: "bounded", key: "bounded" }, `Showing ${count(letters.length)} of ${count(total)} letters.`),
    ];
  }

  function item(letter) {
    const name = `letter ${letter.id}`;
    const from = letter.topic && [
      link(letter.topic, "topics", letter.topic),
      letter.partition !== null && letter.partition !== undefined && ` ${letter.partition}`,
      letter.offset !== null && letter.offset !== undefined && ` / ${count(letter.offset)}`,
    ];
    return h(
      "li",
      { key: letter.id, class: "panel wide letter" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", null, badge(letter.reason, "warn"), h("span", { class: "unseen" }, ` ${name}`)),
        h(
          "div",
          { class: "buttons" },
          letter.kind === "bytes"
            ? h("span", { class: "hint" }, "no row of a topic: correct it, produce it, then drop this")
            : h(
                "button",
                {
                  type: "button",
                  disabled: busy.has(letter.id),
                  "aria-label": `Replay ${name}`,
                  onclick: () => decide(letter, "replay", `Letter ${letter.id} was replayed.`),
                },
                "Replay",
              ),
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              disabled: busy.has(letter.id),
              "aria-label": `Drop ${name}`,
              onclick: () => drop(letter),
            },
            "Drop…",
          ),
        ),
      ),
      h("p", { class: "letter-error" }, letter.error),
      h(
        "p",
        { class: "about" },
        `#${letter.id}`,
        letter.at && ` · ${iso(Date.parse(letter.at))}`,
        from && [" · for ", from],
        letter.source && ` · from ${letter.source}`,
        letter.deliveries ? ` · ${plural(letter.deliveries, "delivery", "deliveries")}` : null,
      ),
      letter.value !== undefined &&
        letter.value !== null &&
        h(
          "pre",
          { class: "record", tabindex: "0", "aria-label": `Record of ${name}` },
          typeof letter.value === "string"
            ? letter.value
            : JSON.stringify(letter.value, null, 1).replace(/\n\s*/g, " "),
        ),
      said.has(letter.id) && h("p", { class: "error", role: "alert" }, said.get(letter.id)),
    );
  }

  load();
  return { title: "Dead letters", render, told, again: load, leave: load.close };
}
