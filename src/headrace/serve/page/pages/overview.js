// The first thing one sees: is it running, does the water flow, what needs attention.

import { h } from "../dom.js";
import { ago, compact, count, plural, rate } from "../format.js";
import { graph } from "../graph.js";
import { counting, figures, firstSteps, heading, ledgerBar, link, panel, state } from "../parts.js";
import { isOpen, progress } from "../progress.js";

const FLOWS_MAX = 6;
const PROBLEMS_MAX = 20;

export function overview(app) {
  const narrow = matchMedia("(max-width: 700px)");
  narrow.addEventListener("change", app.draw);

  function render(all) {
    const topics = all.topics.filter((topic) => !topic.internal);
    if (topics.length === 0 && all.flows.length === 0) return [heading("Overview", all.home), firstSteps(all.home)];
    const running = all.flows.filter((flow) => flow.state === "running").length;
    const into = topics.reduce((sum, topic) => sum + (topic.rate ?? 0), 0);
    const lag = all.flows.reduce((sum, flow) => sum + (flow.lag ?? 0), 0);
    const dropped = all.flows.reduce((sum, flow) => sum + (flow.ledger?.dropped ?? 0), 0);
    const open = all.flows.filter(isOpen);
    const counted = counting(all.flows);
    return [
      heading(all.runner.app || "Overview", about(all), state(all.runner.state)),
      figures(
        ["Coming in", rate(into), { note: plural(topics.length, "topic") }],
        ["Records", compact(topics.reduce((sum, topic) => sum + topic.records, 0)), { note: "in the log" }],
        [
          "Flows",
          `${count(running)}`,
          {
            unit: ` / ${count(all.flows.length)}`,
            note: "running",
            tone: all.flows.some((flow) => flow.state === "failed") ? "bad" : null,
          },
        ],
        ["Lag", count(lag), { note: "records not folded in yet" }],
        dropped > 0 && ["Dropped", count(dropped), { note: "records lost: too late", tone: "bad" }],
        [
          "Dead letters",
          count(all.dead_letters.count),
          {
            note: all.dead_letters.count ? link("wait for a decision", "dead-letters") : "none",
            tone: all.dead_letters.count ? "warn" : null,
          },
        ],
      ),
      problems(all),
      panel("The flow of records", { key: "graph", wide: true }, graph(all, { down: narrow.matches })),
      open.length > 0 &&
        panel(
          "Why is this window still open?",
          {
            key: "progress",
            about:
              "A window closes when every partition has moved past its end and the grace. Each line is a partition’s progress in event time.",
          },
          open
            .slice(0, FLOWS_MAX)
            .map((flow) =>
              h("div", { key: flow.name, class: "cell" }, h("h3", null, named(flow)), progress(flow, all.at)),
            ),
          open.length > FLOWS_MAX && more(open.length),
        ),
      counted.length > 0 &&
        panel(
          "What became of every record",
          {
            key: "ledgers",
            wide: open.length === 0,
            about: "Rows in = on time + corrected + dropped + untimed: a straggler is never lost in silence.",
          },
          h(
            "div",
            { class: open.length ? "stack" : "cells" },
            counted
              .slice(0, FLOWS_MAX)
              .map((flow) =>
                h("div", { key: flow.name, class: "cell" }, h("h3", null, named(flow)), ledgerBar(flow.ledger)),
              ),
          ),
          counted.length > FLOWS_MAX && more(counted.length),
        ),
    ];
  }
  return { title: "Overview", render, leave: () => narrow.removeEventListener("change", app.draw) };
}

const named = (flow) => (flow.view ? link(flow.view, "views", flow.view) : link(flow.name, "flows", flow.name));
const more = (all) =>
  h("p", { class: "bounded" }, `Showing ${FLOWS_MAX} of ${count(all)}; `, link("all flows", "flows"));

function about(all) {
  const { runner } = all;
  const now = Date.parse(all.at);
  if (runner.state === "running")
    return `runs as process ${runner.pid} on ${runner.host}, started ${ago(runner.started_at, now)}`;
  if (runner.state === "stopped") return "nothing runs: start it with headrace run";
  return runner.host ? `runs, or not, on ${runner.host}: this machine cannot tell` : "no app has run here yet";
}

function problems(all) {
  const said = all.problems;
  if (said.length === 0) return null;
  return h(
    "section",
    { class: "problems", key: "problems", "aria-label": "Needs attention" },
    h("h2", null, plural(said.length, "thing needs", "things need"), " attention"),
    h(
      "ul",
      null,
      said.slice(0, PROBLEMS_MAX).map((text) => h("li", { key: text }, text)),
    ),
    said.length > PROBLEMS_MAX && h("p", { class: "bounded" }, `Showing ${PROBLEMS_MAX} of ${count(said.length)}.`),
  );
}
