"""Which member gets which partitions. Pure: no clock, no storage. Fair to one partition, and moves as few as it can."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign(partitions: Collection[int], members: Collection[str], owned: Mapping[int, str | None]) -> dict[int, str]:
    """An owner for each partition. Members keep what they have, up to their share; the rest fills up the others."""
    if not members:
        return {}
    order = sorted(members)
    low, above = divmod(len(partitions), len(order))
    held: dict[str, list[int]] = {member: [] for member in order}
    for partition in sorted(partitions):
        owner = owned.get(partition)
        if owner in held:
            held[owner].append(partition)
    # The larger shares go to those who hold most already: that moves least.
    by_need = sorted(order, key=lambda member: (-len(held[member]), member))
    share = {member: low + (1 if place < above else 0) for place, member in enumerate(by_need)}
    out = {p: member for member in order for p in held[member][: share[member]]}
    free = [p for p in sorted(partitions) if p not in out]
    for member in by_need:
        missing = share[member] - min(len(held[member]), share[member])
        for partition in free[:missing]:
            out[partition] = member
        free = free[missing:]
    return out
