"""The plot: a minute closes, a straggler corrects it, a wrong clock is put right, two sessions become one, an invoice
gets its tax rate and a late one, the ledger balances, the worker is killed, another goes on, nothing is lost, Spark
works a backlog off. Owns its temporary home and its processes, and clears both away. Starts no Spark itself: the
worker does, and the story reads what it commits. Waits for facts, each with a deadline; a fact that does not come
is told, and ends in exit code 1."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headrace import app as apps
from headrace.demo import backlog
from headrace.demo.process import PATIENCE_SECONDS, NotSo, Worker, WorkerFailed, every
from headrace.demo.recount import Recount, differing, happened, lost_and_doubled, minute_of, recount
from headrace.demo.recount_chats import Chats, chats_of
from headrace.demo.rows import (
    CHATS,
    INVOICES,
    REQUESTS,
    VIEW,
    Row,
    all_rows,
    booked,
    chat_line,
    invoice_line,
    line,
    of_minute,
)
from headrace.demo.telling import Teller
from headrace.demo.traffic import OPENS, OTHERS, QUIET, RUSH_ENDS_S, Traffic, day_of, health
from headrace.durations import format_duration
from headrace.errors import WaitTimeout
from headrace.views.open import open_views
from headrace.why import why
from headrace.windows.sessions import Session

if TYPE_CHECKING:
    from headrace.log.contract import Topic
    from headrace.position import Position
    from headrace.views.contract import Place

TICK_SECONDS, LINE_SECONDS = 0.5, 5.0
"""While something takes long, so often that is shown: on a terminal, and in a pipe."""
KILLED_BATCH_ROWS = 500
"""Small batches: there is a commit before the kill, and work left after it."""
HEALTH_SECONDS = 0.5
"""So often the servers of the other cities are heard of: often enough not to be absent."""


def tell(teller: Teller, *, live: bool) -> int:
    """Runs it all in a temporary directory."""
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as folder:
            Story(teller, Path(folder)).tell(live=live)
    except WorkerFailed as error:
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except NotSo as error:
        teller.bad(f"not as promised: {error}")
        return 1
    return 0


class Story:
    def __init__(self, teller: Teller, folder: Path) -> None:
        self._teller, self._traffic = teller, Traffic()
        self._day = day_of(self._traffic)
        self._home, self._litter = folder / "home", folder / "tmp"
        self._litter.mkdir()
        apps.overrides["home"] = str(self._home)
        from headrace.demo import shop  # the program itself: it makes the topic; nobody runs its flow in this process

        self._app, self._visits, self._messages = shop.app, shop.visits, shop.messages
        self._requests, self._taxes, self._invoices = shop.requests, shop.taxes, shop.invoices
        self._flow = shop.app.flows[VIEW]
        window = shop.app.flows[CHATS].window
        assert isinstance(window, Session)
        self._gap_us = window.gap_us
        self._program = Path(shop.__file__)
        self._views = open_views(self._home)

    def tell(self, *, live: bool) -> None:
        with self._app, ExitStack() as workers:
            worker = workers.enter_context(self._worker(KILLED_BATCH_ROWS))
            with self._alive(OTHERS):
                self._opens(worker)
                self._minute_closes()
                self._straggler()
                self._wrong_clock()
                self._chats_join()
                self._invoice_is_taxed()
                self._ledger()
                position = self._killed(worker)
                worker = workers.enter_context(self._worker())
                self._whole()
                self._goes_on(worker, position)
                self._nothing_lost(worker)
                self._catches_up(worker)
                self._now_you()
                if live:
                    from headrace.demo.live import go_on, page

                    with page(self._teller, self._home):
                        topics = self._visits, self._messages
                        go_on(self._teller, *topics, self._views, self._traffic, RUSH_ENDS_S, worker.check_alive)

    # -- the steps ---------------------------------------------------------------------------------

    def _opens(self, worker: Worker) -> None:
        say, show, began = self._teller.say, self._teller.show, time.monotonic()
        self._teller.step("The shop opens")
        say("A worker process starts Spark: five to twenty seconds. Meanwhile visitors come, and the log keeps them.")
        position = self._visits.append(self._day.opening).position | self._messages.append(self._day.messages).position
        position |= self._taxes.upsert(self._day.tax).position
        read = self._read()
        orders = sum(cell.orders for cell in read.cells.values())
        show(
            f"{read.records - orders:,} page views and {orders:,} purchases, from {len(self._visits.offsets())} cities"
        )
        say(
            "They come out of order, some twice, some from devices whose clock is hours off, and nothing more comes "
            f"from {QUIET.title()}: the log keeps them as they are."
        )
        with self._waiting("Spark starts"):
            worker.hear("spark")
        show(f"Spark is up after {time.monotonic() - began:.1f} s; the worker checks its flow before it runs it")
        with self._waiting("the worker checks its flow, and reads"):
            worker.hear("running")
            self._until_read(position, worker)
        show(f"first rows of the view {VIEW} after {time.monotonic() - began:.1f} s:")
        rows = of_minute(self._views, OPENS)
        for row in rows:
            show(line(row))
        _expect({row["_status"] for row in rows} == {"open"}, "the first minute is open")
        say("The rows are right about what was read, and open: the view itself says that more may come.")

    def _minute_closes(self) -> None:
        self._teller.step("A minute closes")
        went, came = self._change(self._day.minute_ends, OPENS, "/", lambda row: row["_status"] == "final")
        _expect(went["_status"] == "open", "the row was open before it was final")
        grace = timedelta(microseconds=self._flow.grace_us)
        self._teller.say(
            f"{' and '.join(map(str.title, OTHERS))} are past {came['window_end'] + grace:%H:%M:%S} (the end, and "
            f"{format_duration(self._flow.grace_us)} of grace), and {QUIET.title()}, silent for "
            f"{format_duration(self._flow.absent_us)}, holds nobody up: the row is final, and safe to act on."
        )

    def _straggler(self) -> None:
        row = self._day.straggler
        self._teller.step("A straggler arrives")
        self._teller.show(
            f"a phone in a tunnel opened {row['page']} at {happened(row):%H:%M:%S}; we hear of it at "
            f"{row['received']:%H:%M:%S}"
        )
        went, came = self._change([row], minute_of(happened(row)), row["page"])
        one_more = came["views"] - went["views"] == came["_corrections"] - went["_corrections"] == 1
        _expect(one_more, "it is one view and one correction")
        _expect(went["_status"] == came["_status"] == "final", "the row was final, and stays so")
        self._teller.say(
            "The final row is taken back and comes again: a reader with a copy gets a '-' and a '+', and its copy is "
            "right again."
        )

    def _wrong_clock(self) -> None:
        row = self._day.wrong_clock
        claimed, true = minute_of(row["occurred"]), minute_of(happened(row))
        self._teller.step("A wrong clock is put right")
        self._teller.show(
            f"a tablet opened {row['page']} at {row['occurred']:%H:%M:%S}, it says, and sent that at "
            f"{row['sent']:%H:%M:%S}; we got it at {row['received']:%H:%M:%S}"
        )
        went, came = self._change([row], true, row["page"])
        _expect(came["views"] == went["views"] + 1, f"it counts in {true:%H:%M}")
        _expect(not of_minute(self._views, claimed), f"nothing is in {claimed:%H:%M}")
        ahead = (row["sent"] - row["received"]).total_seconds() / 60
        self._teller.say(
            f"Its clock is {ahead:.0f} minutes fast, and hr.corrected_time puts the visit into {true:%H:%M}: at its "
            f"word it would count in {claimed:%H:%M}, and make all that follows from {row['city'].title()} late."
        )

    def _chats_join(self) -> None:
        row, changes = self._day.between, []
        self._teller.step("Two sessions become one")
        self._teller.show(f"a message that {row['customer']} wrote at {row['at']:%H:%M:%S} was stuck in the phone")
        with self._views.watch(CHATS, snapshot=False, timeout=timedelta(seconds=PATIENCE_SECONDS)) as watch:
            self._messages.append([row])
            for change in watch:
                changes += [change] if change["customer"] == row["customer"] else []
                if change["op"] == "+" and changes:
                    break
        changes.sort(key=lambda change: (change["op"] == "+", change["window_start"]))
        for change in changes:
            self._teller.change(change["op"], chat_line(change))
        said = [(change["op"], change["messages"], change["_corrections"]) for change in changes]
        _expect(said == [("-", 2, 0), ("-", 2, 0), ("+", 5, 1)], "two chats go, and one comes")
        _expect(len({change["_position"] for change in changes}) == 1, "it is one commit")
        self._teller.say(
            f"A chat is a session: messages at most {format_duration(self._gap_us)} apart. This one lies between two "
            "of them, and makes them one; both go and one comes, in one commit."
        )

    def _invoice_is_taxed(self) -> None:
        self._teller.step("An invoice gets its tax rate, and a late one")
        with self._views.watch(INVOICES, snapshot=False, timeout=timedelta(seconds=PATIENCE_SECONDS)) as changes:
            self._invoices.append([self._day.invoice])
            first = next(change for change in changes if change["op"] == "+")
            self._teller.change("+", invoice_line(first))
            self._teller.show(f"the office tells us that from {self._day.new_tax['since']:%H:%M} on it is 9 %")
            self._taxes.upsert(self._day.new_tax)
            late = next(each for each in changes if each["op"] == "+" and each["percent"] != first["percent"])
        self._teller.change("-", invoice_line(first))
        self._teller.change("+", invoice_line(late))
        rates = [(row["percent"], row["taxes_version"], row["_corrections"]) for row in (first, late)]
        _expect(rates == [(8, "0:0", 0), (9, "0:1", 1)], f"the late rate corrects the invoice: {rates}")
        found = why(self._views, self._app.log, INVOICES, late["_id"])
        made_of = [(each.topic, each.partition, each.offset) for each in found.origins]
        _expect(made_of == [("invoices", 0, 0), ("taxes", 0, 1)], f"the row names its records: {made_of}")
        places = " and ".join(f"{topic}, partition {at}, offset {offset}" for topic, at, offset in made_of)
        self._teller.show(f"why: made of {places}")
        self._teller.say(
            "The receipt says which version of the table was used. A replay gives the same rows, whatever is in the "
            "table by then."
        )

    def _ledger(self) -> None:
        self._teller.step("The ledger balances")
        read, ledger = self._read(), booked(self._views)
        total = sum(ledger.values())
        _expect(
            total == read.records, f"{read.records} visits are in the log, and as many in the ledger: it has {total}"
        )
        self._teller.good(f"{read.records:,} visits in the log = {_parts(ledger)}")
        messages, of_chats = self._chats().records, booked(self._views, CHATS)
        total = sum(of_chats.values())
        _expect(total == messages, f"{messages} messages are in the log, and as many in the ledger: it has {total}")
        self._teller.good(f"{messages:,} messages in the log = {_parts(of_chats)}")
        self._teller.say(
            f"Nothing is lost in silence: the {ledger['dropped']} dropped are phones back from flight mode, later than "
            f"the {format_duration(self._flow.late.within_us)} for which this flow corrects, and they are on the books."
        )

    def _killed(self, worker: Worker) -> Position:
        """Where the log ends for which the worker did not live."""
        self._teller.step("kill -9")
        rush, before = self._day.rush, self._booked()
        position = self._visits.append(rush).position | self._messages.append(self._day.rush_messages).position
        _until(lambda: self._booked() > before, "the worker commits some of them", worker)
        worker.kill()
        done = self._booked() - before
        _expect(0 < done < len(rush), f"the worker was in the middle of its work: {done} of {len(rush)}")
        self._teller.show(
            f"{len(rush):,} more visits; worker {worker.pid} got SIGKILL with {done:,} of them in the view"
        )
        return position

    def _whole(self) -> None:
        wrong = differing(self._read(self._views.state(VIEW).places["visits"]), all_rows(self._views))
        wrong += self._chats(self._views.state(CHATS).places["messages"]).differing(all_rows(self._views, CHATS))
        _expect(not wrong, f"the views are those of the records they have read: {wrong[:1]}")
        self._teller.say(
            "No good-bye and a batch half done, but the views are whole: each has all that the log has up to the "
            "offsets committed with it, and nothing of the batch."
        )

    def _goes_on(self, worker: Worker, rush: Position) -> None:
        began = time.monotonic()
        self._teller.step("Another worker goes on")
        self._teller.say(
            "No repair and no rewind: a new worker starts, and Spark needs its five to twenty seconds again."
        )
        with self._waiting("Spark starts, and the worker reads"):
            worker.hear("spark")
            worker.hear("running")
            self._until_read(rush, worker)
        self._teller.show(f"worker {worker.pid} has read the rest of the log after {time.monotonic() - began:.1f} s")
        self._teller.say("It began where the last commit ended, because rows and offsets are one transaction.")

    def _nothing_lost(self, worker: Worker) -> None:
        self._teller.step("Count again")
        read, rows, ledger = self._read(), all_rows(self._views), booked(self._views)
        lost, doubled = lost_and_doubled(read, rows)
        verdict = f"{read.records:,} visits counted by hand, against {len(rows)} rows: {lost} lost, {doubled} doubled"
        _expect(not lost and not doubled, f"nothing is lost or doubled: {verdict}")
        wrong = differing(read, rows)
        _expect(not wrong, f"the rows are what the log says: {wrong[:1]}")
        by_hand = {"on_time": read.on_time, "corrected": read.corrected, "dropped": read.dropped, "untimed": 0}
        _expect(ledger == by_hand, f"the ledger, {ledger}, is what the log says, {by_hand}")
        self._teller.good(verdict)
        self._teller.show(f"{read.again:,} page views were sent twice and count once")
        said, chats, ledger = self._chats(), all_rows(self._views, CHATS), booked(self._views, CHATS)
        wrong = said.differing(chats)
        _expect(not wrong and ledger == said.ledger, f"the chats are what the log says: {wrong[:1]}, {ledger}")
        self._teller.good(f"{said.records:,} messages put together by hand: the same {len(chats)} chats")
        audited = worker.audit()
        taxed = len(all_rows(self._views, INVOICES)) + len(all_rows(self._views, "taxes"))
        _expect(
            not audited["differences"] and audited["rows"] == len(rows) + len(chats) + taxed,
            f"the audit finds no difference: {audited}",
        )
        self._teller.good(f"audit: {audited['rows']} rows of all views recomputed in one batch: no difference")
        self._teller.say(
            "Two counts that know nothing of workers, batches and kills say what the view says: a result is a function "
            "of the log, and of nothing else."
        )

    def _catches_up(self, worker: Worker) -> None:
        self._teller.step("Spark works a backlog off")
        night = backlog.requests()
        self._teller.show(f"{night.num_rows:,} requests of the night come at once, from the servers' own logs")
        began = time.monotonic()
        position = self._requests.append(night).position
        with self._waiting("Spark reads and computes"):
            self._until_read(position, worker)
        seconds, spent = time.monotonic() - began, worker.status()[REQUESTS]
        jobs, tasks = spent["spark_jobs"], spent["spark_tasks"]
        batches = "1 batch" if spent["batches"] == 1 else f"{spent['batches']} batches"
        _expect(jobs > 0 and tasks >= jobs, f"Spark ran them: {jobs} jobs, {tasks} tasks")
        self._teller.show(
            f"read and in the view after {seconds:.1f} s: {batches}, {jobs} Spark jobs, {tasks} tasks, "
            f"{spent['spark_seconds']:.1f} s in Spark"
        )
        counted, found = backlog.by_hand(self._requests.batches()), backlog.in_view(all_rows(self._views, REQUESTS))
        _expect(counted == found, f"the {len(found)} rows are what the log says")
        self._teller.good(f"{night.num_rows:,} requests counted by hand: the same {len(found)} rows")
        self._teller.say(
            "Larger batches take no other program. How many jobs and tasks a flow took is in app.status(), in the line "
            "of `headrace run`, on the page and in the metrics."
        )

    def _now_you(self) -> None:
        here = Path.cwd()
        program = self._program.relative_to(here) if here in self._program.parents else self._program
        visit = '{"city":"oslo","page":"/","view":"v1","occurred":"2026-01-01T09:00:05Z"}'
        self._teller.step("Now you")
        self._teller.say("The shop is a program of some eighty lines. Run it, and send it visitors from another shell:")
        if (folder := _not_on_path()) is not None:
            self._teller.show(f'export PATH="{folder}:$PATH"')
        self._teller.show(f"headrace run {program}")
        self._teller.show(f"echo '{visit}' | headrace produce visits")
        self._teller.show(f"headrace watch {VIEW}")
        self._teller.say("Or see it live, on a page in the browser, until Ctrl-C:")
        if find_spec("fastapi") is None:
            self._teller.show("pip install 'headrace[serve]'")
        self._teller.show("headrace demo --live")

    # -- facts -------------------------------------------------------------------------------------

    def _booked(self) -> int:
        return sum(booked(self._views).values())

    def _read(self, places: Mapping[int, Place] | None = None) -> Recount:
        """The log, counted by hand: all of it, or what lies before the places."""
        return recount(_records(self._visits, places))

    def _chats(self, places: Mapping[int, Place] | None = None) -> Chats:
        """The same of the messages."""
        (messages,) = _records(self._messages, places)
        return chats_of(messages)

    def _until_read(self, position: Position, worker: Worker) -> None:
        def read() -> bool:
            try:
                self._views.wait_for(position, timeout="100 milliseconds")
            except WaitTimeout:
                return False
            return True

        _until(read, "the view has read the log", worker)

    def _change(
        self, rows: list[Row], minute: datetime, page: str, until: Callable[[Row], bool] = lambda _: True
    ) -> tuple[Row, Row]:
        """Sends visits, and shows the change that they make to a row, in however many commits: as it first went, and as
        it came in the end."""
        went: Row | None = None
        with self._views.watch(VIEW, snapshot=False, timeout=timedelta(seconds=PATIENCE_SECONDS)) as changes:
            self._visits.append(rows)
            for change in changes:
                if (change["window_start"], change["page"]) != (minute, page):
                    continue
                if change["op"] == "-":
                    went = went or change
                elif went is not None and until(change):
                    self._teller.change("-", line(went))
                    self._teller.change("+", line(change))
                    return went, change
        raise NotSo(f"the row of {minute:%H:%M} {page} changes within {PATIENCE_SECONDS:g} s")

    # -- what runs beside --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Shows how long it takes, so that nobody takes it for stuck."""
        began, teller = time.monotonic(), self._teller
        try:
            with every(
                TICK_SECONDS if teller.terminal else LINE_SECONDS,
                lambda: teller.tick(f"… {what}: {time.monotonic() - began:.0f} s"),
            ):
                yield
        finally:
            teller.clear()

    def _worker(self, *batch_rows: int) -> Worker:
        return Worker(self._home, self._litter, *batch_rows)

    def _alive(self, cities: tuple[str, ...]) -> AbstractContextManager[None]:
        """The cities' servers are heard of, so that the flow does not call them absent."""
        return every(HEALTH_SECONDS, lambda: self._visits.append([health(city) for city in cities]))


def _records(topic: Topic, places: Mapping[int, Place] | None) -> Iterator[Iterator[Row]]:
    """Of each partition; with places, those before them."""
    return (
        (
            record
            for batch in topic.batches(partition=number, stop=places[number].offset if places else None)
            for record in batch.to_pylist()
        )
        for number in topic.offsets()
    )


def _parts(ledger: Mapping[str, int]) -> str:
    return f"{ledger['on_time']:,} on time + {ledger['corrected']:,} corrected + {ledger['dropped']:,} dropped"


def _expect(fact: bool, what: str) -> None:
    if not fact:
        raise NotSo(what)


def _until(fact: Callable[[], bool], what: str, worker: Worker) -> None:
    """Returns as soon as it is so. It is looked at again after a moment: the store is what knows, so ask the store."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        worker.check_alive()
        if time.monotonic() > deadline:
            raise NotSo(f"within {PATIENCE_SECONDS:g} s {what}")
        time.sleep(0.005)


def _not_on_path() -> Path | None:
    """Where `headrace` is, if the shell does not find it."""
    beside = Path(sys.executable).with_name("headrace")
    found = shutil.which("headrace")
    here = not beside.exists() or (found is not None and Path(found).resolve() == beside.resolve())
    return None if here else beside.parent
