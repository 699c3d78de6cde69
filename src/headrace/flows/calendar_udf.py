"""Calendar windows in Spark: no expression of Spark's says where the days of a time zone begin as `windows` does, so
Python is asked, with two numbers a record. A module of its own because Spark reads the types of the function's
arguments, and pandas takes time to load."""

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]

from headrace.windows import Calendar


def judged(window: Calendar, time: Column, progress: Column, grace_us: int, within_us: int) -> Column:
    """As `Calendar.judged`, a struct of its three names. Neither column may have nulls: they would become doubles."""

    def ask(event: pd.Series, reached: pd.Series) -> pd.DataFrame:
        return pd.DataFrame(window.judged(event.to_numpy(), reached.to_numpy(), grace_us, within_us)._asdict())

    asked: Column = pandas_udf(ask, "pane bigint, dropped bigint, late bigint")(time, progress)
    return asked
