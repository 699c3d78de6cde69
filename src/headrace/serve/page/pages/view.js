// One view: a live table, and over event time a chart in which a correction is seen as one; of sessions a timeline. The
// rows are asked for again when something changed; the stream of changes tells what did, and what it was before. The
// address has the range and the column that are shown.

import { corrects, paired } from "../changes.js";
import { csvOf, download } from "../csv.js";
import { h } from "../dom.js";
import { ago, clock, count, day, iso, millis, numeric, span, value, windowKind } from "../format.js";
import { hitsPanel } from "../hits.js";
import { finalByRow, keptPanel, meets, shortId, waitingKeys } from "../joins.js";
import { calmly, follow, get } from "../live.js";
import { matches } from "../matches.js";
import {
  badge,
  copyable,
  empty,
  figures,
  hasLedger,
  heading,
  ledgerBar,
  link,
  onlyBox,
  panel,
  readsOf,
  ROWS_MAX,
  shown,
  state,
  table,
} from "../parts.js";
import { isOpen, progress } from "../progress.js";
import { rangeOf, searchOf } from "../range.js";
import { asksQueries, textsOf } from "../stored.js";
import { waiting } from "../waiting.js";
import { why } from "../why.js";
import { spec } from "./flows.js";
import { overTime } from "./over_time.js";
import { quoted } from "./query.js";

const ROWS_ASKED = 1000;
const ROWS_OF_RANGE = 5000;
const CHANGES_MAX = 60;
const CORRECTIONS_MAX = 50;
const FRESH_MS = 1500;
const TAIL = ["_status", "_corrections", "_updated_at"];
const WINDOW = ["window_start", "window_end"];
const ONLY = "only.";

const onlyOf = (search) =>
  Object.fromEntries(
    [...search].filter(([key]) => key.startsWith(ONLY)).map(([key, text]) => [key.slice(ONLY.length), text]),
  );

export function view(app, name, search) {
  const path = `/api/views/${encodeURIComponent(name)}`;
  let answer = null; // columns, rows, total
  let ledger = null;
  let problem = null;
  let changes = [];
  let corrections = [];
  let position = null;
  let column = search.get("show");
  let range = rangeOf(search);
  let only = onlyOf(search); // group -> the value that its rows have
  const typed = {}; // group -> what is not chosen yet
  let asking = 0;
  let commits = null;
  let numbered = 0;
  let skipping = false;
  const pair = paired();
  const origin = why(app, name);
  const waits = waiting(app, name); // of a pattern, as its matches
  const matched = matches(app, name);
  const fresh = new Map(); // result -> when it changed

  const exists = () => Boolean(app.overview?.views.some((each) => each.name === name));

  async function read() {
    if (!exists()) return;
    const mine = (asking += 1);
    if (isPattern()) {
      waits.load();
      matched.load(range);
    }
    try {
      const bounds = await boundsOf();
      const asked = new URLSearchParams({ limit: bounds === null ? ROWS_ASKED : ROWS_OF_RANGE, ...only, ...bounds });
      const found = await Promise.all([get(`${path}/rows?${asked}`), get(`${path}/ledger`)]);
      if (mine !== asking) return; // something else was chosen meanwhile
      [answer, ledger] = found;
      problem = null;
    } catch (error) {
      if (mine === asking) problem = error;
    }
    app.draw();
  }
  const load = calmly(read);

  /** The range as the server is asked for it; null: the newest rows. */
  async function boundsOf() {
    if (range === null || isPattern()) return null; // a range of matches is not one of windows
    if (!range.last) return searchOf(range);
    const { columns, rows } = await get(`${path}/rows?limit=1`);
    const newest = rows.length ? millis(rows[0][columns.findIndex((each) => each.name === WINDOW[1])]) : Date.now();
    return { from: new Date(newest - range.last).toISOString() };
  }

  /** Keeps what is shown in the address, so that it can be shared. */
  function keep() {
    const chosen = Object.entries(only).map(([group, text]) => [ONLY + group, text]);
    const said = new URLSearchParams({
      ...searchOf(range),
      ...(column && { show: column }),
      ...Object.fromEntries(chosen),
    });
    history.replaceState(null, "", `${location.hash.split("?")[0]}${said.size ? `?${said}` : ""}`);
    app.draw();
  }

  function choose(chosen) {
    range = chosen;
    keep();
    read();
  }

  function show(chosen) {
    column = chosen;
    keep();
  }

  function narrow(group, text) {
    const { [group]: _, ...others } = only;
    only = text ? { ...others, [group]: text } : others;
    delete typed[group];
    keep();
    read();
  }

  const flowOf = () => app.overview?.flows.find((flow) => flow.view === name);
  const groups = () => flowOf()?.groups ?? [];
  const isPattern = () => meets(flowOf()) === "match";
  const endsTell = () => windowKind(flowOf()?.window) === "cumulative"; // such windows begin together
  const nameOf = (row) =>
    JSON.stringify([row.window_start, endsTell() && row.window_end, ...groups().map((group) => row[group])]);

  function within(row) {
    const at = millis(row.window_start);
    return !range?.from || isPattern() || (at >= range.from && at < range.to);
  }

  let feed = null;

  function listen() {
    feed ??= follow(
      () => `${path}/changes?snapshot=false${position === null ? "" : `&from=${encodeURIComponent(position)}`}`,
      {
        snapshot: () => (skipping = true), // too late to go on: the rows as they are come first, and are no news
        ready(_, id) {
          position = id || position;
          skipping = false;
          load();
        },
        change(change, id) {
          if (skipping) return;
          position = id || position;
          const told = { ...pair(change, nameOf), at: Date.now(), number: (numbered += 1) };
          const alone = (each) => each.now === null && each.name === told.name && each.position === told.position; // its −
          changes = [told, ...changes.filter((each) => !alone(each))].slice(0, CHANGES_MAX);
          if (corrects(told)) corrections = [told, ...corrections].slice(0, CORRECTIONS_MAX);
          if (fresh.size > 5000) fresh.clear();
          fresh.set(told.name, told.at);
          if (within(told.now ?? told.was)) load();
        },
      },
      (said) => said === "open" && load(),
    );
  }

  function told(all) {
    const now = all.flows.find((flow) => flow.view === name)?.commits;
    if (commits !== null && now !== commits && (!range?.from || isPattern())) load(); // a chosen range changes by its rows alone
    if (commits !== null && now !== commits) origin.again();
    commits = now;
    if (exists()) listen();
  }

  function render(all) {
    const found = all.views.find((each) => each.name === name);
    if (!found)
      return [
        heading(name),
        empty(
          "No such view",
          "It may have been dropped, or its app has not run yet.",
          h("p", null, link("All views", "views")),
        ),
      ];
    const flow = all.flows.find((each) => each.view === name);
    const { dropped = 0, corrected = 0 } = flow?.ledger ?? {};
    const chosen = (range !== null && !isPattern()) || Object.keys(only).length > 0;
    const timed = found.windowed && flow !== undefined;
    const rows =
      answer === null
        ? []
        : answer.rows.map((row) => Object.fromEntries(answer.columns.map((each, at) => [each.name, row[at]])));
    const results = found.columns.filter((each) => ![...WINDOW, ...TAIL, ...(flow?.groups ?? [])].includes(each.name));
    const boxes = groups()
      .filter((group) => group !== "_id")
      .map((group) => onlyBox(group, typed, only, narrow));
    const drawn =
      found.windowed &&
      overTime(
        {
          name,
          flow,
          rows,
          results,
          corrections,
          column,
          range,
          loaded: answer !== null,
          more: Boolean(answer?.after),
        },
        { choose, show, boxes },
      );
    return [
      heading(
        name,
        flow && [
          flow.window ? [h("code", null, flow.window), " of "] : "of ",
          readsOf(flow),
          found.table && [": a ", link("table", "tables", name)],
        ],
        flow && state(flow.state),
      ),
      figures(
        ["Rows", count(found.rows)],
        timed && [
          "Complete up to",
          flow.frontier ? clock(Math.floor(millis(flow.frontier) / 1000) * 1000) : "–",
          { note: flow.frontier ? day(millis(flow.frontier), { year: true }) : null },
        ],
        flow && [
          "Commits",
          count(flow.commits),
          { note: flow.committed_at ? `last ${ago(flow.committed_at, Date.parse(all.at))}` : null },
        ],
        timed && [
          "Dropped",
          count(dropped),
          { note: dropped ? "records lost: too late" : "records", tone: dropped ? "bad" : null },
        ],
        timed && ["Corrected", count(corrected), { note: "records: late, and counted" }],
        flow && ["Lag", count(flow.lag), { note: "records" }],
      ),
      problem && h("p", { class: "error", role: "alert", key: "problem" }, problem.message),
      flow?.error &&
        h(
          "section",
          { class: "problems", key: "error", "aria-label": "Error" },
          h("h2", null, "Its flow has a problem"),
          h("pre", { class: "error-text", tabindex: "0" }, flow.error),
        ),
      drawn || (isPattern() && matched.render(choose)),
      isPattern() && waits.render(all, waitingKeys(flow)),
      asksQueries(flow) !== null && rows.length > 0 && latestHits(rows, flow, all.at),
      timed && isOpen(flow) && panel("Why is this window still open?", { key: "progress" }, progress(flow, all.at)),
      timed && panelOfLedger(flow, isOpen(flow)),
      panel(
        "Rows",
        {
          key: "rows",
          wide: true,
          about: found.windowed
            ? "Newest windows first."
            : meets(flow)
              ? "Choose one to see the records that it was made of, and what it waits for."
              : null,
          aside: [!drawn && boxes, answer?.rows.length > 0 && csvButton()],
        },
        answer !== null && rows.length === 0
          ? chosen
            ? empty("No such rows", "There are none in the range, or of the group, that you chose.")
            : empty("No rows yet", "The first commit of its flow brings some.")
          : rowsTable(rows, found, results, flow),
      ),
      origin.render(all),
      panel(
        "Recent changes",
        { key: "changes", tall: !timed, about: "Since this page was opened: − a row that went, + one that came." },
        changesTable(results, flow),
      ),
      flow && !timed && (hasLedger(flow) || !meets(flow)) && panelOfLedger(flow),
      flow && panel("What it is", { key: "spec" }, spec(flow)),
      keptPanel(flow, all.at),
      panel("In a terminal", { key: "commands", wide: true }, copyable(all.home, commandsOf())),
    ];
  }

  function latestHits(rows, flow, today) {
    const newest = [...rows].sort((a, b) => millis(b._updated_at) - millis(a._updated_at));
    const hits = newest.map((row) => ({ at: row._updated_at, row }));
    return hitsPanel(hits, textsOf(flow), today, (hit) => hit.row._id);
  }

  const csvButton = () =>
    h(
      "button",
      { type: "button", onclick: () => download(`${name}.csv`, csvOf(answer.columns, answer.rows)) },
      answer.after ? `Download these ${count(answer.rows.length)} as CSV` : "Download CSV",
    );

  function commandsOf() {
    const conditions = Object.entries(only).map(([group, text]) => [`${quoted(group)} = ?`, text]);
    if (range?.from && !isPattern())
      conditions.push(
        ["window_start >= ?", new Date(range.from).toISOString()],
        ["window_start < ?", new Date(range.to).toISOString()],
      );
    const where = conditions.map(([sql]) => sql).join(" and ");
    const words = conditions.length
      ? [`select * from ${quoted(name)} where ${where}`, ...conditions.flatMap(([, text]) => ["--param", text])]
      : [name];
    return [
      ["The rows", "query", ...words],
      isPattern() && ["What each key waits for", "query", `${name}_partials`],
      ["Its changes, as they come", "watch", name],
      ["What became of every record", "ledger", name],
      ["How far it is", "views", "show", name],
    ].filter(Boolean);
  }

  const panelOfLedger = (flow, narrow = true) =>
    panel(
      "What became of every record",
      {
        key: "ledger",
        wide: !narrow,
        about: "The straggler ledger: rows in = on time + corrected + dropped + untimed.",
      },
      ledgerBar(flow.ledger),
      flow.window && ledgerTable(),
    );

  // -- the tables ------------------------------------------------------------------------------------

  function rowsTable(rows, found, results, flow) {
    const now = Date.now();
    const typed = new Map(found.columns.map((each) => [each.name, each.type]));
    return table(
      `Rows of ${name}`,
      [
        found.windowed && { name: "window", title: "Window", cell: (row) => windowOf(row) },
        ...(flow?.groups ?? []).map((group) => ({
          name: `g ${group}`,
          title: group,
          align: numeric(typed.get(group)) ? "right" : "left",
          class: "text",
          cell: (row) => (group === "_id" ? shortId(row[group]) : shown(row[group], typed.get(group))),
        })),
        ...results.map((each) => ({
          name: `r ${each.name}`,
          title: each.name,
          align: numeric(each.type) ? "right" : "left",
          class: "text",
          cell: (row) => shown(row[each.name], each.type),
        })),
        (found.windowed || finalByRow(flow)) && {
          name: "status",
          title: "Status",
          cell: (row) => [
            badge(row._status, row._status === "final" ? "final" : "open"),
            row._corrections > 0 && [
              " ",
              badge(`corrected${row._corrections > 1 ? ` ${count(row._corrections)}×` : ""}`, "coral"),
            ],
          ],
        },
        { name: "updated", title: "Updated", align: "right", cell: (row) => clock(row._updated_at, app.overview.at) },
      ].filter(Boolean),
      rows,
      {
        keyed: nameOf,
        total: (range === null || isPattern()) && Object.keys(only).length === 0 ? Math.max(found.rows, rows.length) : rows.length,
        rowClass: (row) => (now - (fresh.get(nameOf(row)) ?? 0) < FRESH_MS ? "fresh" : ""),
        max: ROWS_MAX,
        ...(meets(flow) && {
          choose: (row) => origin.ask(groups().map((group) => String(row[group]))),
          chosen: (row) => JSON.stringify(origin.chosen()) === JSON.stringify(groups().map((each) => String(row[each]))),
        }),
      },
    );
  }

  function windowOf(row) {
    const [start, end] = WINDOW.map((each) => millis(row[each]));
    if (start === null) return "–";
    return h("span", { title: `${iso(start)} to ${iso(end)}` }, span(start, end, app.overview?.at));
  }

  function ledgerTable() {
    if (ledger === null || ledger.rows.length === 0) return null;
    const at = Object.fromEntries(ledger.columns.map((each, index) => [each.name, index]));
    const rows = [...ledger.rows].sort(
      (a, b) => (millis(b[at.window_start]) ?? Infinity) - (millis(a[at.window_start]) ?? Infinity),
    );
    return h(
      "details",
      { key: "by-window" },
      h("summary", null, "Window by window"),
      table(
        `Ledger of ${name}, window by window`,
        [
          {
            name: "window",
            title: "Window",
            cell: (row) =>
              row[at.window_start] === null
                ? "none"
                : windowOf({ window_start: row[at.window_start], window_end: row[at.window_end] }),
          },
          ...["on_time", "corrected", "dropped", "untimed"].map((each) => ({
            name: each,
            title: each.replace("_", " "),
            align: "right",
            cell: (row) => count(row[at[each]]),
          })),
        ],
        rows,
        { keyed: (row) => `${row[at.window_start]} ${row[at.window_end]}`, max: 100, what: "windows" },
      ),
    );
  }

  function changesTable(results, flow) {
    if (changes.length === 0) return empty("Nothing has changed yet", "The next commit that changes a row shows here.");
    const label = (row) =>
      (flow?.groups ?? []).map((group) => (group === "_id" ? shortId(row[group]) : value(row[group]))).join(" · ");
    const said = (row) =>
      results
        .slice(0, 6)
        .map((each) => `${each.name} ${value(row[each.name], each.type)}`)
        .join(", ");
    const kind = (each) =>
      corrects(each)
        ? badge("correction", "coral")
        : each.was && each.now && each.was._status !== each.now._status
          ? badge("closed", "final")
          : null;
    return h(
      "ol",
      { class: "changes", tabindex: "0", "aria-label": "Recent changes" },
      changes.map((each) => {
        const row = each.now ?? each.was;
        return h(
          "li",
          { key: each.number },
          h(
            "p",
            null,
            h("span", { class: "when" }, clock(Math.floor(each.at / 1000) * 1000)),
            h(
              "strong",
              null,
              row.window_start ? `${span(millis(row.window_start), millis(row.window_end), app.overview?.at)} ` : "",
              label(row),
            ),
            " ",
            kind(each),
          ),
          each.was && h("p", { class: "minus", key: "-" }, `− ${said(each.was)}`),
          each.now && h("p", { class: "plus", key: "+" }, `+ ${said(each.now)}`),
        );
      }),
    );
  }

  if (exists()) listen();
  return {
    title: name,
    render,
    told,
    again: load,
    leave() {
      feed?.close();
      load.close();
      waits.leave();
      matched.leave();
    },
  };
}
