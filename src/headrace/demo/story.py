"""The plot: produce, share, kill, take over, check, rewind, verify. Owns its temporary home and its processes, and
clears both away. Waits for facts, each with a deadline; a fact that does not come is told, and ends in exit code 1."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import IO, TypeVar

import headrace as hr
from headrace.demo.consumer import GROUP, LEASE, RESULTS, RESULTS_SCHEMA, TOPIC
from headrace.demo.shop import SCHEMA, page_views
from headrace.demo.telling import Teller
from headrace.log.contract import Group, Topic

MORNING, NOON, EVENING = 12_000, 2_000, 2_000
PARTITIONS = 4
DEADLINE_SECONDS = 20.0


T = TypeVar("T")


class NotSo(Exception):
    """Something the story promised did not happen."""


def tell(teller: Teller) -> int:
    """Runs it all in a temporary directory."""
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder, ExitStack() as stack:
            _plot(teller, f"{folder}/home", stack)
    except NotSo as error:
        teller.bad(f"not as promised: {error}")
        return 1
    return 0


def _plot(teller: Teller, home: str, stack: ExitStack) -> None:
    log = stack.enter_context(hr.open_log(home))

    teller.step("Produce: page views of a small shop, into a topic with 4 partitions")
    views = log.create_topic(TOPIC, SCHEMA, key="user", event_time="at", partitions=PARTITIONS)
    results = log.create_topic(RESULTS, RESULTS_SCHEMA)
    began = time.perf_counter()
    views.append(page_views(MORNING, datetime.now(UTC), seed=1))
    took = time.perf_counter() - began
    teller.show(f"{MORNING:,} records in {took * 1000:.0f} ms; by partition: {_by(_ends(views))}")
    teller.say(
        "Each is typed, checked and synced to disk before append() returns: a power cut now loses none of them. "
        "The key chose the partition, so one user's views stay in order."
    )

    teller.step("Share: two consumer processes join the group 'analytics'")
    group = views.group(GROUP)
    with _consumer(home, "anna") as (anna, said), _consumer(home, "bert") as (bert, _):
        shares = _until(lambda: _shared(group), "both consumers have partitions")
        names = {anna.pid: "anna", bert.pid: "bert"}
        for pid, partitions in shares.items():
            teller.show(f"{names.get(pid, '?')} (process {pid}) reads partitions {_list(partitions)}")
        noon = datetime.now(UTC)
        views.append(page_views(NOON, noon, seed=2))
        _until(lambda: _all_read(group), "everything is read", anna, bert)
        by_whom = Counter(record.value["consumer"] for record in results.records())
        teller.show(f"{NOON:,} more page views came; results so far: {_by(by_whom)}")
        teller.say(
            "Partitions are shared out among whoever is there. Results and offsets are written in one transaction, "
            "so that work counts once or not at all."
        )

        teller.step("Kill: anna gets SIGKILL between reading records and committing them")
        anna.send_signal(signal.SIGUSR1)  # asks her to stop at the worst moment, so that every run has it
        views.append(page_views(EVENING, datetime.now(UTC), seed=3))
        held = _line(said, "holding")
        anna.kill()
        anna.wait()
        teller.show(f"{EVENING:,} more came; anna died with {held} of them read and not committed")
        teller.say("No goodbye, no clean-up: as bad as a crash, or as a machine that is gone.")

        teller.step("Take over: bert gets her partitions when her lease runs out")
        began = time.perf_counter()
        _until(lambda: _alone(group, bert.pid), "bert has all partitions")
        waited = time.perf_counter() - began
        teller.show(f"after {waited:.1f} s (the lease is {LEASE}) bert reads partitions {_list(range(PARTITIONS))}")
        _until(lambda: _all_read(group), "everything is read", bert)
        teller.say(
            "Nobody had to restart anything. Had anna only been asleep, she could no longer commit: she is fenced."
        )

    teller.step("Check: every page view against every result")
    written = {(number, offset) for number, end in _ends(views).items() for offset in range(end)}
    found = [record.value for record in results.records()]
    seen = Counter((row["partition"], row["offset"]) for row in found)
    by_whom = Counter(row["consumer"] for row in found)
    lost, doubled = len(written - set(seen)), sum(count - 1 for count in seen.values())
    unknown = len(set(seen) - written)
    verdict = f"{len(written):,} written, {lost} lost, {doubled} doubled ({_by(by_whom)})"
    if lost or doubled or unknown:
        raise NotSo(f"{verdict}, {unknown} never written")
    teller.good(verdict)
    teller.say(
        f"Bert was given anna's {held} records again, and they count once: her results would have been committed "
        "with her offsets, or not at all. A consumer that writes elsewhere first and commits then would see them "
        "twice (at least once)."
    )

    teller.step("Rewind: the group goes back to before the second load of page views, and reads again")
    offsets = group.rewind(noon)
    with group.join() as member:
        again = 0
        while records := member.poll(timeout="0 seconds", max_records=5_000):
            again += len(records)
        member.commit()
    teller.show(f"rewound to {noon:%H:%M:%S.%f} UTC, offsets {_by(offsets)}: {again:,} records read again")
    if again != NOON + EVENING:
        raise NotSo(f"{NOON + EVENING} records arrived since noon, {again} were read")
    teller.say("Reading takes nothing away: a new version of your code can work on old records whenever you like.")

    teller.step("Verify: every byte is read and checked")
    checked = log.verify()
    if not checked.ok:
        raise NotSo(f"verify found {checked.problems[0]}")
    teller.good(f"{checked.records:,} records in {checked.batches} batches, {checked.bytes:,} bytes: ok")

    teller.step("Now you")
    teller.show('headrace topics create clicks "user string, page string, at timestamp" --key user --event-time at')
    teller.show("""echo '{"user":"ann","page":"/","at":"2026-01-01T09:00:05Z"}' | headrace produce clicks""")
    teller.show("headrace consume clicks --group mine --follow")
    teller.show("headrace --help")


# -- facts ---------------------------------------------------------------------------------------------


def _until(fact: Callable[[], T], what: str, *workers: subprocess.Popen[str]) -> T:
    """The fact, as soon as it is one. It is looked at again after a moment: the log is what knows, so ask the log."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise NotSo(f"waited {DEADLINE_SECONDS:g} s until {what}")
        for worker in workers:
            if worker.poll() is not None:
                raise NotSo(f"a consumer ended with exit code {worker.returncode}")
        time.sleep(0.01)
    return found


def _ends(topic: Topic) -> dict[int, int]:
    return {number: at.next for number, at in topic.offsets().items()}


def _shared(group: Group) -> dict[int, tuple[int, ...]]:
    """Partitions by process, once two have all of them between them."""
    found = {member.pid: member.partitions for member in group.members() if member.alive and member.partitions}
    return found if len(found) == 2 and sum(map(len, found.values())) == PARTITIONS else {}


def _all_read(group: Group) -> bool:
    return not any(lag.records for lag in group.lag().values())


def _alone(group: Group, pid: int) -> bool:
    members = [member for member in group.members() if member.alive]
    return [member.pid for member in members] == [pid] and len(members[0].partitions) == PARTITIONS


@contextmanager
def _consumer(home: str, name: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A consumer process, ended when the block is left, whatever happens."""
    command = [sys.executable, "-m", "headrace.demo.consumer", home, name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _line(said: IO[str], word: str) -> str:
    """What the consumer said after `word`."""
    for line in said:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise NotSo(f"the consumer ended before it said {word!r}")


def _by(counts: dict[int, int] | dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))


def _list(numbers: tuple[int, ...] | range) -> str:
    return ", ".join(map(str, numbers))
