// Who reads the log besides flows: groups (partitions to members) and queues (messages to consumers).

import { h } from "../dom.js";
import { count, rate } from "../format.js";
import { hidden, isReader } from "../graph.js";
import { loss } from "../loss.js";
import { badge, commands, empty, heading, link, panel, table } from "../parts.js";

export function consumers() {
  return {
    title: "Readers",
    render(all) {
      const groups = all.groups.filter(isReader);
      const queues = all.queues.filter((queue) => !hidden(queue.queue));
      return [
        heading(
          "Readers",
          "Who reads the log besides flows. A group shares partitions among its members; a queue hands out messages one by one.",
        ),
        panel(
          "Groups",
          { wide: true },
          groups.length === 0
            ? empty(
                "No groups",
                "A group remembers how far it has read.",
                commands("headrace consume clicks --group billing"),
              )
            : table(
                "Groups",
                [
                  { name: "group", title: "Group", cell: (row) => row.group },
                  { name: "topic", title: "Topic", cell: (row) => link(row.topic, "topics", row.topic) },
                  { name: "members", title: "Members", align: "right", cell: (row) => count(row.members) },
                  { name: "lag", title: "Lag", align: "right", cell: (row) => count(row.lag) },
                  { name: "rate", title: "Rate", align: "right", cell: (row) => rate(row.rate) },
                  {
                    name: "loss",
                    title: "Time to loss",
                    align: "right",
                    cell: (row) => loss(row.time_to_loss_seconds),
                  },
                ],
                groups,
                { keyed: (row) => `${row.topic} ${row.group}`, what: "groups" },
              ),
        ),
        panel(
          "Queues",
          { wide: true },
          queues.length === 0
            ? empty(
                "No queues",
                "A queue gives each message to one consumer, again if that one fails, and buries it after some tries.",
                commands("headrace work shop:send clicks mailer"),
              )
            : table(
                "Queues",
                [
                  { name: "queue", title: "Queue", cell: (row) => row.queue },
                  { name: "topic", title: "Topic", cell: (row) => link(row.topic, "topics", row.topic) },
                  { name: "ready", title: "Ready", align: "right", cell: (row) => count(row.ready) },
                  { name: "in_flight", title: "In flight", align: "right", cell: (row) => count(row.in_flight) },
                  { name: "redelivered", title: "Redelivered", align: "right", cell: (row) => count(row.redelivered) },
                  {
                    name: "dead",
                    title: "Dead",
                    align: "right",
                    cell: (row) =>
                      row.dead ? h("a", { href: "#/dead-letters" }, badge(count(row.dead), "warn")) : "0",
                  },
                ],
                queues,
                { keyed: (row) => `${row.topic} ${row.queue}`, what: "queues" },
              ),
        ),
      ];
    },
  };
}
