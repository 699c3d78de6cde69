// Tables: rows by key, as they are or as they were, and the versions of one of them.

import { h } from "../dom.js";
import { count } from "../format.js";
import { historyLine, inOrder, spansOf, VERSIONS_MAX } from "../history.js";
import { calmly, get } from "../live.js";
import { copyable, dataTable, empty, figures, filter, heading, link, panel, state, table } from "../parts.js";
import { areQueries, stored } from "../stored.js";
import { why } from "../why.js";
import { quoted } from "./query.js";

const ROWS_ASKED = 200;
const HISTORY_ASKED = 500;
const SAID = {
  latest: "The latest row of each key.",
  versions: "What was valid when: each row with the time from which it is valid.",
  bitemporal: "What was valid when, and what was known of it when.",
};

const tablesOf = (all) => all.views.filter((view) => view.table !== null);

export function tables(app) {
  let text = "";
  return {
    title: "Tables",
    render(all) {
      const found = tablesOf(all);
      if (found.length === 0)
        return [
          heading("Tables"),
          empty("No tables yet", "A table has rows that are known by a key: an app makes it with app.table(…)."),
        ];
      const makers = new Map(all.flows.map((flow) => [flow.view, flow]));
      const find = (typed) => {
        text = typed;
        app.draw();
      };
      return [
        heading("Tables", "Rows that are known by a key.", filter("Find a table", text, find)),
        panel(
          "All tables",
          { wide: true },
          table(
            "All tables",
            [
              { name: "table", title: "Table", cell: (row) => link(row.name, "tables", row.name) },
              { name: "state", title: "State", cell: (row) => state(makers.get(row.name)?.state ?? "unknown") },
              { name: "key", title: "Key", cell: (row) => h("code", null, row.table.key.join(", ")) },
              { name: "history", title: "History", cell: (row) => row.table.history },
              { name: "rows", title: "Rows", align: "right", cell: (row) => count(row.rows) },
              { name: "versions", title: "Versions", align: "right", cell: (row) => count(row.table.versions) },
              { name: "lag", title: "Lag", align: "right", cell: (row) => count(makers.get(row.name)?.lag) },
            ],
            found.filter((row) => row.name.includes(text)),
            { keyed: (row) => row.name, what: "tables" },
          ),
        ),
      ];
    },
  };
}

export function oneTable(app, name, search) {
  const path = `/api/tables/${encodeURIComponent(name)}`;
  const narrow = matchMedia("(max-width: 700px)");
  const times = { as_of: search.get("as_of") ?? "", as_known: search.get("as_known") ?? "" }; // as they are typed, UTC
  let answer = null;
  let problem = null;
  let key = null; // of the row that was chosen
  let history = null;
  let commits = null;
  const origin = why(app, name);
  const queries = stored(app, name);
  const found = () => app.overview?.views.find((each) => each.name === name && each.table !== null);

  const asked = () =>
    new URLSearchParams({
      limit: ROWS_ASKED,
      ...Object.fromEntries(
        Object.entries(times)
          .filter(([, typed]) => typed)
          .map(([which, typed]) => [which, `${typed}Z`]),
      ),
    });

  async function read() {
    if (!found()) return;
    if (areQueries(found())) return queries.load();
    const mine = asked().toString();
    try {
      const rows = await get(`${path}/rows?${mine}`);
      if (mine === asked().toString()) [answer, problem] = [rows, null];
    } catch (error) {
      problem = error;
    }
    app.draw();
  }
  const load = calmly(read);

  async function choose(chosen) {
    key = chosen;
    history = null;
    origin.ask(times.as_of || times.as_known ? null : chosen); // of a row that was there, the version says it
    if (chosen === null || found().table.history === "latest") return;
    const one = new URLSearchParams(chosen.map((each) => ["key", each]));
    try {
      const versions = await get(`${path}/history?limit=${HISTORY_ASKED}&${one}`);
      if (key === chosen) history = inOrder(versions);
    } catch (error) {
      problem = error;
    }
    app.draw();
  }

  function at(which, typed) {
    times[which] = typed;
    const said = new URLSearchParams(Object.entries(times).filter(([, text]) => text));
    window.history.replaceState(null, "", `${location.hash.split("?")[0]}${said.size ? `?${said}` : ""}`);
    read();
    origin.ask(null); // the row may not be there at that time
  }

  function told(all) {
    const now = all.flows.find((flow) => flow.view === name)?.commits;
    if (now !== commits) {
      load();
      if (commits !== null && key !== null) choose(key);
    }
    commits = now;
  }

  function render(all) {
    const it = all.views.find((each) => each.name === name && each.table !== null);
    if (!it)
      return [
        heading(name),
        empty(
          "No such table",
          "It may have been dropped, or its app has not run yet.",
          h("p", null, link("All tables", "tables")),
        ),
      ];
    const flow = all.flows.find((each) => each.view === name);
    const kept = it.table.history;
    return [
      heading(
        name,
        [
          SAID[kept],
          " Its changes are the topic ",
          link(name, "topics", name),
          "; it is ",
          link("a view", "views", name),
          ", too.",
        ],
        flow && state(flow.state),
      ),
      figures(
        ["Rows", count(it.rows), { note: "latest" }],
        kept !== "latest" && ["Versions", count(it.table.versions), { note: "kept" }],
        ["Key", it.table.key.join(", ")],
        ["History", kept],
        flow && ["Lag", count(flow.lag), { note: "changes" }],
      ),
      problem && h("p", { class: "error", role: "alert", key: "problem" }, problem.message),
      areQueries(it) ? queries.render(all) : rowsPanel(it, kept),
      key !== null && kept !== "latest" && historyPanel(it),
      origin.render(all),
      panel("In a terminal", { key: "commands", wide: true }, copyable(all.home, commandsOf(kept))),
    ];
  }

  const rowsPanel = (it, kept) =>
    panel(
      "Rows",
      {
        key: "rows",
        wide: true,
        about: `By key. Choose one to see where it comes from${kept === "latest" ? "" : ", and its versions"}.`,
        aside: boxes(kept),
      },
      answer !== null && answer.rows.length === 0
        ? empty(
            "No rows",
            times.as_of || times.as_known
              ? "The table had none at that time."
              : "None were put yet, or all are deleted.",
          )
        : answer && rowsTable(it),
      answer?.truncated && h("p", { class: "bounded" }, `These are the first ${count(answer.rows.length)}.`),
    );

  const boxes = (kept) =>
    kept !== "latest" && [
      timeBox("as_of", "valid at"),
      kept === "bitemporal" && timeBox("as_known", "as known at"),
      (times.as_of || times.as_known) &&
        h(
          "button",
          {
            type: "button",
            key: "now",
            class: "quiet",
            onclick: () => {
              times.as_known = "";
              at("as_of", "");
            },
          },
          "Latest",
        ),
    ];

  const timeBox = (which, label) =>
    h(
      "label",
      { class: "only when", key: which },
      `${label} (UTC)`,
      h("input", {
        type: "datetime-local",
        step: "1",
        value: times[which],
        onchange: (event) => at(which, event.target.value),
      }),
    );

  function rowsTable(it) {
    const places = it.table.key.map((each) => answer.columns.findIndex((column) => column.name === each));
    const hidden = new Set(["_status", "_corrections"]);
    const columns = answer.columns.filter((column) => !hidden.has(column.name));
    const of = answer.columns.map((column, at) => !hidden.has(column.name) && at).filter((at) => at !== false);
    const keyOf = (row) => places.map((at) => String(answer.rows[row.at][at]));
    const rows = answer.rows.map((row, at) => Object.assign(of.map((each) => row[each]), { at }));
    return dataTable(`Rows of ${name}`, columns, rows, {
      keyed: (row) => JSON.stringify(keyOf(row)),
      choose: (row) => choose(keyOf(row)),
      chosen: (row) => key !== null && JSON.stringify(keyOf(row)) === JSON.stringify(key),
      max: ROWS_ASKED,
      total: times.as_of || times.as_known ? rows.length : Math.max(it.rows, rows.length),
    });
  }

  function historyPanel(it) {
    const title = `Versions of ${key.join(", ")}`;
    if (history === null) return panel(title, { key: "history", wide: true }, h("p", { class: "about" }, "Reading…"));
    const drawn = history.rows.length > 0 && spansOf(history, it.table.key);
    const forgotten = drawn && drawn.spans.some((span) => !span.known);
    return panel(
      title,
      { key: "history", wide: true, about: "Each line is a version, drawn over the time in which it is valid." },
      drawn
        ? historyLine(drawn, { name: key.join(", "), narrow: narrow.matches })
        : empty("No versions", "There are none of this key."),
      forgotten &&
        h(
          "ul",
          { class: "legend" },
          h("li", null, h("i", { class: "swatch known" }), "known now"),
          h("li", null, h("i", { class: "swatch forgotten" }), "known before, and corrected since"),
        ),
      history.rows.length > VERSIONS_MAX && h("p", { class: "bounded" }, `Drawn are the last ${VERSIONS_MAX}.`),
      history.rows.length > 0 && dataTable(title, history.columns, history.rows, { max: HISTORY_ASKED }),
    );
  }

  const commandsOf = (kept) => [
    ["Its rows", "query", name],
    kept !== "latest" && ["Rows of a time", "tables", "as-of", name, `${times.as_of || "2026-01-01T00:00:00"}Z`],
    kept !== "latest" && ["All versions", "query", `select * from ${quoted(`${name}_history`)}`],
    key !== null && ["Where the row comes from", "why", name, ...key],
    ["Key, history, columns", "tables", "show", name],
  ].filter(Boolean);

  narrow.addEventListener("change", app.draw);
  load();
  return {
    title: name,
    render,
    told,
    again: load,
    leave() {
      load.close();
      queries.leave();
      narrow.removeEventListener("change", app.draw);
    },
  };
}
