"""The shop of the demo, unchanged, on engines that are servers: a Kafka broker, a Postgres, a Spark cluster of two
workers. Visitors come, an executor is killed, the driver is killed, another goes on; then everything is counted again
from the log, in plain Python. Owns all that it starts, in temporary folders and on loopback, and stops it, whatever
ends it. What is missing here is said in one line, with exit code 77."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MISSING = 77
SCRIPTS = Path(__file__).parent
PATIENCE_SECONDS = 240.0
PIECES, PIECE_ROWS = 10, 30_000
EXECUTOR_AT, DRIVER_AT = 3, 6
"""When so many pieces of the night's requests have come, one is killed."""


class NotSo(Exception):
    """Something was not as promised."""


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def server(*command: str) -> Iterator[str]:
    """A script that prints an address, and ends with its input."""
    started = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this program, which ends it
    )
    assert started.stdin is not None and started.stdout is not None and started.stderr is not None
    with started:
        try:
            address = started.stdout.readline().strip()
            if not address or (" " in address and not address.startswith("{")):
                started.stdin.close()
                said = address or started.stderr.read().strip()
                print(f"demo-cluster: {said or f'{command[0]} did not start'}", file=sys.stderr)
                raise SystemExit(MISSING)
            yield address
        finally:
            with contextlib.suppress(OSError):
                started.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(timeout=30)
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)


class Driver:
    """`headrace run shop.py`, in a process group of its own: what kills it kills its JVM."""

    def __init__(self, program: Path, folder: Path, places: list[str]) -> None:
        command = [sys.executable, "-m", "headrace", "run", str(program), "--standby", "--no-serve", *places]
        self._log = (folder / "driver.log").open("ab")
        environment = {**os.environ, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def check(self) -> None:
        if self._process.poll() is not None:
            said = Path(self._log.name).read_text("utf-8", "replace").strip().splitlines()[-5:]
            raise NotSo(f"the driver ended with {self._process.returncode}: {' | '.join(said)}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self.kill()


def executors() -> list[int]:
    """Executors of Spark that are descendants of this process."""
    parents, found = {}, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    java = [pid for pid in found if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("java")]
    return sorted(filter(ours, java))


def until(fact: Callable[[], bool], what: str, driver: Driver) -> float:
    """How long it took."""
    began = time.monotonic()
    while not fact():
        driver.check()
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise NotSo(f"within {PATIENCE_SECONDS:g} s {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def missing() -> str | None:
    import importlib.util

    for module, extra in (("confluent_kafka", "kafka"), ("psycopg", "postgres"), ("pyspark", "dev")):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'headrace[{extra}]'"
    if not Path("/proc/self/stat").exists():
        return "there is no /proc, by which executors are found: it needs Linux"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no java on the PATH: install Java 17 or 21"
    return None


def tell() -> None:
    if (why := missing()) is not None:
        print(f"demo-cluster: {why}", file=sys.stderr)
        raise SystemExit(MISSING)
    say("headrace: the shop of the demo on Kafka, Postgres and a Spark cluster")
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cluster-", ignore_cleanup_errors=True))
        )
        log = f"kafka://{stack.enter_context(server(str(SCRIPTS / 'kafka'), '--until-eof'))}"
        say(f"  a broker     {log}")
        views = json.loads(stack.enter_context(server(str(SCRIPTS / "postgres"))))["url"]
        say(f"  a database   {views}")
        spark = stack.enter_context(server(str(SCRIPTS / "spark"), "--until-eof"))
        say(f"  two workers  {spark}")
        story(stack, folder, log, views, spark)


def story(stack: contextlib.ExitStack, folder: Path, log: str, views: str, spark: str) -> None:
    from headrace import app as apps
    from headrace.demo import backlog
    from headrace.demo.traffic import Traffic, day_of
    from headrace.views.open import open_views

    apps.overrides.update(home=str(folder / "home"), log=log, views=views)
    from headrace.demo import shop

    stack.enter_context(contextlib.closing(shop.app))
    places = ["--home", str(folder / "driver"), "--log", log, "--views", views, "--spark", spark]
    day, seen = day_of(Traffic()), open_views(views)
    position = shop.taxes.upsert(day.tax).position | shop.invoices.append([day.invoice]).position
    for rows in (day.opening, day.minute_ends, [day.straggler], [day.wrong_clock]):
        position |= shop.visits.append(rows).position
    position |= shop.messages.append(day.messages).position
    say(f"visitors come: {len(day.opening) + len(day.minute_ends) + 2:,} visits are in the log")
    driver = stack.enter_context(Driver(Path(shop.__file__), folder, places))
    say(f"the driver runs headrace/demo/shop.py, unchanged: process {driver.pid}")
    took = until(lambda: seen.are_at(position), "the views have the first visits", driver)
    say(f"  the views have all of it after {took:.0f} s; {len(executors())} executors work for it")
    requests = backlog.requests()
    rush, chats = _cut(day.rush, PIECES), _cut(day.rush_messages, PIECES)
    say(f"{requests.num_rows:,} requests of a night come, in {PIECES} pieces, and {len(day.rush):,} visits beside them")
    for number in range(PIECES):
        position |= shop.requests.append(requests.slice(number * PIECE_ROWS, PIECE_ROWS)).position
        position |= shop.visits.append(rush[number]).position | shop.messages.append(chats[number]).position
        if number == EXECUTOR_AT:
            victim = executors()[0]
            os.kill(victim, signal.SIGKILL)
            say(f"kill -9 {victim}: an executor, with about {_behind(seen, shop.requests):,} requests not in the view")
        if number == DRIVER_AT:
            left = _behind(seen, shop.requests)
            driver.kill()
            say(f"kill -9 {driver.pid}: the driver, with about {left:,} requests not in the view")
            driver = stack.enter_context(Driver(Path(shop.__file__), folder, places))
            say(f"another driver waits until the first one's lease ends, and goes on: process {driver.pid}")
    position |= shop.taxes.upsert(day.new_tax).position
    took = until(lambda: seen.are_at(position), "the views have everything", driver)
    say(f"  the views have all of it {took:.0f} s after the last record came")
    _count(shop, seen)


def _cut(rows: list[Any], pieces: int) -> list[list[Any]]:
    return [rows[len(rows) * n // pieces : len(rows) * (n + 1) // pieces] for n in range(pieces)]


def _behind(views: Any, topic: Any) -> int:
    """About how many records of the requests their view does not have."""
    read = views.state("requests_per_minute").places.get(topic.name, {})
    ends = topic.offsets()
    return sum(each.next - (read[number].offset if number in read else 0) for number, each in ends.items())


def _expect(fact: bool, what: str) -> None:
    if not fact:
        raise NotSo(what)


def _rows(topic: Any) -> list[list[dict[str, Any]]]:
    """The records of each partition, in order."""
    return [
        [row for batch in topic.batches(partition=number) for row in batch.to_pylist()] for number in topic.offsets()
    ]


def _count(shop: Any, views: Any) -> None:
    """What the log says, counted in plain Python, against what the views say."""
    from headrace.demo import backlog
    from headrace.demo.recount import differing, lost_and_doubled, recount
    from headrace.demo.recount_chats import chats_of
    from headrace.demo.rows import CHATS, INVOICES, REQUESTS, all_rows, booked

    read, rows = recount(_rows(shop.visits)), all_rows(views)
    lost, doubled = lost_and_doubled(read, rows)
    wrong = differing(read, rows)
    say(f"{read.records:,} visits counted by hand, against {len(rows)} rows: {lost} lost, {doubled} doubled")
    _expect(not lost and not doubled and not wrong, f"the rows are what the log says: {wrong[:1]}")
    by_hand = {"on_time": read.on_time, "corrected": read.corrected, "dropped": read.dropped, "untimed": 0}
    _expect(booked(views) == by_hand, f"the ledger, {booked(views)}, is what the log says, {by_hand}")
    say(f"  the ledger balances: {', '.join(f'{count:,} {name}' for name, count in by_hand.items())}")
    (messages,) = _rows(shop.messages)
    said = chats_of(messages)
    wrong = said.differing(all_rows(views, CHATS))
    _expect(not wrong and booked(views, CHATS) == said.ledger, f"the chats are what the log says: {wrong[:1]}")
    say(f"{said.records:,} messages put together by hand: the same chats, 0 lost, 0 doubled")
    counted, found = backlog.by_hand(shop.requests.batches()), backlog.in_view(all_rows(views, REQUESTS))
    all_of_them = sum(count for count, _, _ in counted.values())
    wrong = [key for key in counted.keys() | found.keys() if counted.get(key) != found.get(key)]
    _expect(not wrong, f"the requests are what the log says: {wrong[:1]}")
    say(f"{all_of_them:,} requests counted by hand: the same {len(found)} rows, 0 lost, 0 doubled")
    percents = [row["percent"] for row in all_rows(views, INVOICES)]
    _expect(percents == [9], f"the late tax rate has corrected the invoice: {percents}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tell()
    except KeyboardInterrupt:
        return 130
    except NotSo as error:
        print(f"demo-cluster: not as promised: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
