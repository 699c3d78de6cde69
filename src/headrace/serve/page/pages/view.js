// One view: a live table, and over event time a chart in which a correction is seen as one. The rows are asked for again
// when something changed; the stream of changes tells what did, and what it was before.

import { corrects, paired } from "../changes.js";
import { chart, seriesOf, SERIES_MAX } from "../chart.js";
import { h } from "../dom.js";
import { ago, clock, count, day, iso, millis, minute, numeric, plural, value } from "../format.js";
import { calmly, follow, get } from "../live.js";
import { badge, empty, figures, heading, ledgerBar, link, panel, ROWS_MAX, shown, state, table } from "../parts.js";
import { progress } from "../progress.js";
import { spec } from "./flows.js";

const ROWS_ASKED = 1000;
const CHANGES_MAX = 60;
const CORRECTIONS_MAX = 50;
const FRESH_MS = 1500;
const TAIL = ["_status", "_corrections", "_updated_at"];
const WINDOW = ["window_start", "window_end"];

export function view(app, name) {
  const path = `/api/views/${encodeURIComponent(name)}`;
  let answer = null; // columns, rows, total
  let ledger = null;
  let problem = null;
  let changes = [];
  let corrections = [];
  let position = null;
  let column = null;
  let commits = null;
  let numbered = 0;
  let skipping = false;
  const pair = paired();
  const fresh = new Map(); // result -> when it changed

  const exists = () => Boolean(app.overview?.views.some((each) => each.name === name));

  const load = calmly(async () => {
    if (!exists()) return;
    try {
      [answer, ledger] = await Promise.all([get(`${path}/rows?limit=${ROWS_ASKED}`), get(`${path}/ledger`)]);
      problem = null;
    } catch (error) {
      problem = error;
    }
    app.draw();
  });

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
    const timed = found.windowed && flow !== undefined;
    const rows =
      answer === null
        ? []
        : answer.rows.map((row) => Object.fromEntries(answer.columns.map((each, at) => [each.name, row[at]])));
    const results = found.columns.filter((each) => ![...WINDOW, ...TAIL, ...(flow?.groups ?? [])].includes(each.name));
    return [
      heading(
        name,
        flow && [
          flow.window ? [h("code", null, flow.window), " of "] : "of ",
          flow.sources.map((source, at) => [at > 0 && ", ", link(source, "topics", source)]),
        ],
        flow && state(flow.state),
      ),
      figures(
        ["Rows", count(found.rows)],
        timed && [
          "Complete up to",
          flow.frontier ? clock(Math.floor(millis(flow.frontier) / 1000) * 1000) : "–",
          { note: flow.frontier ? day(millis(flow.frontier)) : null },
        ],
        flow && [
          "Commits",
          count(flow.commits),
          { note: flow.committed_at ? `last ${ago(flow.committed_at, Date.parse(all.at))}` : null },
        ],
        timed && [
          "Corrected",
          count(flow.ledger?.corrected),
          { note: "records", tone: flow.ledger?.corrected ? "coral" : null },
        ],
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
      timed && panel("Why is this window still open?", { key: "progress" }, progress(flow)),
      timed && panelOfLedger(flow),
      panel(
        "Rows",
        { key: "rows", wide: true, about: found.windowed ? "Newest windows first." : null },
        answer !== null && rows.length === 0
          ? empty("No rows yet", "The first commit of its flow brings some.")
          : rowsTable(rows, found, results, flow),
      ),
      panel(
        "Recent changes",
        { key: "changes", tall: !timed, about: "Since this page was opened: − a row that went, + one that came." },
        changesTable(results, flow),
      ),
      flow && !timed && panelOfLedger(flow),
      flow && panel("What it is", { key: "spec" }, spec(flow)),
    ];
  }

  const panelOfLedger = (flow) =>
    panel(
      "What became of every record",
      { key: "ledger", about: "The straggler ledger: rows in = on time + corrected + dropped + untimed." },
      ledgerBar(flow.ledger),
      flow.window && ledgerTable(),
    );

  // -- the chart -------------------------------------------------------------------------------------

  function panelOfChart(rows, results, flow) {
    const numbers = results.filter((each) => numeric(each.type));
    if (numbers.length === 0) return null;
    const chosen = numbers.find((each) => each.name === column)?.name ?? numbers[0].name;
    const label = (row) => (flow?.groups ?? []).map((group) => value(row[group])).join(" · ");
    const points = rows.map((row) => ({
      start: millis(row.window_start),
      group: label(row),
      number: row[chosen] === null ? null : Number(row[chosen]),
      final: row._status === "final",
    }));
    const open = points.filter((point) => !point.final).map((point) => point.start);
    const drawn = corrections.map((each) => ({
      start: millis(each.now.window_start),
      group: label(each.now),
      was: Number(each.was[chosen] ?? 0),
      now: Number(each.now[chosen] ?? 0),
    }));
    const data = {
      ...seriesOf(points),
      corrections: drawn.filter((each) => each.was !== each.now),
      open: open.length ? Math.min(...open) : null,
    };
    const choose =
      numbers.length > 1 &&
      h(
        "label",
        { class: "choose" },
        "showing ",
        h(
          "select",
          {
            value: chosen,
            onchange: (event) => {
              column = event.target.value;
              app.draw();
            },
          },
          numbers.map((each) =>
            h("option", { key: each.name, value: each.name, selected: each.name === chosen }, each.name),
          ),
        ),
      );
    return panel(
      "Over event time",
      { key: "chart", wide: true, aside: choose },
      points.length === 0
        ? empty("Nothing to draw yet", null)
        : chart(`${name} ${chosen}`, data, summary(data, chosen)),
      h(
        "ul",
        { class: "legend", key: "legend" },
        data.series.map((each, at) =>
          h(
            "li",
            { key: each.name },
            h("i", { class: `swatch s${at + 1}`, "aria-hidden": "true" }),
            each.name || "all",
          ),
        ),
        data.left > 0 &&
          h(
            "li",
            { key: "left", class: "muted" },
            `the ${SERIES_MAX} largest of ${count(data.left + data.series.length)}`,
          ),
        data.open !== null &&
          h("li", { key: "open" }, h("i", { class: "swatch open", "aria-hidden": "true" }), "open: may still grow"),
        h(
          "li",
          { key: "correction" },
          h("i", { class: "swatch correction", "aria-hidden": "true" }),
          "corrected: hollow what it was, full what it is",
        ),
      ),
      correctionList(chosen, label, rows),
    );
  }

  function summary(data, chosen) {
    const last = data.xs.length - 1;
    const latest = data.series
      .map((each) => `${each.name || "all"} ${each.ys[last] === null ? "none" : value(each.ys[last])}`)
      .join(", ");
    return `Line chart of ${chosen} over ${plural(data.xs.length, "window")}; the newest, ${minute(data.xs[last])}: ${latest}. ${plural(corrections.length, "correction")} since the page was opened. The table below has all numbers.`;
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
              `${minute(millis(each.now.window_start))}${label(each.now) ? ` ${label(each.now)}` : ""}`,
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
    const today = (app.overview?.at ?? "").slice(0, 10) === new Date(start).toISOString().slice(0, 10);
    return h(
      "span",
      { title: `${iso(start)} to ${iso(end)}` },
      !today && h("span", { class: "muted" }, `${day(start)} `),
      `${minute(start)}–${minute(end)}`,
    );
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
            h("strong", null, row.window_start ? `${minute(millis(row.window_start))} ` : "", label(row)),
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
