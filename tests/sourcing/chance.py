"""Processes whose reactions are drawn by chance, but from what they react to: the same events ask for the same. And
brute force: what the events of each process come to, and what of it must have happened."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace import sourcing as es

ENTITIES, TIMERS = ("x", "y", "z"), ("soon", "late")
STEPS = 12
"""A process asks for nothing more after so many events."""


@dataclass(frozen=True)
class Kick:
    number: int


@dataclass(frozen=True)
class Add:
    number: int


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Added:
    number: int


def sum_up(total: int, event: Added) -> int:
    return total + event.number


def decide(total: int, command: Add, _key: str) -> list[Added]:
    """What is refused now may be accepted later."""
    if (total + command.number) % 3 == 0:
        raise es.Rejected(f"{total}")
    return [Added(command.number)]


def route(event: Added, entity: str) -> str | None:
    """Some of what happens to x comes to the process a, of y to b."""
    return {"x": "a", "y": "b"}.get(entity) if event.number > 2 else None


def evolve(history: str, event: Any) -> str:
    return f"{history}|{event!r}"


def react(history: str, event: Any, key: str) -> list[es.Action]:
    if history.count("|") >= STEPS:
        return []
    draw, asked = random.Random(f"{key} {history} {event!r}"), list[es.Action]()
    for _ in range(draw.randrange(1, 4)):
        match draw.randrange(6):
            case 0 | 1:
                asked.append(es.Send(Add(draw.randrange(1, 5)), to=draw.choice(ENTITIES)))
            case 2:
                asked.append(es.Send(Note(f"{key} {draw.random()}")))
            case 3 | 4:
                asked.append(es.Timer(draw.choice(TIMERS), after=f"{draw.randrange(1, 20)} minutes"))
            case _:
                asked.append(es.Cancel(draw.choice(TIMERS)))
    return asked


def sums_in(log: Any) -> es.Entities[int]:
    return es.Entities(log, "sums", events=[Added], evolve=sum_up, decide=decide, initial=0)


def manager_in(log: Any, clock: Callable[[], datetime]) -> es.ProcessManager[str]:
    notes, sums = log.create_topic("notes", "text string", exist_ok=True), sums_in(log)
    return es.ProcessManager(
        log,
        "chance",
        events=[Kick, Added],
        evolve=evolve,
        react=react,
        initial="",
        commands={Add: sums, Note: notes},
        inputs={sums: route},
        snapshot_every=4,
        clock=clock,
    )


def check(log: Any, manager: es.ProcessManager[str], now: datetime, *, drained: bool = True) -> Counter[str]:
    """That all that the events ask for has happened, each once, and nothing else. Counts what there was."""
    seen, handled = Counter[str](), Counter(row.value["command"] for row in sums_in(log).topic.records())
    outbox, sent, notes, pending = list(manager.outbox.records()), [], [], []
    routed = [(key, event) for key in ENTITIES for event in sums_in(log).events(key) if route(event.event, key)]
    for entity, process in ("x", "a"), ("y", "b"):
        came = [(event.event, event.at) for event in manager.events(process) if isinstance(event.event, Added)]
        wanted = [(event.event, event.at) for key, event in routed if key == entity]
        assert came == (wanted if drained else wanted[: len(came)])
    for key in sorted({row.value["entity"] for row in manager.topic.records()}):
        history, timers, waits = "", dict[str, tuple[datetime, int]](), dict[tuple[int, int], str]()
        for event in manager.events(key):
            what = event.event
            seen[type(what).__name__] += 1
            if isinstance(what, es.TimerFired):
                due, _ = timers.pop(what.name)
                assert due <= event.at
            elif isinstance(what, es.CommandAccepted | es.CommandRejected):
                id = waits.pop((what.step, what.number))
                assert handled[id] == isinstance(what, es.CommandAccepted)
            history = evolve(history, what)
            for number, action in enumerate(react(history, what, key)):
                id = f"chance/{key}/{event.version}/{number}"
                if isinstance(action, es.Timer):
                    timers[action.name] = action.due(event.at), event.version
                elif isinstance(action, es.Cancel):
                    seen["cancelled"] += timers.pop(action.name, None) is not None
                else:
                    sent.append((id, action.command, action.to))
                    if isinstance(action.command, Note):
                        notes.append(action.command.text)
                    else:
                        waits[event.version, number] = id
        assert manager.load(key) == es.Loaded(key, history, history.count("|"))
        assert not drained or (not waits and all(due > now for due, _ in timers.values()))
        pending += [es.PendingTimer(key, name, *timer) for name, timer in timers.items()]
    rows = {row.value["id"]: (manager._command(row.value), row.value["to"]) for row in outbox}
    assert len(rows) == len(outbox) and rows == {id: (command, to) for id, command, to in sent}
    assert manager.timers() == sorted(pending, key=lambda timer: (timer.due, timer.process, timer.name))
    found = Counter(row.value["text"] for row in log.topic("notes").records())
    assert found == Counter(notes) if drained else not found - Counter(notes)
    assert manager.audit().ok
    return seen
