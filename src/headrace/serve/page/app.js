// The page: which part is shown, and what the server last said of everything. Owns the address (#/…), the connection
// and the frame; each part of pages/ owns what it asks for besides.

import { h, patch } from "./dom.js";
import { clock, count } from "./format.js";
import { follow, get } from "./live.js";
import { asNamed } from "./names.js";
import { to } from "./parts.js";
import { captures } from "./pages/captures.js";
import { consumers } from "./pages/consumers.js";
import { dead } from "./pages/dead.js";
import { flow, flows } from "./pages/flows.js";
import { overview as home } from "./pages/overview.js";
import { query } from "./pages/query.js";
import { search } from "./pages/search.js";
import { oneTable, tables } from "./pages/tables.js";
import { topic } from "./pages/topic.js";
import { topics } from "./pages/topics.js";
import { view } from "./pages/view.js";
import { views } from "./pages/views.js";

const HISTORY = 60;

const app = {
  /** What the server said last; null: nothing yet. */
  overview: null,
  /** Topic -> its last rates. */
  rates: new Map(),
  /** "connecting", "open", "waiting" (for the next try), "refused" (the token). */
  connection: "connecting",
  /** Why the server cannot say more just now. */
  trouble: null,
  page: null,
  draw,
  ask,
};

// -- where we are -------------------------------------------------------------------------------------

const PARTS = [
  ["", "Overview"],
  ["flows", "Flows"],
  ["topics", "Topics"],
  ["views", "Views"],
  ["tables", "Tables"],
  ["captures", "Captures"],
  ["readers", "Readers"],
  ["dead-letters", "Dead letters"],
  ["search", "Search"],
  ["query", "Query"],
];
const PAGES = {
  "": home,
  flows: [flows, flow],
  topics: [topics, topic],
  views: [views, view],
  tables: [tables, oneTable],
  captures,
  readers: consumers,
  "dead-letters": dead,
  search,
  query,
};

let shown = { part: null, path: null };
let menu = false; // of small screens: whether it is open

function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let pieces;
  try {
    pieces = path.split("/").map(decodeURIComponent);
  } catch {
    pieces = [""];
  }
  const [part, name] = pieces;
  app.page?.leave?.();
  const found = Object.hasOwn(PAGES, part) ? PAGES[part] : null;
  const make = Array.isArray(found) ? found[name ? 1 : 0] : found;
  const first = shown.path === null;
  shown = { part, path };
  menu = false;
  app.page = make
    ? make(app, name, new URLSearchParams(search))
    : {
        title: "Not found",
        render: () => [h("h1", null, "There is no such page"), h("p", null, h("a", { href: "#/" }, "To the overview"))],
      };
  document.title = `${app.page.title} · headrace`;
  patch(document.getElementById("main"));
  draw.now();
  scrollTo(0, 0);
  if (!first) document.getElementById("main").focus({ preventScroll: true });
}

// -- what is drawn --------------------------------------------------------------------------------------

const DRAW_MS = 100;
let asked = false;
let drawnAt = -DRAW_MS;

/** Draws soon: many reasons, one drawing. */
function draw() {
  if (asked) return;
  asked = true;
  setTimeout(() => requestAnimationFrame(draw.now), Math.max(0, drawnAt + DRAW_MS - performance.now()));
}

draw.now = () => {
  asked = false;
  drawnAt = performance.now();
  patch(document.getElementById("bar"), bar());
  patch(document.getElementById("notice"), notice());
  const main = document.getElementById("main");
  main.classList.toggle("stale", app.overview !== null && app.connection !== "open");
  main.setAttribute("aria-busy", String(app.overview === null));
  patch(main, app.overview === null ? waitingForFirst() : app.page.render(app.overview));
  patch(document.getElementById("foot"), foot());
};

const SAID = { connecting: "connecting", open: "live", waiting: "reconnecting", refused: "no access" };

function bar() {
  const letters = app.overview?.dead_letters.count ?? 0;
  return [
    h(
      "a",
      { class: "brand", href: "#/", "aria-label": "headrace, overview" },
      h(
        "svg",
        { viewBox: "0 0 24 24", "aria-hidden": "true" },
        [7, 12.5, 18].map((y) => h("path", { d: `M2 ${y}c3.300-3 6.700-3 10 0s6.700 3 10 0` })),
      ),
      h("span", null, "headrace"),
    ),
    h(
      "button",
      {
        class: "menu",
        key: "menu",
        type: "button",
        "aria-expanded": String(menu),
        "aria-controls": "parts",
        onclick: () => opens(!menu),
      },
      PARTS.find(([part]) => part === shown.part)?.[1] ?? "Parts",
      letters > 0 && h("span", { class: "bubble", "aria-hidden": "true" }, count(letters)),
      h("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, h("path", { d: "M2 4l4 4 4-4" })),
    ),
    h(
      "nav",
      {
        id: "parts",
        class: menu ? "open" : null,
        "aria-label": "Parts",
        onkeydown: (event) => {
          if (event.key !== "Escape" || !menu) return;
          opens(false);
          document.querySelector("button.menu").focus();
        },
      },
      PARTS.map(([part, title]) =>
        h(
          "a",
          { key: part, href: to(part), "aria-current": shown.part === part ? "page" : null },
          title,
          part === "dead-letters" &&
            letters > 0 &&
            h("span", { class: "bubble" }, h("span", { class: "unseen" }, ": "), count(letters)),
        ),
      ),
    ),
    h(
      "div",
      { class: "tools" },
      h(
        "span",
        { class: `pulse ${app.connection}`, role: "status" },
        h("i", { "aria-hidden": "true" }),
        SAID[app.connection],
      ),
      h(
        "button",
        {
          class: "icon",
          type: "button",
          "aria-label": headraceTheme.dark() ? "Use light colours" : "Use dark colours",
          onclick: toggled,
        },
        h(
          "svg",
          { viewBox: "0 0 20 20", "aria-hidden": "true" },
          h("circle", { cx: 10, cy: 10, r: 6.5 }),
          h("path", { d: "M10 3.500a6.500 6.500 0 0 1 0 13z" }),
        ),
      ),
    ),
  ];
}

function opens(it) {
  menu = it;
  draw();
}

function toggled() {
  headraceTheme.toggle();
  repainted();
}

function repainted() {
  document.dispatchEvent(new Event("headrace-theme"));
  draw();
}

function notice() {
  if (app.connection === "refused") return refused();
  if (app.connection !== "waiting")
    return (
      app.trouble &&
      h(
        "div",
        { class: "banner", key: "trouble" },
        h("p", null, h("strong", null, "The server cannot read its home just now. "), app.trouble),
      )
    );
  return h(
    "div",
    { class: "banner", key: "gone" },
    h(
      "p",
      null,
      h("strong", null, "The server does not answer. "),
      app.overview ? `What you see is as of ${clock(app.overview.at)}; ` : "",
      "the page tries again by itself.",
    ),
    h("button", { type: "button", onclick: () => feed.now() }, "Try now"),
  );
}

function refused() {
  const enter = (event) => {
    event.preventDefault();
    const typed = new FormData(event.target).get("token").trim();
    const token = /[?&]token=([^&#\s]+)/.exec(typed)?.[1];
    location.assign(`/?token=${token ?? encodeURIComponent(typed)}${location.hash}`); // and back to where one is
  };
  return h(
    "div",
    { class: "banner bad", key: "refused" },
    h(
      "div",
      null,
      h(
        "p",
        null,
        h("strong", null, "This link is not valid (any more). "),
        "Each start of the server prints a new one: look for the line “page: http://…” where headrace runs, and open that link, or paste it here.",
      ),
    ),
    h(
      "form",
      { onsubmit: enter },
      h(
        "label",
        null,
        h("span", { class: "unseen" }, "Link or token"),
        h("input", {
          name: "token",
          required: true,
          autocomplete: "off",
          spellcheck: "false",
          placeholder: "http://127.0.0.1:8321/?token=…",
        }),
      ),
      h("button", { type: "submit" }, "Open"),
    ),
  );
}

function waitingForFirst() {
  if (app.connection === "refused") return null;
  return h(
    "div",
    { class: "loading", key: "loading" },
    h("h1", { class: "unseen" }, app.page.title),
    h("p", null, "Reading the home…"),
  );
}

function foot() {
  const { overview } = app;
  return (
    overview &&
    h("p", null, `headrace ${overview.version} · ${overview.home} · times in UTC · as of ${clock(overview.at)}`)
  );
}

/** Asks before something that cannot be taken back; true: do it. */
function ask({ title, text, action }) {
  const dialog = document.getElementById("ask");
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no";
    patch(
      dialog,
      h("h2", { id: "ask-title" }, title),
      h("p", null, text),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action),
      ),
    );
    dialog.showModal();
  });
}

// -- what the server says ---------------------------------------------------------------------------------

function told(overview) {
  app.overview = asNamed(overview);
  app.trouble = null;
  for (const each of overview.topics) {
    const rates = app.rates.get(each.name) ?? [];
    app.rates.set(each.name, [...rates, each.rate ?? 0].slice(-HISTORY));
  }
  app.connection = "open";
  app.page?.told?.(app.overview);
  draw();
}

function troubled({ message }) {
  app.trouble = message;
  draw();
}

const feed = follow(
  () => "/api/overview/events",
  { overview: told, problem: troubled },
  (state) => {
    if (state === "open") {
      get("/api/overview").then(told, () => {});
      app.page?.again?.();
    } else {
      app.connection = state;
      draw();
    }
  },
);

addEventListener("hashchange", route);
headraceTheme.changed(repainted);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is ours
  document.getElementById("main").focus();
});
route();
