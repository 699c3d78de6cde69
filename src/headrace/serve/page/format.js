// How numbers, times and values are written. Pure. Times are UTC, as headrace's are.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const some = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const four = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));
export const compact = (number) => (Math.abs(number) < 10_000 ? digits(number) : short.format(number));

/** Whole numbers in full; others with two decimals, or with four digits where they are less than ten. */
export function digits(number) {
  const size = Math.abs(number);
  if (size >= 1e15) return String(Number(number.toPrecision(4)));
  if (size >= 10 || Number.isInteger(number)) return hundredths.format(number);
  return size < 1e-4 ? String(Number(number.toPrecision(4))) : four.format(number);
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond > 0 && perSecond < 0.05) return "<0.1/s";
  return `${perSecond < 100 ? some.format(perSecond) : compact(Math.round(perSecond))}/s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; number >= 1000 && at < units.length - 1; at += 1) number /= 1000;
  return `${at && number < 100 ? some.format(number) : whole.format(number)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  for (const [size, unit, less, name] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ]) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / less);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
    }
  }
  return `${some.format(seconds)} s`;
}

export const millis = (text) => (text === null || text === undefined ? null : Date.parse(text));

/** 09:01:40, with tenths only where there are some; with its day when that is not `today` (an ISO text). */
export function clock(time, today = null) {
  const at = typeof time === "number" ? time : millis(time);
  if (at === null || Number.isNaN(at)) return "–";
  const iso = new Date(at).toISOString();
  const written = iso.slice(11, 19) + (at % 1000 ? `.${iso[20]}` : "");
  return today !== null && !today.startsWith(iso.slice(0, 10)) ? `${day(at)} ${written}` : written;
}

/** 09:01, or 09:01:30 where seconds matter. */
export function minute(at) {
  const iso = new Date(at).toISOString();
  return at % 60_000 ? clock(at) : iso.slice(11, 16);
}

/** 17 Nov, with the year where that is not this one. */
export function day(at, { year = new Date(at).getUTCFullYear() !== new Date().getUTCFullYear() } = {}) {
  const date = new Date(at);
  const text = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  return year ? `${text} ${date.getUTCFullYear()}` : text;
}

/** 17 Nov 2023 20:00–20:01, the second day only where it is another one. */
export function span(start, end, today = null) {
  const [first, last] = [start, end].map((at) => new Date(at).toISOString().slice(0, 10));
  const near = today?.startsWith(first) && first === last;
  return `${near ? "" : `${day(start)} `}${minute(start)}–${last === first ? "" : `${day(end)} `}${minute(end)}`;
}

export const iso = (at) => new Date(at).toISOString().replace("T", " ").replace(".000Z", "").replace("Z", "");

export function ago(text, now) {
  const at = millis(text);
  return at === null
    ? "–"
    : `${duration(Math.max(0, Math.round((now - at) / 1000)) || 0.001)} ago`.replace(/^1 ms/, "0 s");
}

/** A value of a row, as text. */
export function value(it, type = "") {
  if (it === null || it === undefined) return "null";
  if (typeof it === "number") return digits(it);
  if (typeof it === "object") return JSON.stringify(it);
  const text = String(it);
  return type === "timestamp" && /^\d{4}-\d\d-\d\dT/.test(text)
    ? text.replace("T", " ").replace(/(\.\d+)?Z$/, "$1")
    : text;
}

export const numeric = (type) => /^(tinyint|smallint|int|integer|bigint|float|double|decimal)/.test(type ?? "");

/** "tumbling", "hopping", "calendar", "session", "sliding"; "" for a flow without windows. */
export const windowKind = (text) => /^\w*/.exec(text ?? "")[0];

const UNITS = { microsecond: 1e-3, millisecond: 1, second: 1e3, minute: 6e4, hour: 36e5, day: 864e5, week: 6048e5 };

/** The size in milliseconds of "tumbling('1 minute')", "hopping('1 hour', every='5 minutes')"; null when not told. */
export const windowSize = (text) => lengthOf(text, /^(?:tumbling|hopping|sliding)\('([^']+)'/);

/** The gap in milliseconds of "session('20 minutes')"; 0 for other windows. */
export const sessionGap = (text) => lengthOf(text, /^session\('([^']+)'/) ?? 0;

function lengthOf(text, form) {
  const said = form.exec(text ?? "");
  if (!said) return null;
  let size = 0;
  for (const [, number, unit] of said[1].matchAll(/([\d.]+) ?([a-z]+?)s?\b/g))
    size += Number(number) * (UNITS[unit] ?? NaN);
  return size || null;
}
