// Joins and tables: what kind of flow it is, and what it keeps of each input. Pure: descriptions for `dom.patch`.

import { h } from "./dom.js";
import { bytes, clock, count } from "./format.js";
import { sourceName } from "./names.js";
import { link, panel, table } from "./parts.js";

const KINDS = { enrich: "enrich", join: "join in an interval", table_join: "join of tables", match: "pattern", table: "table" };

/** "enrich", "join", "match", "table_join" or "table"; null for any other flow. */
export function meets(flow) {
  const kind = /^\w+/.exec(flow?.operator ?? "")?.[0];
  return kind in KINDS ? kind : null;
}

export const meetingTitle = (flow) => KINDS[meets(flow)] ?? null;

/** Whether each row of its view says when it is final. */
export const finalByRow = (flow) => ["enrich", "join", "match"].includes(meets(flow));

/**
 * "sales/0/0000000000000017" as people read it: sales/0/17; and '["ann"]|[7]', two keys, as ann + 7. Of a row of an
 * outer join that found nothing, the side that is there.
 */
export function shortId(text) {
  const id = String(text).replace(/^\||\|$/g, "");
  if (id.startsWith("[")) return id.replace(/["\\[\]]/g, "").replaceAll("|", " + ");
  const sides = id.replace(/[()]/g, "").split("|");
  const parts = sides.filter((side) => side).map((side) => side.split(/\/+/));
  const shown = parts.map(([topic, ...place]) => [sourceName(topic), ...place.map((each) => Number(each))].join("/"));
  return shown.join(" + ");
}

const HELD = {
  facts: "the table is read past them",
  versions: "for ever, or as long as the table keeps them",
  windows: "as long as the view has them",
  events: "no match to come may need them",
  partials: "they match, or their time is over",
  history: "for ever, or as long as the table keeps them",
};

/** Rows and bytes that a flow keeps of each input, and which partition holds them; null where it keeps none. */
export function keptPanel(flow, today) {
  if (!flow?.kept?.length) return null;
  return panel(
    "What it keeps",
    { key: "kept", wide: true, about: "Of each input, what records still to come may need. Counted with each commit." },
    table(
      `What ${flow.name} keeps`,
      [
        { name: "side", title: "Kept", cell: (row) => row.side },
        {
          name: "of",
          title: "Of",
          class: "of",
          cell: (row) => row.topics.map((name, at) => [at > 0 && ", ", link(name, partOf(flow, name), name)]),
        },
        { name: "rows", title: "Rows", align: "right", cell: (row) => count(row.rows) },
        { name: "bytes", title: "Size, about", align: "right", cell: (row) => bytes(row.bytes) },
        { name: "held", title: "Until", class: "held", cell: (row) => until(flow, row, today) },
      ],
      flow.kept,
      { keyed: (row) => `${row.side} ${row.topics}`, what: "inputs" },
    ),
  );
}

const partOf = (flow, name) => (flow.reads.find((read) => read.name === name)?.kind === "view" ? "views" : "topics");

function until(flow, { side, rows, held_by: holder }, today) {
  if (meets(flow) === "table_join" && side !== "history") return "they are deleted";
  if (holder === null) return HELD[side] ?? (rows ? "–" : "nothing is kept");
  if (holder.partition === null) return `a flow writes ${holder.topic}: how far it is, is not known`;
  const where = `${holder.topic} ${holder.partition}`;
  return holder.progress === null
    ? `${where} makes progress: it has none yet`
    : `${where} moves on: it is at ${clock(holder.progress, today)}`;
}

/** A step as it is written, in a line of the facts. */
export const operatorFact = (flow) => flow.operator && ["Step", h("code", null, flow.operator)];

/** How many keys of a pattern wait, as its last commit counted them. */
export const waitingKeys = (flow) => flow.kept.find((each) => each.side === "partials")?.rows ?? null;
