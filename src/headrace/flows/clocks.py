"""Three clocks: when it happened by the device's clock, when the device sent it by the same clock, and when it was
received by ours. What the last two differ by is the error of the device's clock (and the way), and can be taken off the
first. Column expressions, for transforms."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.durations import Duration, duration_us
from headrace.flows.compiler.partials import column_of


def corrected_time(occurred: Any, sent: Any, received: Any, dead_band: Duration = "1 second") -> Column:
    """occurred + (received - sent): the time of the event by our clock. A difference within `dead_band` is taken for
    the way, and left alone; without `sent` or `received` the time stays as it is."""
    offset, band = _offset_us(sent, received), duration_us(dead_band, argument="dead_band", positive=False)
    happened = column_of(occurred)
    moved = F.timestamp_micros(F.unix_micros(happened) + offset)
    return F.when(F.abs(offset) > F.lit(band), moved).otherwise(happened)


def clock_quality(occurred: Any, sent: Any, received: Any, dead_band: Duration = "1 second") -> Column:
    """What `corrected_time` did: 'kept', 'corrected', or 'unknown' when one of the three is missing."""
    offset, band = _offset_us(sent, received), duration_us(dead_band, argument="dead_band", positive=False)
    known = column_of(occurred).isNotNull() & offset.isNotNull()
    return (
        F.when(~known, F.lit("unknown")).when(F.abs(offset) > F.lit(band), F.lit("corrected")).otherwise(F.lit("kept"))
    )


def _offset_us(sent: Any, received: Any) -> Column:
    return F.unix_micros(column_of(received)) - F.unix_micros(column_of(sent))
