"""How flows do, as `app.status()`, the command line, the page and the metrics say it. Values only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.rendering import html_table

if TYPE_CHECKING:
    from headrace.log.capabilities import OpenTransaction
    from headrace.views.kept import Kept

__all__ = ["AppStatus", "FlowStatus"]


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """How a flow does. `lag`: records of its topics that it does not have yet, through the flows before it. `rate`:
    records a second, lately. `read`: offsets of these topics that it has, by any runner. `committing_seconds`: how long
    the commit that is being made has taken. `spark_jobs`, `spark_tasks`, `spark_seconds`: what Spark ran for the flow
    in this process, and how long the flow waited for it; over Spark Connect tasks are not known. `driver_batches`:
    batches computed on the driver, without a Spark job."""

    flow: str
    state: str
    rows: int
    batches: int
    rate: float
    batch_seconds: float
    lag: int
    frontier: datetime | None
    dead: int
    restarts: int
    error: str
    read: int = 0
    committing_seconds: float = 0.0
    spark_jobs: int = 0
    spark_tasks: int = 0
    spark_seconds: float = 0.0
    driver_batches: int = 0
    kept: tuple[Kept, ...] = ()
    """Of a join, or a flow behind one: what is kept of each input."""
    held: tuple[OpenTransaction, ...] = ()
    """On Kafka: transactions of others that did not end, behind which its topics cannot be read."""


class AppStatus(list[FlowStatus]):
    """One for each flow; a table in a notebook."""

    def _repr_html_(self) -> str:
        names = [field.name for field in fields(FlowStatus)]
        return html_table("status", names, [[getattr(each, name) for name in names] for each in self])
