"""What a doctor finds of Debezium's events: whether they can be reached, and which topics have them. Changes
nothing."""

from __future__ import annotations

from headrace.cdc.choice import Choice
from headrace.cdc.debezium.address import Events
from headrace.cdc.source import Finding
from headrace.errors import HeadraceError
from headrace.log.open import open_raw

__all__ = ["findings"]


def findings(name: str, events: Events, choice: Choice) -> list[Finding]:
    if events.cluster is None:
        return [Finding("events", None, f"{name} reads topic {events.name!r} of the own log")]
    raw = open_raw(events.cluster)
    try:
        ends = raw.ends(lambda topic: topic.startswith(f"{events.name}."))
    except HeadraceError as error:
        return [Finding("cluster", False, str(error))]
    finally:
        raw.close()
    found = [Finding("cluster", True, f"{events.cluster.servers} answers")]
    topics = sorted({topic for topic, _ in ends})
    if not topics:
        why = f"no topic begins with {events.name + '.'!r}: is that Debezium's topic.prefix, and has it run?"
        return [*found, Finding("topics", False, why)]
    for topic in topics:
        parts = topic.removeprefix(f"{events.name}.").split(".")
        if len(parts) >= 2:
            taken = choice.takes(parts[-2], parts[-1])
            records = sum(high - low for (each, _), (low, high) in ends.items() if each == topic)
            found.append(Finding(f"topic {topic}", True if taken else None,
                                 f"{records:,} events" if taken else "is not chosen"))  # fmt: skip
    return found
