// The flows as their author named them: a flow that headrace made to keep state before another belongs to the one it
// helps, and a topic of changes is its view. Pure.

const WORSE = ["failed", "retrying", "stopped", "unknown", "running"];

/** The overview with each helper flow joined to the flow it helps. They come by name, so the first to read comes last. */
export function asNamed(overview) {
  const known = new Set(overview.flows.map((flow) => flow.name));
  const helpersOf = (flow) => overview.flows.filter((each) => each.helps === flow.name);
  const flows = overview.flows.filter((flow) => !known.has(flow.helps));
  return {
    ...overview,
    flows: flows.map((flow) => helpersOf(flow).reduce(joined, { ...flow, places: placesOf(flow) })),
  };
}

function joined(flow, helper) {
  return {
    ...flow,
    state: WORSE.find((state) => state === flow.state || state === helper.state) ?? flow.state,
    error: flow.error ?? helper.error,
    rate: helper.rate,
    lag: flow.lag === null || helper.lag === null ? null : Math.max(flow.lag, helper.lag),
    spark_jobs: sum(flow.spark_jobs, helper.spark_jobs),
    spark_tasks: sum(flow.spark_tasks, helper.spark_tasks),
    spark_seconds: sum(flow.spark_seconds, helper.spark_seconds),
    driver_batches: sum(flow.driver_batches, helper.driver_batches),
    restarts: flow.restarts + helper.restarts,
    dead: flow.dead + helper.dead,
    places: placesOf(helper),
    ledger: {
      ...flow.ledger,
      dropped: flow.ledger.dropped + helper.ledger.dropped,
      untimed: flow.ledger.untimed + helper.ledger.untimed,
    },
  };
}

/** Null where nobody tells: the flows run in another process. */
const sum = (a, b) => (a === null && b === null ? null : (a ?? 0) + (b ?? 0));

const placesOf = (flow) =>
  Object.fromEntries(Object.entries(flow.places ?? {}).map(([topic, places]) => [sourceName(topic), places]));

/** What a user calls the topic: one with changes by its view, one behind a dedup by the flow that reads it. */
export const sourceName = (topic) =>
  /^__(?:changes|finals|records)\.(.+?)(?:\.(?:dedup|enrich|join|remember)\d*)*$/.exec(topic)?.[1] ?? topic;
