// A search box over the full-text indexes: what is typed is asked for as it is typed. Texts come in pieces, each with
// whether it is one that was looked for; they stay text.

import { h } from "../dom.js";
import { bytes, count, duration, plural } from "../format.js";
import { get } from "../live.js";
import { commands, copyable, empty, figures, heading, link, panel, shown, state } from "../parts.js";

const WAIT_MS = 120;
const ASKED = 20;
const CELLS_MAX = 8;

export function search(app, name, params) {
  let text = params.get("q") ?? "";
  let answer = null;
  let problem = null;
  let asked = null; // what the answer is of
  let took = 0;
  let timer = null;
  let running = null;
  let more = ASKED;
  const chosen = (all) => all.indexes.find((each) => each.name === name) ?? (name ? null : all.indexes[0]);

  async function ask() {
    clearTimeout(timer);
    running?.abort();
    const index = app.overview && chosen(app.overview);
    if (!index || text.trim() === "") {
      [answer, problem, asked] = [null, null, null];
      app.draw();
      return;
    }
    const mine = new AbortController();
    running = mine;
    const said = new URLSearchParams({ q: text, limit: more });
    const began = performance.now();
    try {
      const found = await get(`/api/indexes/${encodeURIComponent(index.name)}/search?${said}`, mine.signal);
      if (running !== mine) return;
      [answer, problem, asked] = [found, null, text];
    } catch (error) {
      if (error.name === "AbortError" || running !== mine) return;
      problem = error;
    }
    took = (performance.now() - began) / 1000;
    app.draw();
  }

  function typed(value) {
    text = value;
    more = ASKED;
    const said = text ? `?${new URLSearchParams({ q: text })}` : "";
    history.replaceState(null, "", `${location.hash.split("?")[0]}${said}`);
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
  }

  function keys(event) {
    const elsewhere = !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName ?? "");
    if (event.key === "/" && elsewhere && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("words")?.focus();
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const hits = [...document.querySelectorAll(".hits > li")];
    const at = hits.indexOf(document.activeElement);
    if (at < 0 && event.target.id !== "words") return;
    event.preventDefault();
    const to = at + (event.key === "ArrowDown" ? 1 : -1);
    (to < 0 ? document.getElementById("words") : hits[Math.min(to, hits.length - 1)])?.focus();
  }

  function render(all) {
    if (all.indexes.length === 0)
      return [
        heading("Search"),
        empty(
          "No indexes yet",
          "A full-text index is kept in step with a table or a topic: a program makes one with .to_sink(…), or a command does.",
          commands("headrace index add people users --text name", "headrace index run people"),
        ),
      ];
    const index = chosen(all);
    if (!index)
      return [
        heading(name),
        empty("No such index", "It may be of another home.", h("p", null, link("All indexes", "search"))),
      ];
    return [
      heading(
        index.name,
        ["Full-text index over ", link(index.topic, "topics", index.topic), ": ", index.text.join(", ")],
        state(index.runs),
      ),
      all.indexes.length > 1 && others(all, index),
      index.problem && h("p", { class: "error", role: "alert", key: "problem-index" }, index.problem),
      box(index),
      h("div", { key: "outcome", class: "outcome", role: "status" }, outcome()),
      answer && !problem && answer.hits.length > 0 && hits(index),
      figures(
        ["Rows", count(index.rows), { note: index.state }],
        ["Lag", count(index.lag_records), { note: "records not in it yet" }],
        ["Size", bytes(index.bytes)],
        index.rebuilding !== null && ["Built again", count(index.rebuilding), { note: "rows so far" }],
      ),
      panel(
        "In a terminal",
        { key: "commands", wide: true },
        copyable(all.home, [
          ["This search", "index", "search", index.name, "--", text || "words"],
          ["Compare it with the log, key by key", "index", "audit", index.name],
          ["Build it again", "index", "rebuild", index.name],
        ]),
      ),
    ];
  }

  const others = (all, index) =>
    h(
      "div",
      { class: "others", key: "others", role: "group", "aria-label": "Indexes" },
      all.indexes.map((each) =>
        h(
          "a",
          {
            key: each.name,
            href: `#/search/${encodeURIComponent(each.name)}${text ? `?${new URLSearchParams({ q: text })}` : ""}`,
            "aria-current": each.name === index.name ? "true" : null,
          },
          each.name,
        ),
      ),
    );

  const box = (index) =>
    h(
      "form",
      {
        class: "search",
        key: "form",
        role: "search",
        onsubmit: (event) => {
          event.preventDefault();
          ask();
        },
      },
      h("label", { class: "unseen", for: "words" }, `Search ${index.name}`),
      h("input", {
        id: "words",
        type: "search",
        value: text,
        maxlength: "500",
        autocomplete: "off",
        autocapitalize: "off",
        spellcheck: "false",
        placeholder: "heat pump",
        "aria-describedby": "language",
        oninput: (event) => typed(event.target.value),
      }),
      h(
        "p",
        { class: "hint", id: "language" },
        "Both words, ",
        h("code", null, '"one phrase"'),
        ", ",
        h("code", null, "begin*"),
        ", ",
        h("code", null, "-without"),
        ", ",
        h("code", null, "this OR that"),
        ", ",
        h("code", null, `${index.text[0]}:word`),
        ". Keys: / to here, ↓ ↑ through what is found.",
      ),
    );

  function outcome() {
    if (problem) return h("p", { class: "error", role: "alert" }, problem.message);
    if (!answer) return h("p", { class: "about" }, "Type what to look for.");
    if (answer.hits.length === 0)
      return empty("Nothing found", answer.why ? `For “${asked}”: ${answer.why}.` : `No row has “${asked}”.`);
    return h(
      "p",
      { class: "about" },
      `${plural(answer.count, "row")}${answer.more ? " or more" : ""}, in ${duration(took)}.`,
    );
  }

  const hits = (index) =>
    panel(
      "Found",
      { key: "hits", wide: true, about: "The best first." },
      h(
        "ol",
        { class: "hits" },
        answer.hits.map((hit) => h("li", { key: JSON.stringify(hit.key), tabindex: "0" }, one(index, hit))),
      ),
      answer.hits.length < answer.count &&
        answer.hits.length < 100 &&
        h(
          "button",
          {
            type: "button",
            class: "quiet",
            onclick: () => {
              more = Math.min(100, more + ASKED);
              ask();
            },
          },
          "More",
        ),
    );

  function one(index, hit) {
    const rest = Object.entries(hit.row).filter(([column]) => !index.text.includes(column) && !index.key.includes(column));
    return [
      h("p", null, h("code", null, hit.key.map(String).join(", "))),
      index.text
        .filter((column) => hit.marks[column])
        .map((column) =>
          h(
            "p",
            { key: column },
            h("span", { class: "column" }, column),
            hit.marks[column].map((piece) => (piece.marked ? h("mark", null, piece.text) : piece.text)),
          ),
        ),
      rest.length > 0 &&
        h(
          "dl",
          { class: "rest" },
          rest
            .slice(0, CELLS_MAX)
            .map(([column, value]) =>
              h(
                "div",
                { key: column },
                h("dt", null, column),
                h("dd", null, shown(typeof value === "object" ? JSON.stringify(value) : value, "string")),
              ),
            ),
        ),
    ];
  }

  document.addEventListener("keydown", keys);
  if (text) ask();
  return {
    title: name ? `Search ${name}` : "Search",
    render,
    told: () => asked === null && text && answer === null && !problem && running === null && ask(),
    leave() {
      clearTimeout(timer);
      running?.abort();
      document.removeEventListener("keydown", keys);
    },
  };
}
