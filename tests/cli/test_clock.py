"""`headrace clock`, and how other commands speak of a clock that is ahead."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli.clock import _facts
from headrace.log.contract import ClockStanding
from tests.cli.conftest import Shell

TEN_YEARS, TEN_MINUTES = timedelta(days=3652), timedelta(minutes=10)


class Clock:
    """This process's clock, which can be set; the time since the boot goes on."""

    def __init__(self) -> None:
        self._ns, self._wrong_by = time.time_ns, timedelta()

    def ns(self) -> int:
        return self._ns() + self._wrong_by // timedelta(microseconds=1) * 1000

    def be_wrong(self, by: timedelta) -> None:
        self._wrong_by = by

    def be_right(self) -> None:
        self._wrong_by = timedelta()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time_ns", clock.ns)
    return clock


def test_a_right_clock(clicks: Shell) -> None:
    (found,) = clicks.ok("clock").rows
    assert (found["verdict"], found["partitions_ahead"]) == ("believed", [])
    assert clicks.ok("clock", "--mend").err == "nothing is ahead of the clock\n"
    assert clicks.ok("topics", "show", "clicks").rows[0]["partitions"][0]["ahead"] is False


def test_a_clock_that_is_behind_by_less_than_it_prints() -> None:
    now = datetime.now(UTC)
    found = _facts(ClockStanding(now, now, timedelta(microseconds=-3), "believed", synchronised=True, partitions=[]))
    assert str(found["ahead_seconds"]) == "0.0"


def test_a_clock_that_is_ahead_is_refused_until_it_is_confirmed(clicks: Shell, clock: Clock) -> None:
    clock.be_wrong(TEN_YEARS)
    assert "headrace clock --confirm" in clicks("produce", "clicks", stdin=b'{"user":"dan"}\n').err
    done = clicks("clock")
    assert done.code == 3
    assert done.rows[0]["verdict"] == "refused"
    doctor = {row["check"]: row for row in clicks("doctor").rows}
    assert (doctor["clock"]["state"], doctor["clock"]["do"]) == ("fail", "set it, or headrace clock --confirm")
    assert "--yes" in clicks("clock", "--confirm").err
    assert clicks.ok("clock", "--confirm", "--yes").rows[0]["verdict"] == "believed"
    clicks.ok("produce", "clicks", stdin=b'{"user":"dan"}\n')


def test_maintain_deletes_nothing_and_does_not_speak_of_damage(clicks: Shell, clock: Clock) -> None:
    clicks.ok("topics", "alter", "clicks", "--retention", "1 day")
    clock.be_wrong(TEN_YEARS)
    done = clicks("maintain")
    assert done.code == 1
    assert done.rows[0]["records_deleted"] == 0
    assert "headrace clock --confirm" in done.err
    assert "damage" not in done.err


def test_partitions_ahead_are_named_and_mended(clicks: Shell, clock: Clock) -> None:
    clock.be_wrong(TEN_YEARS)
    clicks.ok("clock", "--confirm", "--yes")
    clicks.ok("produce", "clicks", stdin=b'{"user":"dan"}\n')
    clock.be_right()
    done = clicks("verify")
    assert (done.code, done.rows[0]["kind"], done.rows[0]["topic"]) == (3, "ahead", "clicks")
    doctor = {row["check"]: row for row in clicks("doctor").rows}
    assert (doctor["clock"]["state"], doctor["clock"]["do"]) == ("fail", "set it, or headrace clock --mend")
    assert doctor["clock"]["found"].startswith("ahead of it: clicks/")
    shown = clicks.ok("topics", "show", "clicks").rows[0]["partitions"]
    assert [each["ahead"] for each in shown].count(True) == 1
    before = clicks.ok("consume", "clicks").rows
    assert "--yes" in clicks("clock", "--mend").err
    (mended,) = clicks.ok("clock", "--mend", "--yes").rows
    assert (mended["topic"], mended["restamped"]) == ("clicks", 1)
    assert clicks.ok("consume", "clicks").rows == before
    clicks.ok("verify")
    assert clicks.ok("clock").rows[0]["partitions_ahead"] == []


def test_doctor_says_that_the_clock_is_behind(clicks: Shell, clock: Clock) -> None:
    clock.be_wrong(-TEN_MINUTES)
    doctor = {row["check"]: row for row in clicks.ok("doctor").rows}
    assert doctor["clock"]["state"] == "warn"
    assert "behind the newest arrival" in doctor["clock"]["found"]


def test_confirm_or_mend(clicks: Shell) -> None:
    done = clicks("clock", "--mend", "--confirm")
    assert done.code == 2
    assert "leave --confirm out" in done.err
