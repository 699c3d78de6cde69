// The few parts every page is built of. Pure: descriptions for `dom.patch`.

import { h } from "./dom.js";
import { count, numeric, value } from "./format.js";

export const ROWS_MAX = 200;

export const link = (text, ...path) => h("a", { href: to(...path) }, text);
export const to = (...path) => `#/${path.map(encodeURIComponent).join("/")}`;

export function heading(title, about, ...aside) {
  return h(
    "div",
    { class: "heading", key: "heading" },
    h("div", null, h("h1", null, title), about && h("p", { class: "about" }, about)),
    aside.length > 0 && h("div", { class: "aside" }, aside),
  );
}

/** A part of a page with its own heading. */
export function panel(title, { key = title, about, aside, wide = false, tall = false } = {}, ...children) {
  return h(
    "section",
    { key, class: `panel${wide ? " wide" : ""}${tall ? " tall" : ""}`, "aria-label": title },
    h("div", { class: "panel-head" }, h("h2", null, title), aside && h("div", { class: "aside" }, aside)),
    about && h("p", { class: "about" }, about),
    children,
  );
}

export function figures(...pairs) {
  return h(
    "dl",
    { class: "figures", key: "figures" },
    pairs
      .filter(Boolean)
      .map(([name, shown, { note, tone, unit } = {}]) =>
        h(
          "div",
          { key: name, class: tone ? `tone-${tone}` : null },
          h("dt", null, name),
          h(
            "dd",
            null,
            h("span", { class: "figure" }, shown),
            unit && h("span", { class: "unit" }, unit),
            note && h("span", { class: "note" }, note),
          ),
        ),
      ),
  );
}

export const badge = (text, tone = "plain", title) => h("span", { class: `badge ${tone}`, title }, text);

const STATES = { running: "good", retrying: "warn", reconnecting: "warn", failed: "bad", stopped: "plain", unknown: "plain" };
export const state = (name) =>
  h("span", { class: `state ${STATES[name] ?? "plain"}` }, h("i", { "aria-hidden": "true" }), name);

export function empty(title, text, ...more) {
  return h(
    "div",
    { class: "empty", key: "empty" },
    h(
      "svg",
      { viewBox: "0 0 48 20", "aria-hidden": "true" },
      [4, 10, 16].map((y) => h("path", { d: `M2 ${y}c7.300-6 14.700-6 22 0s14.700 6 22 0` })),
    ),
    h("p", { class: "empty-title" }, title),
    text && h("p", null, text),
    more,
  );
}

export const commands = (...lines) =>
  h("pre", { class: "commands", tabindex: "0", "aria-label": "commands to type" }, h("code", null, lines.join("\n")));

/** Text as one word of a shell's command. */
export const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** Commands for what is shown, each with a button that copies it. `lines`: [[what it does, ...its words]]. */
export function copyable(home, lines) {
  return h(
    "ul",
    { class: "copyable", key: "commands" },
    lines.map(([about, ...words]) => {
      const end = words.includes("--") ? words.indexOf("--") : words.length; // options stand before that
      const said = ["headrace", ...words.slice(0, end), "--home", home, ...words.slice(end)];
      const text = said.map(shellWord).join(" ");
      return h(
        "li",
        { key: words.slice(0, 2).join(" ") },
        h("span", { class: "about" }, about),
        h("code", { tabindex: "0" }, text),
        h("button", { type: "button", "aria-label": `Copy the command: ${about}`, onclick: copies(text) }, "Copy"),
      );
    }),
  );
}

const copies = (text) => async (event) => {
  const button = event.currentTarget;
  const code = button.parentElement.querySelector("code");
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(code); // not allowed: one key is left to press
    said = "Selected";
  }
  button.dataset.said = said;
  setTimeout(() => delete button.dataset.said, 1500);
};

/** What a flow reads, with links. */
export const readsOf = (flow) =>
  flow.reads.map(({ kind, name }, at) => [
    at > 0 && ", ",
    kind === "view" ? [h("span", { class: "muted" }, "view "), link(name, "views", name)] : link(name, "topics", name),
  ]);

/** A home without topics: the two commands to begin with. */
export function firstSteps(home) {
  const there = `--home ${shellWord(home)}`;
  return empty(
    "No topics yet",
    "This home is empty. Make a topic and put a record in; the page shows it the moment it is there.",
    commands(
      `headrace topics create clicks "user string, page string, at timestamp" --key user --event-time at ${there}`,
      `echo '{"user": "ann", "page": "/", "at": "2026-01-01T09:00:05Z"}' | headrace produce clicks ${there}`,
    ),
  );
}

/**
 * A table. `columns`: [{name, title, align, cell(row), class}]; `keyed(row)` tells rows apart. At most ROWS_MAX are
 * shown; `total` is how many there are. With `choose(row)` a click chooses a row; its first cell is a button.
 */
export function table(
  caption,
  columns,
  rows,
  { keyed, total = rows.length, rowClass, showCaption = false, max = ROWS_MAX, what = "rows", choose, chosen } = {},
) {
  const shown = rows.slice(0, max);
  return h(
    "div",
    { key: `table ${caption}` },
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
      h(
        "table",
        null,
        h("caption", { class: showCaption ? null : "unseen" }, caption),
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            columns.map((column) =>
              h("th", { key: column.name, scope: "col", class: classes(column) }, column.title ?? column.name),
            ),
          ),
        ),
        h(
          "tbody",
          null,
          shown.map((row, index) =>
            h(
              "tr",
              {
                key: keyed ? keyed(row) : index,
                class: joined(rowClass?.(row), choose && "choosable", chosen?.(row) && "chosen"),
                onclick: choose && (() => getSelection().isCollapsed && choose(row)),
              },
              columns.map((column, at) =>
                h(
                  at === 0 && column.head !== false ? "th" : "td",
                  { key: column.name, scope: at === 0 && column.head !== false ? "row" : null, class: classes(column) },
                  choose && at === 0 ? chooser(column.cell(row), chosen?.(row)) : column.cell(row),
                ),
              ),
            ),
          ),
        ),
      ),
    ),
    total > shown.length && h("p", { class: "bounded" }, `Showing ${count(shown.length)} of ${count(total)} ${what}.`),
  );
}

/** For keyboards; a click on it is one on its row. */
const chooser = (text, pressed) =>
  h("button", { type: "button", class: "name", "aria-pressed": String(Boolean(pressed)) }, text);

const classes = (column) => joined(column.align === "right" && "num", column.class);
const joined = (...names) => names.filter(Boolean).join(" ") || null;

/** A table of rows as the server sends them: arrays, with named and typed columns. */
export function dataTable(caption, columns, rows, options = {}) {
  return table(
    caption,
    columns.map((column, at) => ({
      name: column.name,
      align: numeric(column.type) ? "right" : "left",
      head: false,
      class: /^(binary|string|struct|array|map)/.test(column.type) ? "text" : null,
      cell: (row) => shown(row[at], column.type),
    })),
    rows,
    options,
  );
}

export function shown(it, type) {
  if (it === null || it === undefined) return h("span", { class: "null" }, "null");
  const text = value(it, type);
  if (typeof it === "number" && !Number.isInteger(it)) return h("span", { title: String(it) }, text);
  return text.length > 400 ? h("span", { title: `${count(text.length)} characters` }, `${text.slice(0, 400)}…`) : text;
}

/** A line of the last rates, to see at a glance whether there is water in the channel. */
export function spark(numbers, label) {
  const width = 88;
  const height = 22;
  const top = Math.max(...numbers, 1e-9);
  const step = width / Math.max(1, numbers.length - 1);
  const points = numbers.map(
    (number, at) => `${(at * step).toFixed(1)} ${(height - 2 - (number / top) * (height - 5)).toFixed(1)}`,
  );
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    points.length > 1 && h("path", { class: "area", d: `M0 ${height} L${points.join(" L")} L${width} ${height} Z` }),
    points.length > 1 && h("path", { class: "line", d: `M${points.join(" L")}` }),
  );
}

/** Whether a flow counts what becomes of its records: one that only copies them does not. */
export const hasLedger = (flow) => Object.values(flow.ledger ?? {}).some((number) => number > 0);

/** The flows that do, those that lost the most first. */
export const counting = (flows) => flows.filter(hasLedger).sort((a, b) => b.ledger.dropped - a.ledger.dropped);

/** What became of the records: a bar of parts, and the numbers in words. What was lost is the loudest. */
export function ledgerBar(ledger) {
  const parts = [
    ["on_time", "on time", "In its window, before that closed"],
    ["corrected", "corrected", "Came after its window closed, and is counted: the result was corrected"],
    ["dropped", ledger?.dropped ? "dropped: lost" : "dropped", "Came too late: in no result"],
    ["untimed", "untimed", "Has no event time: in no window"],
  ].map(([name, title, about]) => ({ name, title, about, number: ledger?.[name] ?? 0 }));
  const all = parts.reduce((sum, part) => sum + part.number, 0);
  return h(
    "div",
    { class: "ledger", key: "ledger" },
    h(
      "div",
      { class: "bar", "aria-hidden": "true" },
      parts
        .filter((part) => part.number > 0)
        .map((part) => h("i", { key: part.name, class: part.name, style: { "flex-grow": String(part.number / all) } })),
    ),
    h(
      "dl",
      null,
      parts.map((part) =>
        h(
          "div",
          { key: part.name, class: part.number ? `some-${part.name}` : "none", title: part.about },
          h("dt", null, h("i", { class: part.name, "aria-hidden": "true" }), part.title),
          h("dd", null, count(part.number)),
        ),
      ),
    ),
  );
}

/** How many records were lost: loud where there are some. */
export const lost = (number) =>
  number ? badge(count(number), "bad", "Records that came too late: in no result") : "0";

/** A box for one value of a column; `typed` has what is not chosen yet, `only` what is, and `choose(name, text)` does. */
export const onlyBox = (name, typed, only, choose) =>
  h(
    "label",
    { class: "only", key: `only ${name}` },
    `only ${name}`,
    h("input", {
      type: "search",
      value: typed[name] ?? only[name] ?? "",
      placeholder: "all",
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => (typed[name] = event.target.value),
      onchange: (event) => choose(name, event.target.value),
    }),
  );

/** A box that narrows a long list. */
export const filter = (label, text, act) =>
  h(
    "label",
    { class: "filter" },
    h("span", { class: "unseen" }, label),
    h("input", {
      type: "search",
      placeholder: label,
      value: text,
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => act(event.target.value),
    }),
  );
