// Where an axis of event time has its ticks, and what stands there: the time, and below it the day with its year where
// that is another one than at the tick before. Pure. Times are milliseconds, UTC.

import { day, minute } from "./format.js";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((number) => number * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((number) => number * MINUTE),
  ...[1, 2, 3, 6, 12].map((number) => number * HOUR),
  ...[1, 2, 7, 14].map((number) => number * DAY),
];
const MONTHS = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12_000];
const MONTH = 30.4 * DAY;

/** At most about `most` times within [low, high], at round distances. */
export function timeTicks(low, high, most) {
  const least = (high - low) / Math.max(1, most);
  const step = STEPS.find((size) => size >= least);
  if (step === undefined)
    return monthTicks(low, high, MONTHS.find((months) => months * MONTH >= least) ?? MONTHS.at(-1));
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  return ticks;
}

function monthTicks(low, high, months) {
  const first = new Date(low);
  let number = Math.ceil((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
  const ticks = [];
  for (; ; number += months) {
    const at = new Date(0).setUTCFullYear(Math.floor(number / 12), number % 12, 1);
    if (at > high) return ticks;
    if (at >= low) ticks.push(at);
  }
}

/** Of each tick two lines: [time, day] or [day, year]; the second is empty where it is that of the tick before. */
export function tickLabels(ticks) {
  const whole = ticks.every((at) => at % DAY === 0);
  const years = whole && ticks.length > 1 && ticks.every((at) => new Date(at).toISOString().slice(5, 10) === "01-01");
  let before = null;
  return ticks.map((at) => {
    const date = new Date(at);
    const year = String(date.getUTCFullYear());
    if (years) return [year, ""];
    const [upper, lower] = whole ? [day(at, { year: false }), year] : [minute(at), day(at, { year: true })];
    const said = lower === before ? "" : lower;
    before = lower;
    return [upper, said];
  });
}
