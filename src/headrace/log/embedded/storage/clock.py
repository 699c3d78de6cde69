"""Decides whether the clock can be believed. A clock that is years ahead would stamp records with times that no later
record exceeds, and let retention delete everything. Owns the rule and its evidence; `machine_reading` and
`is_synchronised` alone look at the machine, the rest is pure. Does not know the index.

The evidence is the home's newest arrival, and how much time has passed since by a clock that nobody sets: the time
since this boot. After a reboot there is no such evidence, and a long power-off looks like a clock that is ahead: then
records are accepted up to a limit, but retention waits. A clock that the kernel calls synchronised (NTP) is always
believed."""

from __future__ import annotations

import ctypes
import enum
import struct
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

DAY_US = 86_400_000_000
STEP_MAX_US = DAY_US
"""How far the clock may be ahead of the time that has passed in this boot: steps of hours are normal (NTP, a hardware
clock in local time)."""
PAUSE_MAX_US = 30 * DAY_US
"""How long a pause before this boot may be to be believed without further evidence."""
POWER_OFF_MAX_US = 400 * DAY_US
"""How long it may be for records to be taken, while retention waits."""
AHEAD_US = 3_600_000_000
"""A partition this far ahead of the clock is reported."""
AGREE_SECONDS = 60


class Reading(NamedTuple):
    """One look at the clock. `uptime_us` counts from the boot named `boot`, whatever the clock is set to."""

    now_us: int
    boot: str
    uptime_us: int


class Newest(NamedTuple):
    """The home's newest arrival, and the reading's boot and uptime then. `doubted`: it was taken after a pause that no
    evidence confirms."""

    arrived_us: int
    boot: str
    uptime_us: int
    doubted: bool = False


class Verdict(enum.Enum):
    BELIEVED = "believed"
    DOUBTED = "doubted"
    """Records are taken; retention by age waits."""
    REFUSED = "refused"


def _same_boot(newest: Newest, reading: Reading) -> bool:
    """Whether the uptimes are of one boot. One that went back is of another, whatever the boot is called: not every
    system can name it."""
    return reading.boot == newest.boot and reading.uptime_us >= newest.uptime_us


def ahead_us(newest: Newest, reading: Reading) -> int:
    """How far the clock is ahead of the newest arrival and the time that has surely passed since."""
    passed = reading.uptime_us - newest.uptime_us if _same_boot(newest, reading) else 0
    return reading.now_us - newest.arrived_us - passed


def judge(newest: Newest | None, reading: Reading, synchronised: Callable[[int], bool]) -> Verdict:
    """`synchronised` is asked only where the times alone leave a doubt. A new home has nothing to compare with."""
    if newest is None:
        return Verdict.BELIEVED
    ahead, same_boot = ahead_us(newest, reading), _same_boot(newest, reading)
    if not newest.doubted and ahead <= (STEP_MAX_US if same_boot else PAUSE_MAX_US):
        return Verdict.BELIEVED
    if synchronised(reading.now_us):
        return Verdict.BELIEVED
    return Verdict.DOUBTED if ahead <= (STEP_MAX_US if same_boot else POWER_OFF_MAX_US) else Verdict.REFUSED


def newest_after(newest: Newest | None, reading: Reading, verdict: Verdict) -> Newest:
    """With records that arrive at this reading. Arrival never goes back: a clock that is behind does not move it."""
    doubted = verdict is Verdict.DOUBTED
    if newest is not None and reading.now_us <= newest.arrived_us:
        return newest._replace(doubted=doubted)
    return Newest(reading.now_us, reading.boot, reading.uptime_us, doubted)


# -- the machine ---------------------------------------------------------------------------------------

_UPTIME = getattr(
    time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC
)  # both go on while the machine sleeps (macOS: the latter)


def machine_reading(boot: str) -> Reading:
    return Reading(time.time_ns() // 1000, boot, time.clock_gettime_ns(_UPTIME) // 1000)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def is_synchronised(now_us: int) -> bool:
    """Whether the kernel says that its clock is synchronised, and this process's clock agrees with it. False where
    that cannot be known."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return False
    timex = ctypes.create_string_buffer(256)  # struct timex: status at byte 40, seconds at byte 72
    try:
        state = _libc().adjtimex(timex)
    except AttributeError:
        return False
    (status,), (seconds,) = struct.unpack_from("i", timex, 40), struct.unpack_from("q", timex, 72)
    unsynchronised = status & 0x40 or not 0 <= state < 5
    return not unsynchronised and abs(now_us / 1e6 - seconds) <= AGREE_SECONDS
