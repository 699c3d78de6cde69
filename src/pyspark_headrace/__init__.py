"""Spark looks for data sources in packages called `pyspark_…`: this one makes `format("headrace")` known without
registration. Owns nothing; the source is `headrace.flows.source.datasource`, imported when Spark asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.flows.source.datasource import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from headrace.flows.source.datasource import HeadraceSource

        return HeadraceSource
    raise AttributeError(f"module 'pyspark_headrace' has no attribute {name!r}")
