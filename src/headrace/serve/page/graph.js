// The flow graph: topics, flows, views, and who else reads. dagre says where, and on a phone an outline does; the edges
// are channels, and water moves in them while records do. The layout is made again only when the shape changes, never
// because a number did.

import { h } from "./dom.js";
import { compact, count, duration, plural, rate } from "./format.js";
import { meetingTitle } from "./joins.js";
import { to } from "./parts.js";
import { Graph, layout } from "./vendor/dagre.esm.js";

const NODES_MAX = 80;
const ALONE_MAX = 6;
const SHRINK = 0.75; // narrower than that it scrolls
const WIDE = [196, 56];
const SMALL = [156, 48];
const SIZE = { topic: WIDE, flow: WIDE, view: WIDE, table: WIDE, group: SMALL, queue: SMALL };
const OUTLINE = { width: 340, height: 52, gap: 12, step: 20 };
const NAME_PIXELS = 8.2;
const FACT_PIXELS = 6.6;

/** The graph of an overview: {nodes: Map, edges, left}; `left`: how many nodes were left out. */
export function graphOf(overview) {
  const nodes = new Map();
  const edges = [];
  const add = (kind, name, facts) => {
    const id = `${kind}:${name}`;
    if (!nodes.has(id)) nodes.set(id, { id, kind, name, ...facts });
    return id;
  };
  const topics = new Map(overview.topics.map((topic) => [topic.name, topic]));
  const views = new Map(overview.views.map((view) => [view.name, view]));
  /** A table is one node: its changes, what keeps its rows, and the rows. */
  const tableNode = (name) => {
    const { rows, table } = views.get(name);
    const flow = overview.flows.find((each) => each.view === name);
    const late = flow?.lag ? ` · lag ${count(flow.lag)}` : "";
    return add("table", name, {
      href: to("tables", name),
      fact: `${plural(rows, "row")}${table.versions === null ? "" : ` · ${plural(table.versions, "version")}`}${late}`,
      said: flow?.state,
      tone: { failed: "bad", retrying: "warn" }[flow?.state],
      late: Boolean(flow?.lag),
    });
  };
  const isTable = (name) => Boolean(views.get(name)?.table);
  const topic = (name) => {
    if (isTable(name)) return tableNode(name);
    const found = topics.get(name);
    return add("topic", name, {
      href: to("topics", name),
      fact: found ? `${rate(found.rate)} · ${compact(found.records)} record${found.records === 1 ? "" : "s"}` : "",
    });
  };
  const viewNode = (name) => {
    if (isTable(name)) return tableNode(name);
    const found = views.get(name);
    return add("view", name, { href: to("views", name), fact: found ? plural(found.rows, "row") : "" });
  };
  for (const flow of overview.flows) {
    const late = flow.lag ?? 0;
    if (isTable(flow.view)) {
      tableNode(flow.view);
      continue;
    }
    const id = add("flow", flow.name, {
      href: to("flows", flow.name),
      fact: flow.window || meetingTitle(flow) || "no window",
      said: flow.state,
      tone: { failed: "bad", retrying: "warn", running: "good" }[flow.state],
    });
    for (const { kind, name: source } of flow.reads) {
      const lag = Object.values(flow.places?.[source] ?? {}).reduce((sum, place) => sum + (place.lag ?? 0), 0);
      edges.push({
        from: kind === "view" ? viewNode(source) : topic(source),
        to: id,
        rate: flow.rate ?? 0,
        label: rate(flow.rate),
        lag: flow.places?.[source] ? lag : late,
      });
    }
    if (flow.view) {
      edges.push({
        from: id,
        to: viewNode(flow.view),
        rate: flow.rate ?? 0,
        label: flow.batch_seconds ? duration(flow.batch_seconds) : "",
      });
    }
    if (flow.target)
      edges.push({
        from: id,
        to: topic(flow.target),
        rate: topics.get(flow.target)?.rate ?? 0,
        label: rate(topics.get(flow.target)?.rate),
      });
  }
  for (const each of overview.topics) if (!each.internal) topic(each.name);
  for (const group of overview.groups) {
    if (!isReader(group) || hidden(group.topic)) continue;
    edges.push({
      from: topic(group.topic),
      to: add("group", `${group.topic} ${group.group}`, {
        title: group.group,
        href: to("readers"),
        fact: `group · ${plural(group.members, "member")}`,
      }),
      rate: group.rate ?? 0,
      label: group.rate ? rate(group.rate) : "",
      lag: group.lag,
    });
  }
  for (const queue of overview.queues) {
    if (hidden(queue.queue) || hidden(queue.topic)) continue;
    edges.push({
      from: topic(queue.topic),
      to: add("queue", `${queue.topic} ${queue.queue}`, {
        title: queue.queue,
        href: to("readers"),
        fact: `queue · ${count(queue.in_flight)} in flight`,
      }),
      rate: 0,
      label: `${count(queue.ready)} ready`,
    });
  }
  const joined = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const alone = [...nodes.values()].filter((node) => !joined.has(node.id)).slice(0, ALONE_MAX);
  const shown = [...nodes.values()].filter((node) => joined.has(node.id)).slice(0, NODES_MAX);
  const kept = new Map([...shown, ...alone].map((node) => [node.id, node]));
  return {
    nodes: kept,
    edges: edges.filter((edge) => kept.has(edge.from) && kept.has(edge.to)),
    left: nodes.size - kept.size,
  };
}

export const hidden = (name) => name.startsWith("__");

/** A flow is a group too, one without members. */
export const isReader = (group) => !hidden(group.group) && group.members !== null;

let last = { shape: null, placed: null };

function place(nodes, edges, down) {
  const shape = JSON.stringify([down, [...nodes.keys()], edges.map((edge) => [edge.from, edge.to])]);
  if (last.shape === shape) return last.placed;
  last = { shape, placed: down ? outline(nodes, edges) : layered(nodes, edges) };
  return last.placed;
}

/** Each node below the first that leads to it, and further in. */
function outline(nodes, edges) {
  const { width, height, gap, step } = OUTLINE;
  const placed = new Map();
  const visit = (id, depth) => {
    if (placed.has(id)) return;
    const wide = width - depth * step;
    placed.set(id, { width: wide, height, x: width - wide / 2, y: 4 + placed.size * (height + gap) + height / 2 });
    for (const edge of edges) if (edge.from === id) visit(edge.to, depth + 1);
  };
  const led = new Set(edges.map((edge) => edge.to));
  for (const id of nodes.keys()) if (!led.has(id)) visit(id, 0);
  for (const id of nodes.keys()) visit(id, 0); // of a circle
  return { node: (id) => placed.get(id), graph: () => ({ width, height: 8 + placed.size * (height + gap) }) };
}

function layered(nodes, edges) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 24, ranksep: 128, marginx: 6, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes.values()) {
    const [width, height] = SIZE[node.kind];
    graph.setNode(node.id, { width, height });
  }
  for (const edge of edges) graph.setEdge(edge.from, edge.to, {});
  layout(graph);
  return graph;
}

export function graph(overview, { down = false } = {}) {
  const { nodes, edges, left } = graphOf(overview);
  const placed = place(nodes, edges, down);
  const { width, height } = placed.graph();
  return h(
    "div",
    { key: "graph" },
    h(
      "div",
      { class: "scroll graph-scroll" },
      h(
        "svg",
        {
          class: "graph",
          viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
          style: { width: `clamp(${Math.ceil(width * SHRINK)}px, 100%, ${Math.ceil(width)}px)` },
          role: "group",
          "aria-label": "Flow graph",
        },
        edges.map((edge) => drawnEdge(edge, placed, down)),
        !down && edges.map((edge) => edgeLabels(edge, placed.node(edge.to))),
        [...nodes.values()].map((node) => drawnNode(down ? told(node, edges) : node, placed.node(node.id))),
      ),
    ),
    left > 0 &&
      h(
        "p",
        { class: "bounded" },
        `Showing ${count(nodes.size)} of ${count(nodes.size + left)} topics, flows, views and readers.`,
      ),
  );
}

/** A node with what else stands beside the channel to it. */
function told(node, edges) {
  const late = edges.filter((edge) => edge.to === node.id && edge.lag > 0).reduce((sum, edge) => sum + edge.lag, 0);
  return late ? { ...node, late: true, fact: `${node.fact} · lag ${count(late)}` } : node;
}

function drawnEdge(edge, placed, down) {
  const from = placed.node(edge.from);
  const into = placed.node(edge.to);
  const path = channel(from, into, down);
  const wide = 2 + Math.min(2.5, Math.log10(1 + (edge.rate ?? 0)));
  const speed = edge.rate > 0 ? Math.max(0.6, 3 - Math.log10(1 + edge.rate)) : 0;
  return h(
    "g",
    { class: "edge", key: `${edge.from} ${edge.to}`, "aria-hidden": "true" },
    h("path", { class: "bed", d: path, "stroke-width": wide + 4 }),
    h("path", {
      class: speed ? "water" : "water still",
      d: path,
      "stroke-width": wide,
      style: { "animation-duration": `${speed.toFixed(1)}s` },
    }),
  );
}

/** Beside a channel's end, above all channels. */
function edgeLabels(edge, into) {
  const lag = edge.lag === undefined || edge.lag === null ? null : `lag ${count(edge.lag)}`;
  const at = { x: into.x - into.width / 2 - 14, "text-anchor": "end" };
  return h(
    "g",
    { class: `edge${edge.lag > 0 ? " late" : ""}`, key: `labels ${edge.from} ${edge.to}`, "aria-hidden": "true" },
    edge.label && h("text", { key: "rate", ...at, y: into.y - 10 }, edge.label),
    lag && h("text", { key: "lag", class: "lag", ...at, y: into.y + 20 }, lag),
  );
}

function channel(from, into, down) {
  if (down) {
    const x = from.x - from.width / 2 + OUTLINE.step / 2;
    const turn = OUTLINE.step / 2;
    return `M${x} ${from.y + from.height / 2} V${into.y - turn} q0 ${turn} ${turn} ${turn} H${into.x - into.width / 2}`;
  }
  const [x0, x1] = [from.x + from.width / 2, into.x - into.width / 2];
  const middle = (x0 + x1) / 2;
  return `M${x0} ${from.y} C${middle} ${from.y} ${middle} ${into.y} ${x1} ${into.y}`;
}

function drawnNode(node, at) {
  const { width, height } = at;
  const name = node.title ?? node.name;
  const room = width - (node.kind === "group" || node.kind === "queue" ? 24 : 52);
  const radius = node.kind === "flow" ? height / 2 : 8;
  return h(
    "a",
    {
      key: node.id,
      href: node.href,
      class: `node ${node.kind}${node.tone ? ` ${node.tone}` : ""}${node.late ? " late" : ""}`,
      "aria-label": `${node.kind} ${name}: ${[node.said, node.fact].filter(Boolean).join(", ")}`,
      transform: `translate(${at.x - width / 2} ${at.y - height / 2})`,
    },
    h("title", null, name),
    h("rect", { class: "box", width, height, rx: radius }),
    (node.kind === "view" || (node.kind === "table" && !node.tone)) &&
      h("path", { key: "rows", class: "rows", d: `M${width - 28} ${height / 2 - 7}h14m-14 5h14m-14 5h14m-14 5h14` }),
    node.kind === "table" &&
      !node.tone &&
      h("path", { key: "column", class: "rows", d: `M${width - 24} ${height / 2 - 7}v15` }),
    node.kind === "topic" &&
      h("path", {
        key: "wave",
        class: "wave",
        d: `M${width - 30} ${height / 2 - 5}c3-3 6-3 9 0s6 3 9 0m-18 6c3-3 6-3 9 0s6 3 9 0m-18 6c3-3 6-3 9 0s6 3 9 0`,
      }),
    node.tone && h("circle", { key: "dot", class: "dot", cx: width - 20, cy: height / 2, r: 4 }),
    h("text", { class: "name", x: 16, y: height / 2 - 4 }, clipped(name, room / NAME_PIXELS)),
    h("text", { class: "fact", x: 16, y: height / 2 + 14 }, clipped(node.fact, room / FACT_PIXELS)),
  );
}

const clipped = (text, letters) => (text.length > letters ? `${text.slice(0, Math.floor(letters) - 1)}…` : text);
