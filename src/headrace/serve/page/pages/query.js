// A box for SQL that only reads.

import { h } from "../dom.js";
import { duration, plural } from "../format.js";
import { post } from "../live.js";
import { dataTable, empty, heading, panel } from "../parts.js";

const quoted = (name) => (/^[a-z_]\w*$/i.test(name) ? name : `"${name}"`);

export function query(app, _, search) {
  let sql = search.get("sql");
  let answer = null;
  let problem = null;
  let running = false;
  let took = 0;

  async function run() {
    if (running) return;
    running = true;
    problem = null;
    history.replaceState(null, "", `#/query?sql=${encodeURIComponent(sql)}`); // a link to share; opening it runs nothing
    app.draw();
    const began = performance.now();
    try {
      answer = await post("/api/query", { sql });
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
      h(
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
          rows: 5,
          spellcheck: "false",
          autocapitalize: "off",
          value: sql,
          oninput: (event) => (sql = event.target.value),
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
          all.views.length > 0 &&
            h(
              "span",
              { class: "hint" },
              "views: ",
              all.views
                .slice(0, 8)
                .map((view) => view.name)
                .join(", "),
              all.views.length > 8 && `, and ${all.views.length - 8} more`,
            ),
        ),
      ),
      h("div", { key: "outcome", role: "status", class: "outcome" }, outcome()),
      answer &&
        !problem &&
        panel(
          "Result",
          { wide: true, aside: answer.truncated ? "the server stopped at its limit" : null },
          answer.rows.length
            ? dataTable("Result of the query", answer.columns, answer.rows)
            : empty("No rows", "The query found nothing."),
        ),
    ];
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
