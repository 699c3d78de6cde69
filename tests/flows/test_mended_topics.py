"""Views of a topic that a wrong clock has written to: they drop what comes after, and are right once the topic is
mended and they are made anew."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

TEN_YEARS = timedelta(days=3652)


def program(home: Path, spark: Any) -> hr.App:
    app = hr.App("tests", home=home, spark=spark)
    events = app.topic("events", "word string, at timestamp", event_time="at")
    app.stream(events).window(hr.tumbling("1 hour"), late=hr.drop()).group_by("word").agg(n=hr.count()).to_view("words")
    return app


def counts(app: hr.App) -> dict[str, int]:
    rows = app.view("words").to_arrow().to_pylist()
    return {word: sum(row["n"] for row in rows if row["word"] == word) for word in sorted({r["word"] for r in rows})}


def test_views_of_a_mended_topic_are_made_anew(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now, now_ns = datetime.now(UTC), time.time_ns
    with program(tmp_path, spark) as app:
        events = app.log.topic("events")
        events.append({"word": "before", "at": now})
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time_ns", lambda: now_ns() + TEN_YEARS // timedelta(microseconds=1) * 1000)
            app.log.confirm_clock()
            events.append({"word": "poison", "at": now + TEN_YEARS})
        events.append({"word": "after", "at": now})
        app.drain()
        assert counts(app) == {"before": 1, "poison": 1}  # after: dropped, as all that would ever come
        app.log.mend()
    with program(tmp_path, spark) as app:
        with pytest.raises(hr.TopicReplaced):
            app.drain()
        app.rebuild("words").switch()
        app.drain()
        assert counts(app) == {"after": 1, "before": 1}
        assert app.audit().differences == []
