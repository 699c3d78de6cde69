// All topics: the log. What is in each, how fast it grows, how long it is kept.

import { h } from "../dom.js";
import { bytes, count, rate } from "../format.js";
import { loss, timeToLoss } from "../loss.js";
import { filter, firstSteps, heading, link, panel, spark, table } from "../parts.js";

export function topics(app) {
  let text = "";
  let internal = false;
  return {
    title: "Topics",
    render(all) {
      const hidden = all.topics.filter((topic) => topic.internal).length;
      const rows = all.topics.filter((topic) => (internal || !topic.internal) && topic.name.includes(text));
      if (all.topics.length === hidden && !internal) {
        return [heading("Topics"), firstSteps(all.home)];
      }
      const change = (act) => (value) => {
        act(value);
        app.draw();
      };
      return [
        heading(
          "Topics",
          "The log: everything else is derived from it.",
          filter(
            "Find a topic",
            text,
            change((value) => (text = value)),
          ),
        ),
        panel(
          "All topics",
          {
            wide: true,
            aside:
              hidden > 0 &&
              h(
                "label",
                { class: "check" },
                h("input", {
                  type: "checkbox",
                  checked: internal,
                  onchange: change((event) => (internal = event.target.checked)),
                }),
                "headrace’s own",
              ),
          },
          table(
            "All topics",
            [
              { name: "topic", title: "Topic", cell: (topic) => link(topic.name, "topics", topic.name) },
              { name: "rate", title: "Rate", align: "right", cell: (topic) => rate(topic.rate) },
              {
                name: "spark",
                title: "Last minute",
                class: "spare",
                cell: (topic) => spark(app.rates.get(topic.name) ?? [], `rate now ${rate(topic.rate)}`),
              },
              { name: "records", title: "Records", align: "right", cell: (topic) => count(topic.records) },
              { name: "bytes", title: "Size", align: "right", cell: (topic) => bytes(topic.bytes) },
              {
                name: "partitions",
                title: "Partitions",
                align: "right",
                cell: (topic) => count(topic.partitions.length),
              },
              { name: "retention", title: "Kept", cell: (topic) => topic.retention ?? "for ever" },
              { name: "cleanup", title: "Cleanup", class: "spare", cell: (topic) => topic.cleanup },
              { name: "loss", title: "Time to loss", cell: (topic) => loss(timeToLoss(all, topic.name)) },
            ],
            rows,
            { keyed: (topic) => topic.name, what: "topics" },
          ),
          rows.length === 0 && h("p", { class: "none-found" }, "No topic has that in its name."),
        ),
      ];
    },
  };
}
