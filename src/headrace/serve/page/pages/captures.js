// Captures of databases: how far each is, what its database keeps for it, and the tables that were stopped.

import { h } from "../dom.js";
import { ago, bytes, clock, count, duration } from "../format.js";
import { loss } from "../loss.js";
import { badge, commands, copyable, empty, figures, heading, link, panel, state, table } from "../parts.js";

const WAY = "headrace capture add shop 'postgresql://app@db/shop?password=env:SHOP_PASSWORD'";

export function captures() {
  return {
    title: "Captures",
    render(all) {
      if (all.captures.length === 0)
        return [
          heading("Captures"),
          empty(
            "No captures yet",
            "A capture makes topics of the tables of another database: what they have, then what is done to them.",
            commands(WAY, "headrace capture run shop"),
          ),
        ];
      return [
        heading("Captures", "The tables of other databases, as topics."),
        all.captures.map((each) => one(each, all)),
      ];
    },
  };
}

function one(it, all) {
  const now = Date.parse(all.at);
  const stopped = it.tables.filter((each) => each.command);
  return panel(
    it.name,
    { key: it.name, wide: true, about: it.database || "It has not run yet.", aside: [state(it.state)] },
    it.error && h("p", { class: "error", role: "alert" }, it.error),
    figures(
      ["Captured to", clock(it.committed_at, all.at), { note: it.committed_at ? ago(it.committed_at, now) : "nothing yet" }],
      it.lag_ms !== null && ["Took", duration(it.lag_ms / 1000), { note: "from commit to log" }],
      it.lag_bytes !== null && ["Lag", bytes(it.lag_bytes), { note: measured(it, now) }],
      it.slot_bytes !== null && ["Kept for it", bytes(it.slot_bytes), { note: it.wal_status, tone: tone(it) }],
      it.safe_bytes !== null && ["Room", bytes(it.safe_bytes), { note: "until the slot is lost" }],
      it.time_to_loss_seconds !== null && ["Time to loss", loss(it.time_to_loss_seconds), { note: "if nothing is read" }],
    ),
    stopped.length > 0 &&
      h(
        "section",
        { class: "stopped", "aria-label": "Stopped tables" },
        stopped.map((each) =>
          h(
            "div",
            { key: each.table },
            h("p", null, badge("stopped", "bad"), " ", h("code", null, each.table), `: ${each.why}`),
            h("p", { class: "about" }, "The others go on. When it is right that it goes on with what it has now:"),
          ),
        ),
        copyable(
          all.home,
          stopped.map((each) => [`Read ${each.table} again`, ...each.command.split(" ").slice(1)]),
        ),
      ),
    it.tables.length > 0 &&
      table(
        `Tables of ${it.name}`,
        [
          { name: "table", title: "Table", cell: (row) => row.table },
          { name: "state", title: "State", cell: (row) => (row.command ? badge(row.state, "bad") : row.state) },
          { name: "topic", title: "Topic", cell: (row) => topicOf(row, all) },
          { name: "copied", title: "Copied", align: "right", cell: (row) => count(row.copied) },
          { name: "epoch", title: "Read again", align: "right", cell: (row) => count(row.epoch) },
        ],
        it.tables,
        { keyed: (row) => row.table, what: "tables" },
      ),
  );
}

const topicOf = (row, all) =>
  all.topics.some((each) => each.name === row.topic) ? link(row.topic, "topics", row.topic) : row.topic;
const measured = (it, now) => (it.measured_at ? `measured ${ago(it.measured_at, now)}` : "not measured");
const tone = (it) => (["unreserved", "lost"].includes(it.wal_status) ? "bad" : null);
