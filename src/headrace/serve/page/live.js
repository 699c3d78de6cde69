// Talking to the server: requests, and streams of events that come back by themselves. Owns the waiting between tries.
// Knows nothing of what is in the answers.

export class ApiError extends Error {
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

/** Whole numbers that a double cannot hold stay text, digit for digit. */
export function parse(text) {
  if (!/[:,[]-?\d{16}/.test(text)) return JSON.parse(text); // as nearly always, and several times as fast
  return JSON.parse(text, (_, value, context) => {
    const exact = typeof value !== "number" || Number.isSafeInteger(value) || !/^-?\d+$/.test(context?.source ?? "");
    return exact ? value : context.source;
  });
}

export async function request(path, { method = "GET", body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Headrace"] = "page"; // no other site can send this
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Unreachable", "The server does not answer.");
  }
  const text = await response.text();
  let answer;
  try {
    answer = text ? parse(text) : null;
  } catch {
    throw new ApiError(
      response.status,
      "NotJson",
      `The server answered ${response.status} with something else than JSON.`,
    );
  }
  if (!response.ok) {
    const said = answer?.error ?? {};
    throw new ApiError(
      response.status,
      said.type ?? "Error",
      said.message ?? `The server answered ${response.status}.`,
    );
  }
  return answer;
}

export const get = (path, signal) => request(path, { signal });
export const post = (path, body) => request(path, { method: "POST", body });

const WAITS_MS = [500, 1000, 2000, 4000, 8000];
const SILENCE_MS = 45_000;

/**
 * Follows server-sent events at `path()`, again and again, until closed. `events`: name -> function of the data.
 * `told(state)`: "open", "waiting" (for the next try), "refused" (no token, or a wrong one). While nobody looks at the
 * page nothing is followed.
 */
export function follow(path, events, told = () => {}) {
  let source = null;
  let timer = null;
  let tries = 0;
  let closed = false;
  let heard = 0;

  function open() {
    clearTimeout(timer);
    if (closed || document.hidden) return;
    stop();
    const mine = new EventSource(path());
    source = mine;
    heard = Date.now();
    mine.onopen = () => {
      tries = 0;
      heard = Date.now();
      told("open");
    };
    mine.onerror = () => mine === source && lost();
    mine.addEventListener("ping", () => (heard = Date.now()));
    for (const [name, act] of Object.entries(events)) {
      mine.addEventListener(name, (event) => {
        heard = Date.now();
        act(parse(event.data), event.lastEventId);
      });
    }
  }

  function stop() {
    source?.close();
    source = null;
  }

  async function lost() {
    stop();
    if (closed) return;
    const refused = await get("/api/overview").then(
      () => false,
      (error) => error.status === 401 || error.status === 403,
    );
    if (closed || source) return;
    const wait = WAITS_MS[Math.min(tries, WAITS_MS.length - 1)];
    tries += 1;
    told(refused ? "refused" : "waiting");
    clearTimeout(timer);
    timer = setTimeout(open, wait);
  }

  const looked = () => (document.hidden ? stop() : open());
  const watchdog = setInterval(async () => {
    if (source === null || Date.now() - heard < SILENCE_MS) return;
    heard = Date.now(); // nothing new for long: is anybody there?
    await request("/api/health", { signal: AbortSignal.timeout(5000) }).catch(lost);
  }, 5000);
  document.addEventListener("visibilitychange", looked);
  open();
  return {
    now() {
      tries = 0;
      open();
    },
    close() {
      closed = true;
      clearTimeout(timer);
      clearInterval(watchdog);
      document.removeEventListener("visibilitychange", looked);
      stop();
    },
  };
}

/** Calls `act` when asked to, at most once in `gap` milliseconds, never twice at once. */
export function calmly(act, gap = 1000) {
  let wanted = false;
  let busy = false;
  let closed = false;
  const again = async () => {
    if (busy || closed) {
      wanted = true;
      return;
    }
    busy = true;
    wanted = false;
    try {
      await act();
    } finally {
      setTimeout(() => {
        busy = false;
        if (wanted) again();
      }, gap);
    }
  };
  again.close = () => (closed = true);
  return again;
}
