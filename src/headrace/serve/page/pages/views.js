// All views.

import { h } from "../dom.js";
import { ago, clock, count } from "../format.js";
import { empty, filter, heading, link, lost, panel, state, table } from "../parts.js";
import { noFlows } from "./flows.js";

export function views(app) {
  let text = "";
  return {
    title: "Views",
    render(all) {
      if (all.views.length === 0)
        return [
          heading("Views"),
          all.flows.length ? empty("No views", "The flows here write to topics only.") : noFlows(),
        ];
      const makers = new Map(all.flows.map((flow) => [flow.view, flow]));
      const now = Date.parse(all.at);
      const find = (typed) => {
        text = typed;
        app.draw();
      };
      return [
        heading(
          "Views",
          "Tables kept up to date by flows: query them from any process.",
          filter("Find a view", text, find),
        ),
        panel(
          "All views",
          { wide: true },
          table(
            "All views",
            [
              { name: "view", title: "View", cell: (view) => link(view.name, "views", view.name) },
              { name: "state", title: "State", cell: (view) => state(makers.get(view.name)?.state ?? "unknown") },
              { name: "rows", title: "Rows", align: "right", cell: (view) => count(view.rows) },
              {
                name: "window",
                title: "Window",
                cell: (view) => (makers.get(view.name)?.window ? h("code", null, makers.get(view.name).window) : "–"),
              },
              {
                name: "frontier",
                title: "Complete up to",
                align: "right",
                cell: (view) => clock(makers.get(view.name)?.frontier, all.at),
              },
              {
                name: "dropped",
                title: "Dropped",
                align: "right",
                cell: (view) => lost(makers.get(view.name)?.ledger?.dropped),
              },
              {
                name: "corrected",
                title: "Corrected",
                align: "right",
                cell: (view) => count(makers.get(view.name)?.ledger?.corrected),
              },
              {
                name: "commit",
                title: "Last commit",
                align: "right",
                cell: (view) =>
                  makers.get(view.name)?.committed_at ? ago(makers.get(view.name).committed_at, now) : "–",
              },
            ],
            all.views.filter((view) => view.name.includes(text)),
            { keyed: (view) => view.name, what: "views" },
          ),
        ),
      ];
    },
  };
}
