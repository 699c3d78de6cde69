// A box for SQL that only reads, the tables it can read beside it, and the queries of before. Those stay in this browser.

import { csvOf, download } from "../csv.js";
import { h } from "../dom.js";
import { duration, plural } from "../format.js";
import { post } from "../live.js";
import { copyable, dataTable, empty, heading, panel } from "../parts.js";

const STORED = "headrace-queries";
const QUERIES_MAX = 20;
export const quoted = (name) => (/^[a-z_]\w*$/i.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

const past = {
  read() {
    try {
      const found = JSON.parse(localStorage.getItem(STORED) ?? "[]");
      return Array.isArray(found) ? found.filter((each) => typeof each?.sql === "string") : [];
    } catch {
      return [];
    }
  },
  write(queries) {
    try {
      localStorage.setItem(STORED, JSON.stringify(queries));
    } catch {
      // not kept, then
    }
    return queries;
  },
};

export function query(app, _, search) {
  let sql = search.get("sql");
  let answer = null;
  let problem = null;
  let running = false;
  let took = 0;
  let queries = past.read();

  async function run() {
    if (running) return;
    running = true;
    problem = null;
    history.replaceState(null, "", `#/query?sql=${encodeURIComponent(sql)}`); // a link to share; opening it runs nothing
    app.draw();
    const began = performance.now();
    const asked = sql;
    try {
      answer = await post("/api/query", { sql });
      const others = past.read().filter((each) => each.sql !== asked);
      queries = past.write([{ sql: asked, rows: answer.rows.length }, ...others].slice(0, QUERIES_MAX));
    } catch (error) {
      problem = error;
    }
    took = (performance.now() - began) / 1000;
    running = false;
    app.draw();
  }

  function render(all) {
    sql ??= all.views.length
      ? `select * from ${quoted(all.views[0].name)} order by 1 desc limit 20`
      : "select 1 as one";
    return [
      heading("Query", "SQL over the views, read-only: ten seconds and ten thousand rows at most."),
      h("div", { class: "beside", key: "beside" }, box(), tables(all)),
      h("div", { key: "outcome", role: "status", class: "outcome" }, outcome()),
      answer &&
        !problem &&
        panel(
          "Result",
          { wide: true, aside: [answer.truncated && "the server stopped at its limit", csvButton()] },
          answer.rows.length
            ? dataTable("Result of the query", answer.columns, answer.rows)
            : empty("No rows", "The query found nothing."),
        ),
      queries.length > 0 && panelOfPast(),
      panel("In a terminal", { key: "commands", wide: true }, copyable(all.home, [["This query", "query", sql]])),
    ];
  }

  function box() {
    return h(
      "form",
      {
        class: "query",
        key: "form",
        onsubmit: (event) => {
          event.preventDefault();
          run();
        },
      },
      h("label", { class: "unseen", for: "sql" }, "SQL"),
      h("textarea", {
        id: "sql",
        rows: 8,
        spellcheck: "false",
        autocapitalize: "off",
        value: sql,
        oninput: (event) => {
          sql = event.target.value;
          app.draw.now(); // what is copied is what was typed
        },
        onkeydown: (event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            run();
          }
        },
      }),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "submit", class: "primary", disabled: running }, running ? "Running…" : "Run"),
        h("span", { class: "hint" }, "Ctrl + Enter"),
      ),
    );
  }

  /** What can be read; a click puts a name where the cursor is. */
  function tables(all) {
    const insert = (text) => () => {
      const area = document.getElementById("sql");
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      sql = area.value;
      area.focus();
      app.draw();
    };
    const name = (text, label) =>
      h("button", { type: "button", class: "name", "aria-label": label, onclick: insert(quoted(text)) }, text);
    return h(
      "section",
      { class: "tables", key: "tables", "aria-label": "Tables", tabindex: "0" },
      h("h2", null, "Tables"),
      all.views.length === 0 && h("p", { class: "about" }, "No views yet: a flow makes the first one."),
      all.views.map((table) =>
        h(
          "details",
          { key: table.name },
          h("summary", null, h("code", null, table.name), h("span", { class: "muted" }, plural(table.rows, "row"))),
          h(
            "ul",
            null,
            h("li", { key: "table" }, name(table.name, `Insert ${table.name}`), h("span", { class: "muted" }, "table")),
            table.columns.map((column) =>
              h(
                "li",
                { key: `column ${column.name}` },
                name(column.name, `Insert ${column.name}`),
                h("span", { class: "muted" }, column.type),
              ),
            ),
          ),
        ),
      ),
    );
  }

  const csvButton = () =>
    answer.rows.length > 0 &&
    h(
      "button",
      { type: "button", key: "csv", onclick: () => download("query.csv", csvOf(answer.columns, answer.rows)) },
      "Download CSV",
    );

  function panelOfPast() {
    const again = (each) => () => {
      sql = each.sql;
      app.draw();
      document.getElementById("sql").focus();
    };
    const forget = () => {
      queries = past.write([]);
      app.draw();
    };
    return panel(
      "Recent queries",
      {
        key: "past",
        wide: true,
        about: "Kept in this browser only. A click puts one back into the box.",
        aside: h("button", { type: "button", class: "quiet", onclick: forget }, "Forget them"),
      },
      h(
        "ol",
        { class: "past" },
        queries.map((each) =>
          h(
            "li",
            { key: each.sql },
            h("button", { type: "button", onclick: again(each) }, h("code", null, each.sql)),
            h("span", { class: "muted" }, plural(each.rows, "row")),
          ),
        ),
      ),
    );
  }

  function outcome() {
    if (running) return "Running…";
    if (problem) return h("p", { class: "error" }, problem.message);
    if (answer)
      return `${plural(answer.rows.length, "row")}${answer.truncated ? " (there are more)" : ""} in ${duration(took)}`;
    return null;
  }
  return { title: "Query", render };
}
