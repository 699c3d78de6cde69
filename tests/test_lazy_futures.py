"""A row's future is a `concurrent.futures.Future` to everyone who looks: waits, callbacks, cancelling, asyncio."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, TimeoutError, as_completed, wait

import pytest

from headrace.log.futures import LazyFuture, resolve


def later(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Timer(0.02, work)
    thread.start()
    return thread


def test_a_result_and_an_error_nobody_waited_for() -> None:
    one, two = LazyFuture[int](), LazyFuture[int]()
    resolve([one], 7)
    resolve([two], ValueError("no"))
    assert isinstance(one, Future) and one.done() and not one.running()
    assert one.result(timeout=0) == 7 and one.exception(timeout=0) is None
    assert isinstance(two.exception(timeout=0), ValueError)
    with pytest.raises(ValueError, match="no"):
        two.result()
    assert "state=finished returned int" in repr(one)


def test_whoever_waits_is_woken() -> None:
    futures = [LazyFuture[int]() for _ in range(3)]
    thread = later(lambda: resolve(futures, 7))
    assert [future.result(timeout=10) for future in futures] == [7, 7, 7]
    thread.join()


def test_waiting_has_an_end() -> None:
    with pytest.raises(TimeoutError):
        LazyFuture[int]().result(timeout=0.001)


def test_wait_and_as_completed() -> None:
    early, late = LazyFuture[int](), LazyFuture[int]()
    resolve([early], 1)
    done, pending = wait([early, late], return_when=FIRST_COMPLETED, timeout=10)
    assert (done, pending) == ({early}, {late})
    thread = later(lambda: resolve([late], 2))
    assert [future.result() for future in as_completed([late], timeout=10)] == [2]
    thread.join()


def test_callbacks_before_and_after() -> None:
    seen: list[object] = []
    before, after = LazyFuture[int](), LazyFuture[int]()
    before.add_done_callback(lambda future: seen.append(("before", future.result())))
    resolve([before, after], 7)
    after.add_done_callback(lambda future: seen.append(("after", future.result())))
    assert seen == [("before", 7), ("after", 7)]


def test_a_cancelled_one_stays_cancelled() -> None:
    cancelled, other = LazyFuture[int](), LazyFuture[int]()
    assert cancelled.cancel()
    resolve([cancelled, other], 7)
    assert cancelled.cancelled() and other.result() == 7 and not other.cancel()
    with pytest.raises(CancelledError):
        cancelled.result()


def test_an_event_loop_may_await_it() -> None:
    async def main() -> int:
        future = LazyFuture[int]()
        thread = later(lambda: resolve([future], 7))
        result = await asyncio.wrap_future(future)
        thread.join()
        return result

    assert asyncio.run(main()) == 7


def test_no_waiter_is_ever_too_late() -> None:
    """Threads begin to wait while others resolve: all get the result."""
    for _ in range(200):
        futures = [LazyFuture[int]() for _ in range(8)]
        found: list[int] = []
        waiters = [threading.Thread(target=lambda f=f, to=found: to.append(f.result(timeout=10))) for f in futures]
        resolver = threading.Thread(target=resolve, args=(futures, 7))
        for thread in [*waiters[:4], resolver, *waiters[4:]]:
            thread.start()
        for thread in [*waiters, resolver]:
            thread.join()
        assert found == [7] * 8
