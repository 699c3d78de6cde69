"""`headrace work MODULE:FUNCTION TOPIC QUEUE`: a function run on the messages of a queue. Owns the threads, the leases
while the function runs, and the graceful stop. Does not know what the function does.

A message is acknowledged after the function returned, so a worker that is killed leaves its messages to others, which
get them when their visibility has run out: at least once."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import queue as local
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import home_option, opened, queue_argument, start_of, topic_argument
from headrace.cli.output import Progress, counted, harmless, note, say
from headrace.errors import HeadraceError, LeaseExpired, nearest

if TYPE_CHECKING:
    from headrace.log.capabilities import Message, Queue

WAIT = "1 hour"
WAIT_TO_BE_EMPTY = "1 second"
"""With --stop-when-empty: others' acks wake nobody."""
LOOK_SECONDS = 0.2
"""A signal that comes just before the main thread waits cannot wake it: so it looks."""
EXTENSIONS_PER_VISIBILITY = 3


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@topic_argument
@queue_argument
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Messages processed at the same time.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Messages fetched at a time; default: as many as the worker can start.",
)
@click.option(
    "--visibility",
    metavar="DURATION",
    help="How long a message stays with a worker that has died; default: 30 seconds.",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(1),
    metavar="N",
    help="After this many, a message becomes a dead letter; default: 5.",
)
@click.option(
    "--order",
    type=click.Choice(["none", "key"]),
    help="For a new queue: key keeps the messages of a key in order, one at a time.",
)
@click.option(
    "--start",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    help="For a new queue: earliest, latest, a time with zone, or P:OFFSET,P:OFFSET.",
)
@click.option(
    "--retry-after", metavar="DURATION", help="A message that failed waits this long before it is delivered again."
)
@click.option("--stop-when-empty", is_flag=True, help="Stop when every message is done or a dead letter.")
@home_option
def work(
    function: str,
    topic: str,
    queue: str,
    concurrency: int,
    batch: int | None,
    visibility: str | None,
    max_deliveries: int | None,
    order: str | None,
    start: str,
    retry_after: str | None,
    stop_when_empty: bool,
) -> None:
    """Run a function on the messages of a queue. When it returns, the message is acknowledged; when it raises,
    rejected.

    FUNCTION takes the message (message.value, .key, .deliveries, …) and is plain or async. MODULE is looked up in the
    current directory, too. The queue is created if it does not exist. While the function runs, its message stays with
    this worker, however long that takes. If the message becomes a dead letter, the last exception is its error.

    On SIGTERM or Ctrl-C the worker finishes the messages it has started, gives back the others, and ends (exit code 0,
    or 130 on Ctrl-C). A second Ctrl-C ends it at once.

    \b
    Example:
      headrace work shop.mail:send orders mailer --concurrency 8
    """  # fmt: skip
    from headrace.log.capabilities import Queues, capability

    run = loaded(function)
    begin = start_of(start)
    if retry_after is not None:
        from headrace.durations import duration_us

        duration_us(retry_after, argument="retry-after", positive=False)
    with opened() as log:
        found = capability(log.topic(topic), Queues).queue(
            queue,
            visibility=visibility,
            max_deliveries=max_deliveries,
            order=order,  # type: ignore[arg-type]
            start=begin,
        )
        worker = Worker(found, run, concurrency, batch, retry_after, stop_when_empty)
        with _stopped_by_signals(worker):
            worker.run()
    note(f"queue {queue} of {topic}: {worker.told()}")
    if worker.problem is not None:
        raise worker.problem
    if worker.interrupted:
        raise KeyboardInterrupt


# -- what to run ---------------------------------------------------------------------------------------


def loaded(name: str) -> Callable[[Message], Any]:
    """The function MODULE:FUNCTION names; wrong usage says what is wrong with it."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise _bad(f"{name!r} is not MODULE:FUNCTION, as in shop.mail:send")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _bad(f"there is no module {error.name!r} here or on PYTHONPATH") from None
        raise _bad(f"{module_name} cannot be imported: {_last_line(error)}") from error
    except SyntaxError as error:
        raise _bad(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise _bad(f"{module_name} cannot be imported: {_last_line(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _bad(f"{module_name} has no {attribute!r}.{nearest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise _bad(f"{name} is not a function, but {type(found).__name__}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise _bad(f"{name} is a generator (it has yield): calling it would do nothing")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise _bad(f"{name} cannot be called with one argument, the message: {error}") from None
    except ValueError:  # it does not tell, as some builtins
        pass
    checked: Callable[[Message], Any] = found
    return checked


def _bad(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="MODULE:FUNCTION")


def _last_line(error: BaseException) -> str:
    import traceback

    return traceback.format_exception_only(error)[-1].strip()


# -- working -------------------------------------------------------------------------------------------


class Worker:
    """Fetches in the main thread, works in others."""

    def __init__(
        self,
        queue: Queue,
        function: Callable[[Message], Any],
        concurrency: int,
        batch: int | None,
        retry_after: str | None,
        stop_when_empty: bool,
    ) -> None:
        self._queue, self._function = queue, function
        self._concurrency, self._batch = concurrency, batch
        self._retry_after, self._stop_when_empty = retry_after, stop_when_empty
        self._visibility = queue.visibility
        self._inbox: local.SimpleQueue[Message | None] = local.SimpleQueue()
        self._held: dict[int, Message] = {}  # by identity: fetched, and not answered
        self._waiting = 0  # of these, those in the inbox
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._ended = threading.Event()
        self._progress = Progress("messages done")
        self.done = self.failed = self.dead = self.late = self.given_back = 0
        self.interrupted = False
        self.problem: BaseException | None = None

    def told(self) -> str:
        parts = [f"{self.done} done", f"{self.failed} failed"]
        parts += [f"{counted(self.dead, 'dead letter')} (headrace dead list)"] if self.dead else []
        parts += [f"{self.late} given to others meanwhile"] if self.late else []
        parts += [f"{self.given_back} given back"] if self.given_back else []
        return ", ".join(parts)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        """From a signal handler or a thread: fetches no more."""
        self._stopping = True
        self._queue.interrupt()

    def run(self) -> None:
        """Until it is stopped, or the queue is empty and that was asked for."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._concurrency)]
        threads.append(threading.Thread(target=self._keep, daemon=True))
        for thread in threads:
            thread.start()
        try:
            with self._progress:
                while not self._stopping and self._fetch():
                    self._progress.show(self.done)
            if self._stopping:
                say(f"stopping: {counted(len(self._held), 'message')} to finish or to give back")
        finally:
            self._give_back()
            for _ in range(self._concurrency):
                self._inbox.put(None)
            for thread in threads[: self._concurrency]:
                while thread.is_alive():  # a second Ctrl-C that another thread of the process takes wakes nobody here
                    thread.join(LOOK_SECONDS)
            self._ended.set()
            threads[-1].join()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _fetch(self) -> bool:
        """More messages, when those there were are begun and somebody is free: a message that only waits here, behind a
        slow one, would be kept from other workers. False when there is nothing left to wait for."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self._waiting and self._free > 0, LOOK_SECONDS)
            count = self._batch or self._free
        if self._stopping or not free:
            return not self._stopping
        found = self._queue.receive(count, wait=WAIT_TO_BE_EMPTY if self._stop_when_empty else WAIT)
        with self._changed:
            self._held |= {id(message): message for message in found}
            self._waiting += len(found)
        for message in found:
            self._inbox.put(message)
        if found or not self._stop_when_empty:
            return True
        stats = self._queue.stats()
        return bool(stats.ready or stats.in_flight or stats.waiting or stats.due)

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._held)

    def _give_back(self) -> None:
        """What was fetched and not begun goes back, as if it had not been delivered."""
        left = []
        while True:
            try:
                message = self._inbox.get_nowait()
            except local.Empty:
                break
            if message is not None:
                left.append(message)
        with self._changed:
            for message in left:
                del self._held[id(message)]
        for message in left:
            try:
                self._queue.give_back([message])
                self.given_back += 1
            except LeaseExpired:
                continue

    def _work(self) -> None:
        while (message := self._inbox.get()) is not None:
            with self._changed:
                self._waiting -= 1
            done = failed = late = 0
            try:
                done, failed = (1, 0) if self._answer(message) else (0, 1)
            except LeaseExpired as error:
                late = 1
                self._progress.clear()
                say(str(error))
            except BaseException as error:  # the log's, not the function's: there is no point in going on
                self.problem = error
                self.stop()
            with self._changed:
                del self._held[id(message)]
                self.done, self.failed, self.late = self.done + done, self.failed + failed, self.late + late
                self._changed.notify()

    def _answer(self, message: Message) -> bool:
        """Whether the function has done it."""
        try:
            result = self._function(message)
            if inspect.isawaitable(result):
                asyncio.run_coroutine_threadsafe(_awaited(result), self._event_loop()).result()
        except BaseException as error:
            said = _last_line(error)
            if not message.answered:
                message.nack(said, delay=self._retry_after)
                with self._changed:
                    self.dead += message.deliveries >= self._queue.max_deliveries
            where = f"{message.topic}/{message.partition} offset {message.offset}"
            self._progress.clear()
            say(harmless(f"{where}, delivery {message.deliveries}: {' '.join(said.split())}"))
            return False
        if not message.answered:
            message.ack()
        return True

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """One for all messages, in a thread of its own."""
        with self._changed:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            return self._loop

    def _keep(self) -> None:
        """Extends the leases of what is held, a few times per visibility."""
        while not self._ended.wait(self._visibility.total_seconds() / EXTENSIONS_PER_VISIBILITY):
            with self._changed:
                held = [message for message in self._held.values() if not message.answered]
            while held:
                try:
                    self._queue.extend(held, self._visibility)
                    break
                except LeaseExpired as error:  # answered just now, or given to somebody else
                    held = [m for m in held if (m.partition, m.offset) != (error.partition, error.offset)]
                except HeadraceError:  # a full disk, say: then others get them when their time has come
                    break


async def _awaited(result: Any) -> Any:
    return await result


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """SIGTERM and the first Ctrl-C stop gracefully; a second one ends what it meets."""

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if worker.stopping:
                os._exit(130)
            worker.interrupted = True
        worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
