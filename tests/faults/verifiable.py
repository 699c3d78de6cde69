"""A verifiable producer and consumer, somebody who hurts them, and a checker. Owns the programs and the arithmetic; a
test says how many, how long and with which seed.

Producers write numbered records with an id and, started again, send again whatever they have not seen acknowledged.
Consumers write what they processed into a topic, in the transaction that commits their offsets. Keepers, if there are
any, maintain the log and wipe its files all the time. All are killed and paused past their lease at random; a paused
producer is replaced while it sleeps, and must be fenced when it wakes. At the end every record must have been written
once, in order, and processed once, in order."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ForgottenSequence, MemberFenced, ProducerFenced
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from tests.faults.children import Child, ChildEnded, Children, ack

EVENTS, SEEN, GROUP = "events", "seen", "checkers"
BATCH = 5
KEYS_EACH = 3
LEASE_SECONDS = 0.8
WORK_SECONDS = 0.05


def prepare(home: Path, *, partitions: int = 4, durability: str = "fsync") -> None:
    with open_log(home) as log:
        settings: dict[str, Any] = {"partitions": partitions, "key": "key", "durability": durability}
        log.create_topic(EVENTS, "producer string, n int, key string", **settings)
        log.create_topic(SEEN, "by string, p int, o long, producer string, n int")


def _flag(home: str | Path, name: str) -> Path:
    return Path(f"{home}.{name}")


# -- the programs ------------------------------------------------------------------------------------


def produce(home: str, name: str, resume: int, pause_seconds: float) -> None:
    """Batches from `resume` on, until told to stop. Acknowledges the number behind each."""
    log = open_log(home, create=False)
    topic = log.topic(EVENTS)
    with topic.producer(name) as producer:
        epoch = producer._epoch
    number = resume
    while not _flag(home, "stop").exists():
        rows = [{"producer": name, "n": n, "key": f"{name}-{n % KEYS_EACH}"} for n in range(number, number + BATCH)]
        try:
            done = topic.append(rows, stamp=Stamp(name, epoch, number))
        except ProducerFenced:
            ack(["fenced", name])
            return
        except ForgottenSequence:  # it is in the log: who wrote it went on while this one was being started
            number += BATCH
            continue
        number += BATCH
        ack(["acked", number, done.duplicate])
        time.sleep(pause_seconds)
    log.close()


def consume(home: str, name: str) -> None:
    """Polls, writes what it saw, commits: in one transaction. Ends when told to, and everything is processed."""
    log = open_log(home, create=False)
    group = log.topic(EVENTS).group(GROUP)
    member = group.join(lease=f"{int(LEASE_SECONDS * 1000)} milliseconds")
    while True:
        found = member.poll(timeout="200 milliseconds", max_records=40)
        if not found:
            if _flag(home, "drain").exists() and not sum(lag.records for lag in group.lag().values()):
                break
            continue
        time.sleep(WORK_SECONDS)  # so that most pauses come upon a member with records in hand
        try:
            with log.transaction() as tx:
                values = [(r.partition, r.offset, r.value["producer"], r.value["n"]) for r in found]
                tx.append(SEEN, [{"by": name, "p": p, "o": o, "producer": who, "n": n} for p, o, who, n in values])
                tx.commit(member)
            ack(["processed", len(found)])
        except MemberFenced:
            ack(["refused", len(found)])
    member.close()
    log.close()


def keep(home: str) -> None:
    """Maintains, and erases a key that nobody has: which wipes every byte that no batch needs."""
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = 20_000
    while not _flag(home, "drain").exists():
        done = log.maintain()
        assert not done.problems, done
        log.topic(EVENTS).erase("nobody")
        ack(["kept", done.batches_sealed, done.files_removed])
    log.close()


# -- who hurts them ----------------------------------------------------------------------------------


@dataclass
class Run:
    """Producers and consumers on one log, and what was done to them."""

    home: Path
    children: Children
    seed: int
    producers: int = 2
    consumers: int = 2
    keepers: int = 0
    pause_seconds: float = 0.01
    acked: dict[str, int] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)
    _live: dict[str, Child] = field(default_factory=dict)
    _sleeping: list[tuple[float, str, Child]] = field(default_factory=list)
    _zombies: list[tuple[str, Child]] = field(default_factory=list)
    _starts: int = 0

    def go(self, seconds: float, enough: Callable[[Mapping[str, int]], bool] = lambda _: True) -> None:
        """For so long, and on a slow machine up to eight times as long, until what happened is `enough`."""
        rng = random.Random(self.seed)
        for number in range(self.producers):
            self._start(f"producer{number}")
        for number in range(self.consumers):
            self._start(f"consumer{number}")
        for number in range(self.keepers):
            self._start(f"keeper{number}")
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds or (gone < 8 * seconds and not enough(self.did)):
            time.sleep(rng.uniform(0.2, 0.7))
            self._wake_up()
            self._hurt(rng.choice(sorted(self._live)), rng.choice(["kill", "pause"]), rng)
        self._wake_up(all_of_them=True)
        for name, zombie in self._zombies:
            self._hear(name, zombie.finish(60))
        _flag(self.home, "stop").touch()
        for name in [name for name in self._live if name.startswith("producer")]:
            self._hear(name, self._live.pop(name).finish(60))
        _flag(self.home, "drain").touch()
        for name in list(self._live):
            self._hear(name, self._live.pop(name).finish(60))

    def _start(self, name: str) -> None:
        self._starts += 1
        if name.startswith("producer"):
            forgotten = BATCH * (self._starts % 4)  # acknowledgements it did not get round to noting: it repeats them
            resume = max(0, self.acked.get(name, 0) - forgotten)
            arguments = (str(self.home), name, resume, self.pause_seconds)
            self._live[name] = self.children.start(produce, *arguments)
        elif name.startswith("keeper"):
            self._live[name] = self.children.start(keep, str(self.home))
        else:
            self._live[name] = self.children.start(consume, str(self.home), f"{name}.{self._starts}")

    def _hurt(self, name: str, how: str, rng: random.Random) -> None:
        child = self._live[name]
        if any(child is asleep for _, _, asleep in self._sleeping):
            return
        if how == "pause" and name.startswith("producer") and not self._heard(name, child):
            return  # it has no epoch yet, so it would not be the zombie
        self.did[how] += 1
        if how == "kill":
            child.kill()
            self._hear(name, child.rest())
            child.close()
            self._start(name)
            return
        child.stop()
        self._sleeping.append((time.monotonic() + LEASE_SECONDS * rng.uniform(1.2, 2), name, child))
        if name.startswith("producer"):  # a new one in its place: the sleeper must find out
            self.did["replaced"] += 1
            self._start(name)

    def _heard(self, name: str, child: Child) -> bool:
        """What it has acknowledged so far; False: nothing."""
        try:
            while True:
                fact = child.next(timeout=0.002)
                if fact[0] == "acked":
                    self.acked[name] = max(self.acked.get(name, 0), fact[1])
        except (TimeoutError, ChildEnded):
            return bool(child.facts)

    def _wake_up(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for entry in list(self._sleeping):
            when, name, child = entry
            if all_of_them or when <= now:
                self._sleeping.remove(entry)
                child.resume()
                if self._live.get(name) is not child:
                    self.did["woken"] += 1
                    self._zombies.append((name, child))  # not waited for here: it may need a lock another sleeper has

    def _hear(self, name: str, facts: list[Any]) -> None:
        for fact in facts:
            self.did[fact[0]] += 1
            if fact[0] == "kept":
                self.did["sealed"] += fact[1]
                self.did["removed"] += fact[2]
            if fact[0] == "acked":
                self.did["recognised"] += fact[2]
                self.acked[name] = max(self.acked.get(name, 0), fact[1])


# -- the checker -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What is wrong, by kind; all empty when nothing is."""

    written: int
    lost: list[Any]
    doubled: list[Any]
    reordered: list[Any]
    unseen: list[Any]
    seen_twice: list[Any]
    seen_wrong: list[Any]

    @property
    def clean(self) -> bool:
        wrong = (self.lost, self.doubled, self.reordered, self.unseen, self.seen_twice, self.seen_wrong)
        return not any(wrong)


def check(log: EmbeddedLog, acked: dict[str, int]) -> Report:
    """Reads both topics. `acked`: how many records of each producer were acknowledged."""
    events: dict[tuple[int, int], tuple[str, int]] = {}
    numbers: dict[str, Counter[int]] = defaultdict(Counter)
    last: dict[tuple[str, str], int] = {}
    places: dict[str, set[int]] = defaultdict(set)
    reordered: list[Any] = []
    for partition in log.topic(EVENTS).offsets():
        for record in log.topic(EVENTS).records(partition=partition):
            who, n, key = record.value["producer"], record.value["n"], record.value["key"]
            events[partition, record.offset] = (who, n)
            numbers[who][n] += 1
            places[key].add(partition)
            if n < last.get((who, key), -1):
                reordered.append((who, key, n))
            last[who, key] = n
    reordered += [("several partitions", key) for key, found in places.items() if len(found) > 1]
    lost, doubled = [], []
    for who in sorted(numbers.keys() | acked.keys()):
        end = max(acked.get(who, 0), max(numbers[who], default=-1) + 1)
        lost += [(who, n) for n in range(end) if not numbers[who][n]]
        doubled += [(who, n) for n, times in numbers[who].items() if times > 1]
    seen: Counter[tuple[int, int]] = Counter()
    wrong: list[Any] = []
    upto: dict[int, int] = {}
    for record in log.topic(SEEN).records():
        value = record.value
        place = (value["p"], value["o"])
        seen[place] += 1
        if events.get(place) != (value["producer"], value["n"]):
            wrong.append(value)
        if place[1] < upto.get(place[0], -1):
            reordered.append(("seen", place))
        upto[place[0]] = place[1]
    unseen = sorted(events.keys() - seen.keys())
    twice = sorted(place for place, times in seen.items() if times > 1)
    return Report(len(events), lost, doubled, reordered, unseen, twice, wrong)
