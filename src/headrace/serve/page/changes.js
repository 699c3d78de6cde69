// What a commit did to a view, told as pairs; and which of them are corrections. Pure.

/** What a commit did, told as pairs: −old and +new of one result, whichever of them there are. */
export function paired() {
  const gone = new Map(); // result -> the row that went, of the commit in hand
  let position = null;
  return (change, nameOf) => {
    const row = change.row ?? change;
    if (change._position !== position) gone.clear();
    position = change._position;
    const name = nameOf(row);
    if (change.op === "-") {
      gone.set(name, row);
      return { name, position, was: row, now: null };
    }
    const was = gone.get(name) ?? null;
    gone.delete(name);
    return { name, position, was, now: row };
  };
}

/** A final result changed, or a straggler was let in: not just a window that fills. */
export const corrects = ({ was, now }) =>
  Boolean(was && now) && (was._status === "final" || now._corrections > was._corrections);
