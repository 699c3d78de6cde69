// Stored queries: which there are, how one is understood, and the commands that put and remove them. What is typed into
// the box is asked for as it is typed.

import { h } from "./dom.js";
import { clock, count, plural } from "./format.js";
import { calmly, get } from "./live.js";
import { copyable, empty, filter, link, panel, table } from "./parts.js";

const ASKED = 100;
const WAIT_MS = 150;

/** The tables that `app.queries` makes, by their columns. */
export const areQueries = (view) =>
  Boolean(view?.table) &&
  view.table.key.at(-1) === "query" &&
  view.table.key.length <= 2 &&
  view.columns.every(({ name }) => ["text", "version", ...view.table.key].includes(name) || name.startsWith("_")) &&
  view.columns.some(({ name }) => name === "text");

/** `stored(app, name)`: `load()` asks again; `render(all)` are the panels. */
export function stored(app, name) {
  const path = `/api/queries/${encodeURIComponent(name)}`;
  let text = "";
  let answer = null;
  let problem = null;
  let chosen = null; // a query
  let told = null; // its explanation
  let asking = 0;
  let timer = null;

  async function read() {
    const mine = (asking += 1);
    try {
      const found = await get(`${path}?${new URLSearchParams({ limit: ASKED, contains: text })}`);
      if (mine !== asking) return;
      [answer, problem] = [found, null];
    } catch (error) {
      if (mine === asking) problem = error;
    }
    app.draw();
  }
  const load = calmly(async () => {
    await read();
    if (chosen !== null) await explain(chosen);
  });

  function typed(value) {
    text = value;
    clearTimeout(timer);
    timer = setTimeout(read, WAIT_MS);
    app.draw();
  }

  async function explain(query) {
    if (query?.query !== chosen?.query || query?.tenant !== chosen?.tenant) told = null;
    chosen = query;
    app.draw();
    if (query === null) return;
    const asked = new URLSearchParams({ query: query.query, ...(query.tenant !== null && { tenant: query.tenant }) });
    try {
      const found = await get(`${path}/explain?${asked}`);
      if (chosen === query) [told, problem] = [found, null];
    } catch (error) {
      if (chosen === query) problem = error;
    }
    app.draw();
  }

  function render(all) {
    const rows = all.views.find((view) => view.name === name)?.rows ?? 0;
    const [tenant] = all.views.find((view) => view.name === name)?.table?.key.slice(0, -1) ?? [];
    return [
      panel(
        "Stored queries",
        {
          key: "stored",
          wide: true,
          about: ["Choose one to see how it is understood. ", searchedBy(all)],
          aside: filter("Find a query", text, typed),
        },
        problem && h("p", { class: "error", role: "alert" }, problem.message),
        answer &&
          (answer.queries.length === 0
            ? text
              ? empty("No such query", `None has “${text}” in its name or its text.`)
              : empty("No queries yet", "Put one, from a program or with the command below: it finds what arrives from then on.")
            : queriesTable(tenant, all.at, rows)),
      ),
      chosen !== null && explained(all),
      panel("Put, remove, explain", { key: "stored-commands", wide: true }, copyable(all.home, commandsOf(tenant))),
    ];
  }

  const queriesTable = (tenant, today, rows) =>
    table(
      `Stored queries of ${name}`,
      [
        { name: "query", title: "Query", class: "text", cell: (row) => row.query },
        tenant && { name: "tenant", title: tenant, class: "text", cell: (row) => row.tenant },
        { name: "text", title: "Finds", class: "text", cell: (row) => h("code", null, row.text) },
        { name: "version", title: "Version", align: "right", cell: (row) => row.version },
        { name: "put", title: "Put", align: "right", cell: (row) => clock(row.effective, today) },
      ].filter(Boolean),
      answer.queries,
      {
        keyed: (row) => JSON.stringify([row.tenant, row.query]),
        choose: explain,
        chosen: (row) => row.query === chosen?.query && row.tenant === chosen?.tenant,
        total: text === "" ? Math.max(rows, answer.queries.length) : answer.queries.length + (answer.more ? 1 : 0),
        what: text === "" ? "queries" : "queries or more",
      },
    );

  function searchedBy(all) {
    const flows = all.flows.filter((flow) => asksQueries(flow) === name);
    if (flows.length === 0) return "No flow asks them yet.";
    return [
      "Asked by ",
      flows.map((flow, at) => [at > 0 && ", ", link(flow.name, "flows", flow.name)]),
      ", hits in ",
      flows.map((flow, at) => [
        at > 0 && ", ",
        flow.target ? link(flow.target, "topics", flow.target) : link(flow.name, "views", flow.name),
      ]),
      ".",
    ];
  }

  const explained = (all) =>
    panel(
      `How ${chosen.query} is understood`,
      {
        key: "explained",
        wide: true,
        aside: h("button", { type: "button", class: "quiet", onclick: () => explain(null) }, "Close"),
      },
      told?.error && h("p", { class: "error", role: "alert" }, `It finds nothing: ${told.error}`),
      told && h("div", { role: "status" }, h("dl", { class: "facts" }, factsOf(told, all.at))),
    );

  const commandsOf = (tenant) => {
    const whose = tenant ? ["--tenant", chosen?.tenant ?? "TENANT"] : [];
    const query = chosen?.query ?? "NAME";
    return [
      ["Store a query, or replace it", "queries", "put", name, ...whose, "--", query, chosen?.text ?? "a word"],
      ["Remove it", "queries", "remove", name, ...whose, "--", query],
      ["How it is understood", "queries", "explain", name, ...whose, "--", query],
      ["All of them", "queries", "list", name],
    ];
  };

  return {
    load,
    render,
    leave() {
      clearTimeout(timer);
      load.close();
    },
  };
}

function factsOf({ query, text, version, effective, meaning, terms, seen, records, candidates, hits }, today) {
  const known = meaning !== null;
  return [
    ["Query", query],
    ["Text", h("code", null, text)],
    ["Put", `${clock(effective, today)}, version ${version}`],
    known && ["Means", h("code", null, meaning)],
    known && [
      "Lies under",
      terms.map((term, at) =>
        h("div", { key: term }, h("code", null, term), ` in ${count(seen[at])} of ${plural(records, "record")}`),
      ),
    ],
    known && ["Looked at", `in ${plural(candidates, "record")} of the newest ${count(records)}`],
    known && ["Found", plural(hits, "record")],
  ]
    .filter(Boolean)
    .map(([title, said]) => h("div", { key: title }, h("dt", null, title), h("dd", null, said)));
}

/** The stored queries that a flow asks, as they are called; null for any other flow. */
export const asksQueries = (flow) => {
  const said = /^search\(("(?:[^"\\]|\\.)*"), text=/.exec(flow?.operator ?? "");
  return said ? JSON.parse(said[1]) : null;
};

/** The columns that a flow searches for words. */
export const textsOf = (flow) => {
  const said = /, text=(\[.*?\])/.exec(flow?.operator ?? "");
  try {
    return said ? JSON.parse(said[1]) : [];
  } catch {
    return []; // a column with a bracket in its name
  }
};
