// A windowed view over event time, drawn by uPlot. Final windows are full marks, open ones hollow on a tinted ground
// (they may still change), and a correction is what it is: the old value stays as a hollow mark, joined to the new one.
// Dragging across the chart asks for that stretch of time.

import { tickLabels, timeTicks } from "./axis.js";
import { h } from "./dom.js";
import { compact, day, minute, value } from "./format.js";

export const SERIES_MAX = 5;
const HEIGHT = 280;
const TICK_PIXELS = 96;
const DRAG_PIXELS = 6; // less is a click

/**
 * What is drawn: {xs, series: [{name, ys, finals}], left}, of rows [{at, group, number, final}]. The groups with
 * the largest totals have a line each; `left` groups have none.
 */
export function seriesOf(rows) {
  const totals = new Map();
  const starts = new Set();
  for (const row of rows) {
    totals.set(row.group, (totals.get(row.group) ?? 0) + Math.abs(row.number ?? 0));
    starts.add(row.at);
  }
  const xs = [...starts].sort((a, b) => a - b);
  const at = new Map(xs.map((start, index) => [start, index]));
  const names = [...totals.keys()]
    .sort((a, b) => totals.get(b) - totals.get(a) || a.localeCompare(b))
    .slice(0, SERIES_MAX);
  names.sort((a, b) => a.localeCompare(b));
  const series = names.map((name) => ({ name, ys: xs.map(() => null), finals: xs.map(() => false) }));
  for (const row of rows) {
    const found = series[names.indexOf(row.group)];
    if (found) {
      found.ys[at.get(row.at)] = row.number;
      found.finals[at.get(row.at)] = row.final;
    }
  }
  return { xs, series, left: totals.size - names.length };
}

function colour(name) {
  const probe = document.getElementById("bar");
  const before = probe.style.color;
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = before;
  return found;
}

/**
 * The chart's element. `data`: of `seriesOf`, with `corrections` [{at, group, was, now}], `open` (where the first open
 * window is, or null), `unit` (what the numbers are), `connected` (whether lines go on where other groups have marks),
 * `lone` (milliseconds on either side of a single mark) and `zoom(from, to)`.
 */
export function chart(key, data, summary) {
  return h("div", {
    key,
    class: "chart",
    role: "img",
    "aria-label": summary,
    hook: { mount: (element) => mount(element, data), update: (element) => show(element, data), unmount },
  });
}

const charts = new WeakMap();

function mount(element, data) {
  const kept = {
    data,
    plot: null,
    names: null,
    watch: new ResizeObserver(() => kept.plot?.setSize({ width: element.clientWidth, height: HEIGHT })),
  };
  charts.set(element, kept);
  kept.watch.observe(element);
  kept.repaint = () => remake(element, kept);
  document.addEventListener("headrace-theme", kept.repaint);
}

function unmount(element) {
  const kept = charts.get(element);
  kept.watch.disconnect();
  kept.plot?.destroy();
  document.removeEventListener("headrace-theme", kept.repaint);
}

function show(element, data) {
  const kept = charts.get(element);
  kept.data = data;
  if (kept.plot === null || kept.names !== namesOf(data)) remake(element, kept);
  else kept.plot.setData(values(data));
}

const namesOf = (data) => JSON.stringify([data.unit, ...data.series.map((each) => each.name)]);
const values = (data) => [data.xs.map((at) => at / 1000), ...data.series.map((each) => each.ys)];

function remake(element, kept) {
  kept.plot?.destroy();
  kept.names = namesOf(kept.data);
  const ink = colour("muted");
  const line = colour("line");
  const ground = colour("surface");
  const tint = colour("tint");
  const coral = colour("coral");
  const lines = kept.data.series.map((_, at) => colour(`series-${at + 1}`));
  const axis = {
    stroke: ink,
    font: "12px Inter, system-ui, sans-serif",
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
  };

  function openGround(plot) {
    const { open, xs } = kept.data;
    if (open === null || xs.length === 0) return;
    const { left, top, width, height } = plot.bbox;
    const from = Math.max(left, plot.valToPos(open / 1000, "x", true) - 6 * devicePixelRatio);
    if (from > left + width) return;
    plot.ctx.fillStyle = tint;
    plot.ctx.fillRect(from, top, left + width - from, height);
  }

  function marks(plot, index) {
    const { xs, series } = kept.data;
    const { ys, finals } = series[index - 1];
    const pixel = devicePixelRatio;
    const crowded = xs.length > plot.bbox.width / (7 * pixel);
    plot.ctx.save();
    ys.forEach((y, at) => {
      const alone = ys[at - 1] == null && ys[at + 1] == null && !kept.data.connected; // no line leads to it
      if (y === null || (crowded && finals[at] && !alone)) return;
      plot.ctx.beginPath();
      plot.ctx.arc(plot.valToPos(xs[at] / 1000, "x", true), plot.valToPos(y, "y", true), 2.8 * pixel, 0, 2 * Math.PI);
      plot.ctx.fillStyle = finals[at] ? lines[index - 1] : ground;
      plot.ctx.strokeStyle = lines[index - 1];
      plot.ctx.lineWidth = 1.5 * pixel;
      plot.ctx.fill();
      plot.ctx.stroke();
    });
    plot.ctx.restore();
    return false; // uPlot draws none itself
  }

  function corrections(plot) {
    const pixel = devicePixelRatio;
    const { ctx } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(
      plot.bbox.left - 8 * pixel,
      plot.bbox.top - 8 * pixel,
      plot.bbox.width + 16 * pixel,
      plot.bbox.height + 16 * pixel,
    );
    ctx.clip();
    ctx.strokeStyle = coral;
    ctx.lineWidth = 2 * pixel;
    ctx.fillStyle = ground;
    const drawn = kept.data.corrections.filter((each) => kept.data.series.some(({ name }) => name === each.group));
    const at = (each, y) => [plot.valToPos(each.at / 1000, "x", true), plot.valToPos(y ?? 0, "y", true)];
    const dot = ([x, y], radius) => {
      ctx.beginPath();
      ctx.arc(x, y, radius * pixel, 0, 2 * Math.PI);
    };
    for (const each of drawn) {
      ctx.beginPath();
      ctx.moveTo(...at(each, each.was));
      ctx.lineTo(...at(each, each.now));
      ctx.stroke();
    }
    for (const each of drawn) {
      dot(at(each, each.was), 5); // what it was: hollow
      ctx.fill();
      ctx.stroke();
    }
    ctx.fillStyle = coral;
    const said = new Set(); // the newest come first: of a result that was corrected twice, one value is what it is
    for (const each of drawn) {
      const result = `${each.at} ${each.group}`;
      if (said.has(result)) continue;
      said.add(result);
      dot(at(each, each.now), 4);
      ctx.fill();
    }
    ctx.restore();
  }

  kept.plot = new uPlot(
    {
      width: element.clientWidth || 600,
      height: HEIGHT,
      padding: [12, 28, 0, 0],
      legend: { show: false },
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: DRAG_PIXELS },
        y: false,
        bind: { dblclick: () => null },
      },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: {
        x: { time: true, range: () => spread(kept.data) },
        y: { range: (_, low, high) => tall(kept.data, low, high) },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 48,
          splits: (plot, _, low, high) =>
            timeTicks(low * 1000, high * 1000, plot.width / TICK_PIXELS).map((at) => at / 1000),
          values: (_, ticks) => tickLabels(ticks.map((at) => Math.round(at * 1000))).map((lines) => lines.join("\n")),
        },
        {
          ...axis,
          size: 52,
          label: kept.data.unit,
          labelSize: 22,
          labelFont: "600 12px Inter, system-ui, sans-serif",
          values: (_, ticks) => ticks.map(compact),
        },
      ],
      series: [
        {},
        ...kept.data.series.map((each, at) => ({
          label: each.name,
          stroke: lines[at],
          width: 1.75,
          spanGaps: kept.data.connected,
          points: { show: marks },
        })),
      ],
      hooks: {
        drawClear: [openGround],
        draw: [corrections],
        setCursor: [(plot) => tell(element, plot, kept.data)],
        setSelect: [(plot) => selected(plot, kept.data)],
      },
    },
    values(kept.data),
    element,
  );
}

function selected(plot, data) {
  const { left, width } = plot.select;
  if (width < DRAG_PIXELS) return;
  const [from, to] = [left, left + width].map((x) => Math.round(plot.posToVal(x, "x") * 1000));
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  data.zoom(from, to);
}

/** The seconds from the first mark to the last; a lone one has its window's length on either side. */
function spread({ xs, lone }) {
  const [low, high] = [xs[0] / 1000, xs.at(-1) / 1000];
  const more = low === high ? lone / 1000 : (high - low) * 0.02;
  return [low - more, high + more];
}

function tall(data, low, high) {
  const old = data.corrections.map((each) => each.was ?? 0);
  const top = Math.max(high ?? 1, ...old);
  const bottom = Math.min(low ?? 0, 0, ...old);
  return [bottom, top + Math.max(1e-9, top - bottom) * 0.12 || 1];
}

/** What is under the pointer, for who looks: the numbers are in the table too. */
function tell(element, plot, data) {
  let tip = element.querySelector(".tip");
  if (tip === null) {
    tip = document.createElement("div");
    tip.className = "tip";
    element.append(tip);
  }
  const at = plot.cursor.idx;
  tip.hidden = at === null || at === undefined || plot.cursor.left < 0;
  if (tip.hidden) return;
  tip.replaceChildren(
    ...[
      `${day(data.xs[at])} ${minute(data.xs[at])}`,
      ...data.series
        .filter((each) => each.ys[at] !== null && each.ys[at] !== undefined)
        .map((each) => `${each.name || "all"}  ${value(each.ys[at])}${each.finals[at] ? "" : "  (open)"}`),
    ].map((text) => {
      const row = document.createElement("div");
      row.textContent = text;
      return row;
    }),
  );
  const x = plot.valToPos(plot.data[0][at], "x") + plot.bbox.left / devicePixelRatio;
  const right = x > element.clientWidth / 2;
  tip.style.left = right ? "" : `${x + 14}px`;
  tip.style.right = right ? `${element.clientWidth - x + 14}px` : "";
}
