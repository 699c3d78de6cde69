// Flows: what each does, how it is, what it waits for, what became of its records.

import { h } from "../dom.js";
import { ago, clock, count, duration, plural, rate } from "../format.js";
import { keptPanel, meets, operatorFact, waitingKeys } from "../joins.js";
import {
  badge,
  commands,
  counting,
  empty,
  figures,
  hasLedger,
  heading,
  ledgerBar,
  link,
  lost,
  panel,
  readsOf,
  ROWS_MAX,
  state,
  table,
} from "../parts.js";
import { isOpen, progress } from "../progress.js";
import { waiting } from "../waiting.js";

const columns = (now) => [
  { name: "flow", title: "Flow", cell: (flow) => link(flow.name, "flows", flow.name) },
  { name: "state", title: "State", cell: (flow) => state(flow.state) },
  { name: "reads", title: "Reads", cell: readsOf },
  { name: "rate", title: "Rate", align: "right", cell: (flow) => rate(flow.rate) },
  { name: "lag", title: "Lag", align: "right", cell: (flow) => count(flow.lag) },
  { name: "batch", title: "Batch", align: "right", cell: (flow) => duration(flow.batch_seconds) },
  { name: "jobs", title: "Spark jobs", align: "right", cell: (flow) => count(flow.spark_jobs) },
  { name: "commits", title: "Commits", align: "right", cell: (flow) => count(flow.commits) },
  {
    name: "committed",
    title: "Last commit",
    align: "right",
    cell: (flow) => (flow.committed_at ? ago(flow.committed_at, now) : "–"),
  },
  { name: "restarts", title: "Restarts", align: "right", cell: (flow) => count(flow.restarts) },
  { name: "dropped", title: "Dropped", align: "right", cell: (flow) => lost(flow.ledger?.dropped) },
  { name: "dead", title: "Dead letters", align: "right", cell: (flow) => count(flow.dead) },
];

export function flows() {
  return {
    title: "Flows",
    render(all) {
      if (all.flows.length === 0) return [heading("Flows"), noFlows()];
      const counted = counting(all.flows);
      return [
        heading("Flows", "Each reads topics and keeps one view, or writes one topic."),
        panel(
          "All flows",
          { wide: true },
          table("All flows", columns(Date.parse(all.at)), all.flows, { keyed: (flow) => flow.name, what: "flows" }),
        ),
        all.flows
          .filter((flow) => flow.error)
          .slice(0, ROWS_MAX)
          .map((flow) => failure(flow)),
        counted.length > 0 &&
          panel(
            "What became of every record",
            {
              key: "ledgers",
              wide: true,
              about: "Rows in = on time + corrected + dropped + untimed. A straggler is never lost in silence.",
            },
            h(
              "div",
              { class: "cells" },
              counted
                .slice(0, 12)
                .map((flow) =>
                  h(
                    "div",
                    { class: "cell", key: flow.name },
                    h("h3", null, link(flow.name, "flows", flow.name)),
                    ledgerBar(flow.ledger),
                  ),
                ),
            ),
          ),
      ];
    },
  };
}

export function noFlows() {
  return empty(
    "No flows yet",
    "A flow is a few lines of Python: a stream, a window, an aggregate, a view. This makes a project with one and runs it.",
    commands("headrace new shop", "headrace run shop/app.py"),
  );
}

// What else there is to say of its jobs. Spark Connect does not tell tasks: then there are none.
const inSpark = (flow) =>
  [
    flow.spark_tasks && plural(flow.spark_tasks, "task"),
    flow.spark_jobs && duration(flow.spark_seconds),
    flow.driver_batches && `${plural(flow.driver_batches, "batch", "batches")} without a job`,
  ]
    .filter(Boolean)
    .join(", ");

const failure = (flow) =>
  h(
    "section",
    { class: "problems", key: `error ${flow.name}`, "aria-label": `Error of ${flow.name}` },
    h("h2", null, link(flow.name, "flows", flow.name), flow.state === "retrying" ? " is trying again" : " has stopped"),
    h("pre", { class: "error-text", tabindex: "0" }, flow.error),
  );

export function flow(app, name) {
  const waits = waiting(app, name); // of a pattern
  const isPattern = (found) => meets(found) === "match" && found.view !== null;
  let commits = null;

  function told(all) {
    const found = all.flows.find((each) => each.name === name);
    if (isPattern(found) && found.commits !== commits) waits.load();
    commits = found?.commits;
  }

  if (app.overview !== null) told(app.overview);
  return {
    title: name,
    told,
    leave: waits.leave,
    render(all) {
      const found = all.flows.find((each) => each.name === name);
      if (!found)
        return [
          heading(name),
          empty(
            "No such flow",
            "It may have been dropped, or never run in this home.",
            h("p", null, link("All flows", "flows")),
          ),
        ];
      const now = Date.parse(all.at);
      return [
        heading(
          name,
          h(
            "span",
            null,
            "reads ",
            readsOf(found),
            found.view ? [" and keeps the view ", link(found.view, "views", found.view)] : null,
            found.target ? [" and writes the topic ", link(found.target, "topics", found.target)] : null,
          ),
          state(found.state),
        ),
        found.error && failure(found),
        figures(
          ["Rate", rate(found.rate)],
          ["Lag", count(found.lag), { note: "records" }],
          ["Batch", duration(found.batch_seconds)],
          [
            "Commits",
            count(found.commits),
            { note: found.committed_at ? `last ${ago(found.committed_at, now)}` : null },
          ],
          found.spark_jobs !== null && ["Spark jobs", count(found.spark_jobs), { note: inSpark(found) }],
          ["Restarts", count(found.restarts)],
          found.window && [
            "Dropped",
            count(found.ledger?.dropped),
            { note: "records too late", tone: found.ledger?.dropped ? "bad" : null },
          ],
          ["Dead letters", count(found.dead), { tone: found.dead ? "warn" : null }],
        ),
        isOpen(found) && panel("Why is this window still open?", { key: "progress" }, progress(found, all.at)),
        hasLedger(found) && panel("What became of every record", { key: "ledger" }, ledgerBar(found.ledger)),
        panel("What it does", { key: "spec" }, spec(found)),
        panel(
          "Where it is",
          {
            key: "places",
            about: `Frontier ${clock(found.frontier, all.at)}: event time up to which everything is in.`,
          },
          places(found, all),
        ),
        isPattern(found) && waits.render(all, waitingKeys(found)),
        keptPanel(found, all.at),
      ];
    },
  };
}

export function spec(flow) {
  return h(
    "dl",
    { class: "facts" },
    [
      ["App", flow.app],
      operatorFact(flow),
      (flow.window || !meets(flow)) && ["Window", flow.window ? h("code", null, flow.window) : "none"],
      flow.window && ["Grace", flow.grace_seconds ? duration(flow.grace_seconds) : "none"],
      flow.window && [
        "Stragglers",
        flow.within_seconds ? `corrected for ${duration(flow.within_seconds)}, then dropped` : "dropped, and counted",
      ],
      !(meets(flow) && !flow.window) && ["Grouped by", flow.groups?.length ? flow.groups.map((each) => h("code", { key: each }, each)) : "nothing"],
      !(meets(flow) && !flow.window) && [
        "Aggregates",
        Object.keys(flow.aggregates ?? {}).length
          ? Object.entries(flow.aggregates).map(([name, text]) =>
              h("div", { key: name }, h("code", null, `${name} = ${text}`)),
            )
          : "none: it passes records on",
      ],
    ]
      .filter(Boolean)
      .map(([name, shown]) => h("div", { key: name }, h("dt", null, name), h("dd", null, shown))),
  );
}

export function places(flow, all) {
  const rows = Object.entries(flow.places ?? {}).flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([number, place]) => ({ topic, number, ...place })),
  );
  return table(
    `Where ${flow.name} is in each partition`,
    [
      { name: "partition", title: "Partition", cell: (row) => `${row.topic} ${row.number}` },
      { name: "offset", title: "Next offset", align: "right", cell: (row) => count(row.offset) },
      { name: "lag", title: "Lag", align: "right", cell: (row) => count(row.lag) },
      {
        name: "progress",
        title: "Progress",
        align: "right",
        cell: (row) => [
          clock(row.progress, all.at),
          row.idle
            ? [" ", badge("quiet", "plain", "Nothing came for a while: it counts as moving with the clock")]
            : null,
        ],
      },
    ],
    rows,
    { keyed: (row) => `${row.topic} ${row.number}`, what: "partitions" },
  );
}
