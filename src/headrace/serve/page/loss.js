// Time to loss: how long until retention takes what a reader has not read. Pure.

import { duration } from "./format.js";
import { badge } from "./parts.js";

export const DAY_SECONDS = 86_400;

/** The least time until a reader of the topic loses something; null: nobody does. */
export function timeToLoss(all, topic) {
  const times = all.groups.filter((group) => group.topic === topic).map((group) => group.time_to_loss_seconds);
  const known = times.filter((seconds) => seconds !== null && seconds !== undefined);
  return known.length ? Math.min(...known) : null;
}

export const loss = (seconds) =>
  seconds === null || seconds === undefined
    ? "–"
    : badge(
        duration(seconds),
        seconds < DAY_SECONDS ? "warn" : "plain",
        "Time until a reader loses records to retention",
      );
