// Dead letters: records that could not go where they should, with the reason, until somebody decides. Those that failed
// alike are one group, decided on at once or one by one.

import { h } from "../dom.js";
import { count, iso, plural } from "../format.js";
import { calmly, get, post } from "../live.js";
import { sourceName } from "../names.js";
import { badge, copyable, empty, heading, link, panel } from "../parts.js";

const LETTERS_ASKED = 1000;
const LETTERS_SHOWN = 20;
const AT_ONCE = 4;
const DONE = { replay: "replayed", drop: "dropped" };

/** Letters with one reason, topic and error, whatever numbers are in that: [{key, letters}], the largest first. */
export function groupsOf(letters) {
  const groups = new Map();
  for (const letter of letters) {
    const alike = (letter.error ?? "").replace(/\d+/g, "0");
    const key = JSON.stringify([letter.reason, letter.topic, letter.kind, alike]);
    groups.set(key, [...(groups.get(key) ?? []), letter]);
  }
  return [...groups]
    .map(([key, found]) => ({ key, letters: found }))
    .sort((a, b) => b.letters.length - a.letters.length);
}

export function dead(app) {
  let letters = null;
  let total = 0;
  let problem = null;
  let seen = null;
  let done = "";
  let working = null; // {key, action, ended, of} of the group that is decided on
  const busy = new Set();
  const said = new Map(); // letter or group -> what went wrong with it
  const opened = new Set(); // groups whose letters are shown

  const load = calmly(async () => {
    try {
      const answer = await get(`/api/dead-letters?limit=${LETTERS_ASKED}`);
      if (working === null) letters = answer.dead_letters;
      total = answer.count;
      problem = null;
    } catch (error) {
      problem = error;
    }
    app.draw();
  });

  /** Why it failed; null: it did not. */
  async function end(letter, action) {
    busy.add(letter.id);
    said.delete(letter.id);
    try {
      await post(`/api/dead-letters/${encodeURIComponent(letter.id)}/${action}`);
      letters = letters.filter((each) => each.id !== letter.id);
      total -= 1;
      return null;
    } catch (error) {
      said.set(letter.id, error.message);
      return error;
    } finally {
      busy.delete(letter.id);
      app.draw();
    }
  }

  async function decide(letter, action) {
    app.draw();
    if ((await end(letter, action)) === null) finished(`Letter ${letter.id} was ${DONE[action]}.`);
    load();
  }

  async function decideAll({ key, letters: all }, action) {
    working = { key, action, ended: 0, of: all.length };
    said.delete(key);
    app.draw();
    const left = [...all];
    const failures = [];
    const worker = async () => {
      while (left.length) {
        const error = await end(left.shift(), action);
        if (error === null) working.ended += 1;
        else failures.push(error);
        if (error?.status === 0) left.length = 0; // nobody answers
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const { ended } = working;
    working = null;
    if (failures.length)
      said.set(key, `${plural(all.length - ended, "letter")} could not be ${DONE[action]}. ${failures[0].message}`);
    finished(ended ? `${plural(ended, "letter was", "letters were")} ${DONE[action]}.` : "");
    load();
  }

  function finished(text) {
    done = text;
    app.draw();
    document.getElementById("main").focus({ preventScroll: true }); // the button is gone
  }

  async function drop(letter) {
    const sure = await app.ask({
      title: "Drop this letter?",
      text: `Letter ${letter.id} (${letter.reason}) is ended: it will not be replayed. Its text stays in the log’s history only.`,
      action: "Drop it",
    });
    if (sure) decide(letter, "drop");
  }

  async function askAll(group, action) {
    const number = plural(group.letters.length, "letter");
    const sure = await app.ask(
      action === "drop"
        ? {
            title: `Drop ${number}?`,
            text: "They are ended: none will be replayed. Their texts stay in the log’s history only.",
            action: "Drop them",
          }
        : {
            title: `Replay ${number}?`,
            text: "Each is appended to its topic again, or goes back into its queue. That cannot be taken back.",
            action: "Replay them",
          },
    );
    if (sure) decideAll(group, action);
  }

  function told(all) {
    const now = `${all.dead_letters.count} ${all.dead_letters.latest?.[0]?.id}`;
    if (seen !== null && seen !== now && working === null) load();
    seen = now;
  }

  function render(all) {
    const groups = groupsOf(letters ?? []);
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
      groups.map((group) => panelOf(group)),
      letters &&
        total > letters.length &&
        h(
          "p",
          { class: "bounded", key: "bounded" },
          `These are the newest ${count(letters.length)} of ${count(total)}.`,
        ),
      groups.length > 0 &&
        panel(
          "In a terminal",
          { key: "commands", wide: true },
          copyable(all.home, [
            ["All of them", "dead", "list"],
            ["Replay all", "dead", "replay", "--all"],
          ]),
        ),
    ];
  }

  function panelOf(group) {
    const [letter] = group.letters;
    const number = group.letters.length;
    const times = group.letters.map((each) => Date.parse(each.at));
    const acts = working?.key === group.key;
    return h(
      "section",
      { key: group.key, class: "panel wide letters", "aria-label": `${plural(number, "letter")}: ${letter.reason}` },
      h(
        "div",
        { class: "panel-head" },
        h(
          "h2",
          null,
          badge(letter.reason, "warn"),
          ` ${plural(number, "letter")}`,
          letter.topic && [" for ", link(sourceName(letter.topic), "topics", letter.topic)],
        ),
        number > 1 && bulk(group, acts),
      ),
      h("pre", { class: "letter-error" }, letter.error),
      number > 1 && h("p", { class: "about" }, `${iso(Math.min(...times))} to ${iso(Math.max(...times))}`),
      acts &&
        h(
          "p",
          { role: "status", class: "about" },
          `${count(working.ended)} of ${count(working.of)} are ${DONE[working.action]}…`,
        ),
      said.has(group.key) && h("p", { class: "error", role: "alert" }, said.get(group.key)),
      number === 1 ? h("ul", null, item(letter, letter.error)) : listOf(group, letter.error),
    );
  }

  function bulk(group, acts) {
    const number = count(group.letters.length);
    const disabled = working !== null;
    return h(
      "div",
      { class: "buttons" },
      group.letters[0].kind === "bytes"
        ? h("span", { class: "hint" }, "no rows of a topic: correct them, produce them, then drop these")
        : h(
            "button",
            { type: "button", disabled, onclick: () => askAll(group, "replay") },
            acts && working.action === "replay" ? "Replaying…" : `Replay all ${number}…`,
          ),
      h(
        "button",
        { type: "button", class: "quiet", disabled, onclick: () => askAll(group, "drop") },
        acts && working.action === "drop" ? "Dropping…" : `Drop all ${number}…`,
      ),
    );
  }

  function listOf(group, error) {
    const open = opened.has(group.key);
    const toggle = (event) => {
      if (event.target.open) opened.add(group.key);
      else opened.delete(group.key);
      app.draw();
    };
    return h(
      "details",
      { key: "each", open, ontoggle: toggle },
      h("summary", null, "One by one"),
      open &&
        h(
          "ul",
          null,
          group.letters.slice(0, LETTERS_SHOWN).map((letter) => item(letter, error)),
        ),
      open &&
        group.letters.length > LETTERS_SHOWN &&
        h("p", { class: "bounded" }, `Showing ${LETTERS_SHOWN} of ${count(group.letters.length)}.`),
    );
  }

  /** `error`: what the group says already. */
  function item(letter, error) {
    const name = `letter ${letter.id}`;
    const at = [letter.partition, letter.offset].filter((each) => each !== null && each !== undefined).map(count);
    return h(
      "li",
      { key: letter.id, class: "letter" },
      h(
        "div",
        { class: "panel-head" },
        h(
          "p",
          { class: "about" },
          `#${letter.id}`,
          letter.at && ` · ${iso(Date.parse(letter.at))}`,
          at.length > 0 && ` · ${sourceName(letter.topic)} ${at.join(" / ")}`,
          letter.source && ` · from ${letter.source}`,
          letter.deliveries ? ` · ${plural(letter.deliveries, "delivery", "deliveries")}` : null,
        ),
        h("div", { class: "buttons" }, decisions(letter, name)),
      ),
      letter.error !== error &&
        h(
          "details",
          { key: "error" },
          h("summary", null, "Its own error"),
          h("pre", { class: "letter-error" }, letter.error),
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

  const decisions = (letter, name) => [
    letter.kind === "bytes"
      ? h("span", { class: "hint", key: "hint" }, "no row of a topic: correct it, produce it, then drop this")
      : h(
          "button",
          {
            type: "button",
            key: "replay",
            disabled: busy.has(letter.id),
            "aria-label": `Replay ${name}`,
            onclick: () => decide(letter, "replay"),
          },
          "Replay",
        ),
    h(
      "button",
      {
        type: "button",
        key: "drop",
        class: "quiet",
        disabled: busy.has(letter.id),
        "aria-label": `Drop ${name}`,
        onclick: () => drop(letter),
      },
      "Drop…",
    ),
  ];

  load();
  return { title: "Dead letters", render, told, again: load, leave: load.close };
}
