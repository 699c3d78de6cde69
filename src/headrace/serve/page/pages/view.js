// One view: a live table, and over event time a chart in which a correction is seen as one; of sessions a timeline. The
// rows are asked for again when something changed; the stream of changes tells what did, and what it was before. The
// address has the range and the column that are shown.

import { corrects, paired } from "../changes.js";
import { chart, seriesOf, SERIES_MAX } from "../chart.js";
import { csvOf, download } from "../csv.js";
import { h } from "../dom.js";
import { ago, clock, count, day, iso, millis, minute, numeric, plural, span, value, windowKind } from "../format.js";
import { calmly, follow, get } from "../live.js";
import {
  badge,
  copyable,
  empty,
  figures,
  heading,
  ledgerBar,
  link,
  panel,
  readsOf,
  ROWS_MAX,
  shown,
  state,
  table,
} from "../parts.js";
import { isOpen, progress } from "../progress.js";
import { rangeBar, rangeOf, searchOf } from "../range.js";
import { LANES_MAX, lanesOf, timeline } from "../timeline.js";
import { spec } from "./flows.js";
import { quoted } from "./query.js";

const ROWS_ASKED = 1000;
const ROWS_OF_RANGE = 5000;
const CHANGES_MAX = 60;
const CORRECTIONS_MAX = 50;
const FRESH_MS = 1500;
const TAIL = ["_status", "_corrections", "_updated_at"];
const WINDOW = ["window_start", "window_end"];

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
  let commits = null;
  let numbered = 0;
  let skipping = false;
  const pair = paired();
  const fresh = new Map(); // result -> when it changed

  const exists = () => Boolean(app.overview?.views.some((each) => each.name === name));

  const load = calmly(async () => {
    if (!exists()) return;
    try {
      const bounds = await boundsOf();
      const asked = new URLSearchParams({ limit: bounds === null ? ROWS_ASKED : ROWS_OF_RANGE, ...bounds });
      [answer, ledger] = await Promise.all([get(`${path}/rows?${asked}`), get(`${path}/ledger`)]);
      problem = null;
    } catch (error) {
      problem = error;
    }
    app.draw();
  });

  /** The range as the server is asked for it; null: the newest rows. */
  async function boundsOf() {
    if (range === null || !range.last) return range && searchOf(range);
    const { columns, rows } = await get(`${path}/rows?limit=1`);
    const newest = rows.length ? millis(rows[0][columns.findIndex((each) => each.name === WINDOW[1])]) : Date.now();
    return { from: new Date(newest - range.last).toISOString() };
  }

  /** Keeps what is shown in the address, so that it can be shared. */
  function keep() {
    const said = new URLSearchParams({ ...searchOf(range), ...(column && { show: column }) });
    history.replaceState(null, "", `${location.hash.split("?")[0]}${said.size ? `?${said}` : ""}`);
    app.draw();
  }

  function choose(chosen) {
    range = chosen;
    answer = null;
    keep();
    load();
  }

  const groups = () => app.overview?.flows.find((flow) => flow.view === name)?.groups ?? [];
  const nameOf = (row) => JSON.stringify([row.window_start, ...groups().map((group) => row[group])]);

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
          load();
        },
      },
      (said) => said === "open" && load(),
    );
  }

  function told(all) {
    const now = all.flows.find((flow) => flow.view === name)?.commits;
    if (commits !== null && now !== commits) load();
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
    const timed = found.windowed && flow !== undefined;
    const rows =
      answer === null
        ? []
        : answer.rows.map((row) => Object.fromEntries(answer.columns.map((each, at) => [each.name, row[at]])));
    const results = found.columns.filter((each) => ![...WINDOW, ...TAIL, ...(flow?.groups ?? [])].includes(each.name));
    return [
      heading(
        name,
        flow && [flow.window ? [h("code", null, flow.window), " of "] : "of ", readsOf(flow)],
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
      found.windowed && panelOfChart(rows, results, flow),
      timed && isOpen(flow) && panel("Why is this window still open?", { key: "progress" }, progress(flow, all.at)),
      timed && panelOfLedger(flow, isOpen(flow)),
      panel(
        "Rows",
        {
          key: "rows",
          wide: true,
          about: found.windowed ? "Newest windows first." : null,
          aside: answer?.rows.length > 0 && csvButton(),
        },
        answer !== null && rows.length === 0
          ? range === null
            ? empty("No rows yet", "The first commit of its flow brings some.")
            : empty("No rows in this range", "Choose another one above.")
          : rowsTable(rows, found, results, flow),
      ),
      panel(
        "Recent changes",
        { key: "changes", tall: !timed, about: "Since this page was opened: − a row that went, + one that came." },
        changesTable(results, flow),
      ),
      flow && !timed && panelOfLedger(flow),
      flow && panel("What it is", { key: "spec" }, spec(flow)),
      panel("In a terminal", { key: "commands", wide: true }, copyable(all.home, commandsOf())),
    ];
  }

  const csvButton = () =>
    h(
      "button",
      { type: "button", onclick: () => download(`${name}.csv`, csvOf(answer.columns, answer.rows)) },
      answer.after ? `Download these ${count(answer.rows.length)} as CSV` : "Download CSV",
    );

  function commandsOf() {
    const [from, to] = [range?.from, range?.to].map((at) => at !== undefined && new Date(at).toISOString());
    const words = from
      ? [`select * from ${quoted(name)} where window_start >= ? and window_start < ?`, "--param", from, "--param", to]
      : [name];
    return [
      ["The rows", "query", ...words],
      ["Its changes, as they come", "watch", name],
      ["What became of every record", "ledger", name],
      ["How far it is", "views", "show", name],
    ];
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

  // -- the chart -------------------------------------------------------------------------------------

  function panelOfChart(rows, results, flow) {
    const numbers = results.filter((each) => numeric(each.type));
    if (numbers.length === 0) return null;
    const chosen = numbers.find((each) => each.name === column)?.name ?? numbers[0].name;
    const label = (row) => (flow?.groups ?? []).map((group) => value(row[group])).join(" · ");
    const sessions = windowKind(flow?.window) === "session";
    const marked = windowKind(flow?.window) === "sliding" ? WINDOW[1] : WINDOW[0]; // where a result has its mark
    const points = rows.map((row) => ({
      at: millis(row[marked]),
      start: millis(row.window_start),
      end: millis(row.window_end),
      group: label(row),
      number: row[chosen] === null ? null : Number(row[chosen]),
      final: row._status === "final",
      corrected: row._corrections > 0,
    }));
    const seen = points.length
      ? { from: Math.min(...points.map((each) => each.start)), to: Math.max(...points.map((each) => each.end)) }
      : null;
    const drawn = sessions ? lanesOf(points) : dataOf(points, label, chosen, marked);
    return panel(
      "Over event time",
      {
        key: "chart",
        wide: true,
        aside: [columnChoice(numbers, chosen), rangeBar(range, range?.from ? range : seen, choose)],
      },
      points.length === 0
        ? answer === null
          ? h("p", { class: "about", key: "reading" }, "Reading…")
          : nothing()
        : sessions
          ? timeline(`${name} ${chosen}`, drawn, {
              unit: chosen,
              summary: `Timeline of ${plural(points.length, "session")}, ${span(seen.from, seen.to)}. The table below has all numbers.`,
              narrow: matchMedia("(max-width: 700px)").matches,
              zoom: (from, to) => choose({ from, to }),
            })
          : chart(`${name} ${chosen}`, drawn, summary(drawn, chosen)),
      points.length > 0 && legend(drawn, sessions, chosen),
      answer?.after &&
        h(
          "p",
          { class: "bounded", key: "bounded" },
          `The newest ${count(rows.length)} rows${range ? " of this range" : ""}: zoom in, or go back, for others.`,
        ),
      correctionList(chosen, label, rows),
    );
  }

  const nothing = () =>
    range === null
      ? empty("Nothing to draw yet", null)
      : empty("No window starts in this range", "Zoom out, or choose the newest rows.");

  function columnChoice(numbers, chosen) {
    if (numbers.length < 2) return null;
    const change = (event) => {
      column = event.target.value;
      keep();
    };
    return h(
      "label",
      { class: "choose", key: "column" },
      "showing ",
      h(
        "select",
        { value: chosen, onchange: change },
        numbers.map((each) =>
          h("option", { key: each.name, value: each.name, selected: each.name === chosen }, each.name),
        ),
      ),
    );
  }

  function dataOf(points, label, chosen, marked) {
    const open = points.filter((point) => !point.final).map((point) => point.at);
    const old = corrections.map((each) => ({
      at: millis(each.now[marked]),
      group: label(each.now),
      was: Number(each.was[chosen] ?? 0),
      now: Number(each.now[chosen] ?? 0),
    }));
    const data = seriesOf(points);
    const drawn = new Set(data.xs);
    return {
      ...data,
      corrections: old.filter((each) => each.was !== each.now && drawn.has(each.at)),
      open: open.length ? Math.min(...open) : null,
      unit: chosen,
      connected: marked === WINDOW[1],
      lone: Math.max(1000, ...points.map((point) => point.end - point.start)),
      zoom: (from, to) => choose({ from, to }),
    };
  }

  function legend(drawn, sessions, chosen) {
    const item = (key, swatch, ...said) =>
      h("li", { key }, swatch && h("i", { class: `swatch ${swatch}`, "aria-hidden": "true" }), said);
    const bars = sessions ? drawn.lanes.flatMap((lane) => lane.bars) : [];
    const most = sessions ? LANES_MAX : SERIES_MAX;
    const all = drawn.left + (drawn.lanes ?? drawn.series).length;
    return h(
      "ul",
      { class: "legend", key: "legend" },
      sessions
        ? [
            item("bar", "s1", `a session: the darker, the larger its ${chosen}`),
            bars.some((bar) => !bar.final) && item("open", "open-session", "open: may still grow"),
            bars.some((bar) => bar.corrected) && item("corrected", "corrected-session", "corrected"),
          ]
        : [
            drawn.series.map((each, at) => item(each.name, `s${at + 1}`, each.name || "all")),
            drawn.open !== null && item("open", "open", "open: may still grow"),
            drawn.corrections.length > 0 &&
              item("correction", "correction", "corrected: hollow what it was, full what it is"),
          ],
      drawn.left > 0 && h("li", { key: "left", class: "muted" }, `the ${most} largest of ${count(all)}`),
    );
  }

  function summary(data, chosen) {
    const last = data.xs.length - 1;
    const latest = data.series
      .map((each) => `${each.name || "all"} ${each.ys[last] === null ? "none" : value(each.ys[last])}`)
      .join(", ");
    return `Line chart of ${chosen} over ${plural(data.xs.length, "window")}; the newest, ${day(data.xs[last])} ${minute(data.xs[last])}: ${latest}. ${plural(corrections.length, "correction")} since the page was opened. The table below has all numbers.`;
  }

  function correctionList(chosen, label, rows) {
    const before = rows.filter((row) => row._corrections > 0).length;
    if (corrections.length === 0) {
      return h(
        "p",
        { class: "about", key: "corrections" },
        before
          ? `${plural(before, "result was", "results were")} corrected before; the next correction is shown here as it comes, − old and + new.`
          : "No result was corrected. When a straggler changes one, the old value stays in the chart, and both are listed here.",
      );
    }
    return h(
      "div",
      { key: "corrections" },
      h("h3", null, "Corrections"),
      h(
        "ol",
        { class: "corrections", "aria-live": "polite" },
        corrections.map((each) =>
          h(
            "li",
            { key: each.number },
            h("span", { class: "when" }, clock(Math.floor(each.at / 1000) * 1000)),
            h(
              "span",
              { class: "which" },
              `${day(millis(each.now.window_start))} ${minute(millis(each.now.window_start))}${label(each.now) ? ` ${label(each.now)}` : ""}`,
            ),
            h(
              "span",
              { class: "minus" },
              "−",
              h("span", { class: "unseen" }, " old"),
              ` ${chosen} ${value(each.was[chosen])}`,
            ),
            h(
              "span",
              { class: "plus" },
              "+",
              h("span", { class: "unseen" }, " new"),
              ` ${chosen} ${value(each.now[chosen])}`,
            ),
          ),
        ),
      ),
    );
  }

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
          cell: (row) => shown(row[group], typed.get(group)),
        })),
        ...results.map((each) => ({
          name: `r ${each.name}`,
          title: each.name,
          align: numeric(each.type) ? "right" : "left",
          class: "text",
          cell: (row) => shown(row[each.name], each.type),
        })),
        found.windowed && {
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
        total: Math.max(found.rows, rows.length),
        rowClass: (row) => (now - (fresh.get(nameOf(row)) ?? 0) < FRESH_MS ? "fresh" : ""),
        max: ROWS_MAX,
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
        { keyed: (row) => row[at.window_start] ?? "none", max: 100, what: "windows" },
      ),
    );
  }

  function changesTable(results, flow) {
    if (changes.length === 0) return empty("Nothing has changed yet", "The next commit that changes a row shows here.");
    const label = (row) => (flow?.groups ?? []).map((group) => value(row[group])).join(" · ");
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
    },
  };
}
