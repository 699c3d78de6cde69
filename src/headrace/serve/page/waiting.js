// What each key of a pattern waits for: its partial match. Asks for the newest, or for one key.

import { h } from "./dom.js";
import { clock, count, numeric } from "./format.js";
import { calmly, get } from "./live.js";
import { empty, onlyBox, panel, shown, table } from "./parts.js";

const GAP_MS = 2000;

/** `waiting(app, view)`: `load()` asks again; `render(all)` is the panel. */
export function waiting(app, view) {
  let only = {}; // column of the key -> the value to look for
  const typed = {}; // column of the key -> what is not chosen yet
  let answer = null;
  let problem = null;
  let asking = 0;

  async function read() {
    const mine = (asking += 1);
    try {
      const found = await get(`/api/views/${encodeURIComponent(view)}/partials?${new URLSearchParams(only)}`);
      if (mine !== asking) return; // another key was chosen meanwhile
      [answer, problem] = [found, null];
    } catch (error) {
      if (mine === asking) problem = error;
    }
    app.draw();
  }
  const load = calmly(read, GAP_MS);

  function narrow(name, text) {
    const { [name]: _, ...others } = only;
    only = text ? { ...others, [name]: text } : others;
    delete typed[name];
    read();
  }

  const render = (all, waits) =>
    panel(
      "What keys wait for",
      {
        key: "waiting",
        wide: true,
        about: "Of each key the events that may still become a match, the newest first.",
        aside: answer?.key.map((name) => onlyBox(name, typed, only, narrow)),
      },
      problem && h("p", { class: "error", role: "alert" }, problem.message),
      answer && (answer.rows.length === 0 ? nothing(Object.keys(only).length > 0) : rowsTable(answer, all.at, only, waits)),
    );

  const rowsTable = ({ key, columns, rows, truncated }, today, only, waits) => {
    const at = Object.fromEntries(columns.map((each, index) => [each.name, index]));
    const own = (name, cell, more) => ({ name: `own ${name}`, title: name, cell: (row) => cell(row), ...more });
    return table(
      `What keys of ${view} wait for`,
      [
        ...key.map((name) => ({
          name: `key ${name}`,
          title: name,
          align: numeric(columns[at[name]].type) ? "right" : "left",
          class: "text",
          cell: (row) => shown(row[at[name]], columns[at[name]].type),
        })),
        own("Since", (row) => clock(row[at.match_start], today)),
        own("Last event", (row) => clock(row[at.last_at], today)),
        own("Events", (row) => count(row[at.rows]), { align: "right" }),
        own("Waits for", (row) => h("code", null, row[at.waits_for])),
        own("Until", (row) => clock(row[at.until], today)),
      ],
      rows,
      {
        keyed: (row) => JSON.stringify(key.map((name) => row[at[name]])),
        what: "keys",
        total: truncated && Object.keys(only).length === 0 ? Math.max(waits ?? 0, rows.length + 1) : rows.length,
      },
    );
  };

  return { load, render, leave: load.close };
}

const nothing = (chosen) =>
  chosen
    ? empty("This key waits for nothing", "None of its events may still become a part of a match.")
    : empty(
        "No key waits",
        "Every event is in a match, or can be in none any more. The next event that may begin a match shows its key here.",
      );
