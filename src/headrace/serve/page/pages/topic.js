// One topic: partitions, readers, settings, and the records that came last.

import { h } from "../dom.js";
import { bytes, clock, count, duration, plural, rate } from "../format.js";
import { isReader } from "../graph.js";
import { hitsPanel } from "../hits.js";
import { calmly, get } from "../live.js";
import { DAY_SECONDS, loss, timeToLoss } from "../loss.js";
import { copyable, empty, figures, heading, link, panel, shown, spark, table } from "../parts.js";
import { areQueries, asksQueries, stored, textsOf } from "../stored.js";

const RECORDS_EACH = 20;
const RECORDS_MAX = 50;
const PARTITIONS_READ = 12;

export function topic(app, name) {
  let about = null;
  let records = [];
  let problem = null;
  let seen = "";
  const path = `/api/topics/${encodeURIComponent(name)}`;
  const queries = stored(app, name);
  const hasQueries = (all) => areQueries(all.views.find((each) => each.name === name));
  let commits = null; // of the flow that keeps the queries

  const exists = () => Boolean(app.overview?.topics.some((each) => each.name === name));

  const load = calmly(async () => {
    if (!exists()) return;
    if (hasQueries(app.overview)) queries.load();
    try {
      about = await get(path);
      const partitions = (about.partitions ?? []).slice(0, PARTITIONS_READ);
      const each = await Promise.all(
        partitions
          .filter((part) => part.next > part.earliest)
          .map((part) =>
            get(
              `${path}/records?partition=${part.partition}&offset=${Math.max(part.earliest, part.next - RECORDS_EACH)}&limit=${RECORDS_EACH}`,
            ),
          ),
      );
      records = each
        .flatMap((answer) => answer.records)
        .sort((a, b) => Date.parse(b.arrived_at) - Date.parse(a.arrived_at) || b.offset - a.offset)
        .slice(0, RECORDS_MAX);
      problem = null;
    } catch (error) {
      problem = error;
    }
    app.draw();
  });

  function told(all) {
    const now = JSON.stringify(all.topics.find((each) => each.name === name)?.partitions.map((part) => part.next));
    if (now !== seen) load();
    seen = now;
    const kept = all.flows.find((flow) => flow.view === name)?.commits;
    if (hasQueries(all) && kept !== commits) queries.load();
    commits = kept;
  }

  function render(all) {
    const found = all.topics.find((each) => each.name === name);
    if (!found)
      return [
        heading(name),
        empty("No such topic", "It may have been deleted.", h("p", null, link("All topics", "topics"))),
      ];
    const search = all.flows.find((flow) => flow.target === name && asksQueries(flow) !== null);
    const partial = found.partitions.length > PARTITIONS_READ;
    return [
      heading(
        name,
        [
          plural(found.partitions.length, "partition"),
          found.event_time ? [", event time in ", h("code", null, found.event_time)] : ", without event time",
        ],
        spark(app.rates.get(name) ?? [], `rate now ${rate(found.rate)}`),
      ),
      figures(
        ["Coming in", rate(found.rate)],
        ["Records", count(found.records)],
        ["Size", bytes(found.bytes)],
        ["Kept", found.retention ?? "for ever", { note: found.cleanup === "compact" ? "compacted" : null }],
        [
          "Time to loss",
          duration(timeToLoss(all, name)),
          { note: "for its slowest reader", tone: (timeToLoss(all, name) ?? Infinity) < DAY_SECONDS ? "warn" : null },
        ],
      ),
      hasQueries(all) && queries.render(all),
      search && records.length > 0 && latestHits(search, all.at),
      panel(
        "Latest records",
        {
          key: "records",
          wide: true,
          aside: partial ? `of ${PARTITIONS_READ} of ${count(found.partitions.length)} partitions` : null,
        },
        problem && h("p", { class: "error", role: "alert" }, problem.message),
        records.length === 0 && problem === null
          ? empty("No records", about === null ? "Reading…" : "Nothing has been appended, or retention took it.")
          : recordsTable(records, name, all.at),
      ),
      panel("Partitions", { key: "partitions" }, partitionTable(found, all)),
      panel("Readers", { key: "readers" }, readers(all, name)),
      about && panel("Settings", { key: "settings", wide: true }, settings(about)),
      panel("In a terminal", { key: "commands", wide: true }, copyable(all.home, commandsOf(found))),
    ];
  }

  function latestHits(search, today) {
    const hits = records.map((record) => ({ at: record.arrived_at, row: record.value, record }));
    return hitsPanel(hits, textsOf(search), today, ({ record }) => `${record.partition} ${record.offset}`);
  }

  load();
  return {
    title: name,
    render,
    told,
    again: load,
    leave() {
      load.close();
      queries.leave();
    },
  };
}

const commandsOf = ({ name, internal }) => [
  ["Settings, partitions, disk use", "topics", "show", name],
  ["Its records, as they come", "consume", name, "--start", "latest", "--follow"],
  ["The first ten records, with their offsets", "consume", name, "--max", "10", "--meta"],
  ...(internal ? [] : [["Records from standard input", "produce", name]]),
];

function recordsTable(records, name, today) {
  const fields = [...new Set(records.flatMap((record) => Object.keys(record.value ?? {})))].slice(0, 24);
  const types = (it) => (typeof it === "number" ? "right" : "left");
  const first = records[0]?.value ?? {};
  return table(
    `Latest records of ${name}`,
    [
      { name: "_at", title: "Arrived", cell: (record) => clock(record.arrived_at, today) },
      {
        name: "_place",
        title: "Offset",
        align: "right",
        cell: (record) => `${record.partition} / ${count(record.offset)}`,
      },
      ...fields.map((field) => ({
        name: `f ${field}`,
        title: field,
        align: types(first[field]),
        class: "text",
        cell: (record) =>
          shown(record.value?.[field], /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(record.value?.[field]) ? "timestamp" : ""),
      })),
    ],
    records,
    { keyed: (record) => `${record.partition} ${record.offset}`, what: "records" },
  );
}

function partitionTable(topic, all) {
  return table(
    `Partitions of ${topic.name}`,
    [
      { name: "partition", title: "Partition", cell: (part) => part.partition },
      { name: "earliest", title: "Earliest", align: "right", cell: (part) => count(part.earliest) },
      { name: "next", title: "Next offset", align: "right", cell: (part) => count(part.next) },
      { name: "rate", title: "Rate", align: "right", cell: (part) => rate(part.rate) },
      { name: "progress", title: "Progress", align: "right", cell: (part) => clock(part.progress, all.at) },
    ],
    topic.partitions,
    { keyed: (part) => part.partition, what: "partitions" },
  );
}

function readers(all, name) {
  const flows = all.flows
    .filter((flow) => flow.reads.some((read) => read.kind === "topic" && read.name === name))
    .map((flow) => ({
      kind: "flow",
      name: link(flow.name, "flows", flow.name),
      id: flow.name,
      lag: flow.lag,
      loss: null,
    }));
  const groups = all.groups
    .filter((group) => group.topic === name && isReader(group))
    .map((group) => ({
      kind: "group",
      name: group.group,
      id: group.group,
      lag: group.lag,
      loss: group.time_to_loss_seconds,
    }));
  const queues = all.queues
    .filter((queue) => queue.topic === name)
    .map((queue) => ({ kind: "queue", name: queue.queue, id: queue.queue, lag: queue.ready, loss: null }));
  const rows = [...flows, ...groups, ...queues];
  if (rows.length === 0) return empty("Nobody reads it", "No flow, group or queue does.");
  return table(
    `Readers of ${name}`,
    [
      { name: "reader", title: "Reader", cell: (row) => row.name },
      { name: "kind", title: "Kind", cell: (row) => row.kind },
      { name: "lag", title: "Waiting", align: "right", cell: (row) => count(row.lag) },
      { name: "loss", title: "Time to loss", align: "right", cell: (row) => loss(row.loss) },
    ],
    rows,
    { keyed: (row) => `${row.kind} ${row.id}`, what: "readers" },
  );
}

function settings(about) {
  const known = [
    ["Schema", about.schema],
    ["Key", Array.isArray(about.key) ? about.key.join(", ") : about.key],
    ["Event time", about.event_time],
    ["Cleanup", about.cleanup],
    ["Durability", about.durability],
  ];
  return h(
    "dl",
    { class: "facts" },
    known
      .filter(([, said]) => said !== undefined && said !== null && said !== "")
      .map(([key, said]) =>
        h(
          "div",
          { key },
          h("dt", null, key),
          h("dd", null, h("code", null, typeof said === "string" ? said : JSON.stringify(said))),
        ),
      ),
  );
}
