"""A full-text index is what its topic says: under any changes, cuts and kills, while it is built again, and when
somebody has touched its file."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import signal
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

import headrace as hr
from headrace import failpoints
from headrace.connect.index import searching, writing
from headrace.connect.index.audit import audit
from headrace.connect.index.searching import Searching
from headrace.connect.index.spec import search_index
from headrace.errors import InvalidArgument, LogDiverged, QueryTimeout, SearchIndexDamaged, TopicReplaced
from tests.connect.conftest import Indexed
from tests.faults.children import Children, ack

POINTS = [point for point in failpoints.KNOWN if point.startswith("index.")]


def test_it_follows_its_topic(indexed: Indexed) -> None:
    indexed.put(1, "Ann", "sells heat pumps & <b>stoves</b>")
    indexed.put(2, "Bob", "oil")
    assert indexed.drain() == 2
    (hit,) = indexed.search("heat pump*").hits
    assert (hit.key, hit.row["about"]) == ([1], "sells heat pumps & <b>stoves</b>")
    marked = [("sells ", False), ("heat", True), (" ", False), ("pumps", True), (" & <b>stoves</b>", False)]
    assert hit.marks == {"name": [("Ann", False)], "about": marked}
    indexed.put(1, "Anna", "retired")
    indexed.delete(2)
    assert indexed.drain() == 2
    assert (indexed.found("heat"), indexed.found("oil"), indexed.found("retired")) == ([], [], [1])
    assert indexed.drain() == 0
    indexed.same()


def test_random_changes_cut_anywhere(indexed: Indexed, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(writing, "CHUNK_ROWS", 7)
    for rounds in range(6):
        indexed.churn(dice, dice.randrange(1, 9))
        monkeypatch.setattr(writing, "ROUND_ROWS", dice.choice((1, 5, 1_000)))
        indexed.drain()
        if rounds % 3 == 2:
            with indexed.writing(anew=True) as opened:
                assert opened.rebuild() == len(indexed.rows)
        indexed.same()


def test_a_transaction_is_seen_whole(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed.put(0, "first")
    indexed.drain()
    monkeypatch.setattr(writing, "CHUNK_ROWS", 10)
    seen = []
    monkeypatch.setattr(writing, "reach", lambda point: seen.append((point, indexed.found("row"))))
    indexed.topic.append([{"_op": "upsert", "id": id, "name": "row"} for id in range(1, 60)])
    assert indexed.drain() == 59
    assert seen == [("index.applied", [])]
    assert len(indexed.found("row")) == 59


def test_two_writers_apply_each_record_once(indexed: Indexed, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are stopped between reading the place and writing: only from there may it move."""
    monkeypatch.setattr(writing, "ROUND_ROWS", 20)
    indexed.drain()
    indexed.churn(random.Random(seed), 60)
    start, taken = threading.Barrier(2), list[int]()

    def work() -> None:
        start.wait()
        taken.append(indexed.drain())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == sum(end.next for end in indexed.topic.ends().values())
    indexed.same()


def index_until_killed(home: str, point: str, skip: int) -> None:
    writing.ROUND_ROWS = 30  # type: ignore[misc]
    writing.CHUNK_ROWS = 9  # type: ignore[misc]
    failpoints.arm(point, "kill", skip=skip)
    indexed = Indexed(Path(home))
    ack("started")
    while True:
        indexed.drain()
        with indexed.writing(anew=True) as opened:
            opened.rebuild()


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere(indexed: Indexed, children: Children, seed: int, point: str) -> None:
    dice = random.Random(seed)
    for skip in (0, 3):
        indexed.churn(dice, 12)
        child = children.start(index_until_killed, str(indexed.home), point, skip)
        assert child.wait() == -signal.SIGKILL
        with contextlib.suppress(SearchIndexDamaged):  # there may be nothing served yet
            audited = audit(indexed.file, indexed.topic)
            assert (audited.differences, audited.words) == ([], "")
        indexed.drain()
        indexed.same()


def test_what_is_served_goes_on_while_another_is_built(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    for id in range(50):
        indexed.put(id, "heat", "pump")
    indexed.drain()
    monkeypatch.setattr(writing, "CHUNK_ROWS", 10)
    other = search_index("users.db", text="about", tokenizer="porter")
    with indexed.writing(other) as opened:
        opened.step()
        with Searching(indexed.file) as found:
            assert (found.status().text, found.status().rebuilding) == (["name", "about"], 10)
        indexed.put(50, "heat", "pumping")
        opened.step()
        assert len(indexed.found("name:heat")) == 51  # by the old one, which is kept up
        while opened.step():
            pass
    with Searching(indexed.file) as found:
        status = found.status()
    assert (status.text, status.tokenizer, status.rows, status.rebuilding) == (["about"], "porter", 51, None)
    assert len(indexed.found("pumped")) == 51 and indexed.found("heat") == []
    assert audit(indexed.file, indexed.topic).ok


def test_a_build_that_was_cut_off_goes_on(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_ROWS", 10)
    for id in range(50):
        indexed.put(id, "heat")
    with indexed.writing() as opened:
        opened.step()
    assert indexed.search("heat").why == "the index is being built"
    assert indexed.drain() == 40


def test_readers_see_one_state_while_it_is_switched(indexed: Indexed) -> None:
    for id in range(30):
        indexed.put(id, "heat")
    indexed.drain()
    done = threading.Event()
    counts = set()

    def read() -> None:
        while not done.is_set():
            counts.add(len(indexed.found("heat")))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        with indexed.writing(anew=True) as opened:
            opened.rebuild()
    done.set()
    reader.join()
    assert counts == {30}


# -- the audit -----------------------------------------------------------------------------------------


def test_the_audit_names_every_key(indexed: Indexed) -> None:
    for id in range(5):
        indexed.put(id, f"name{id}", "heat")
    indexed.drain()
    with contextlib.closing(sqlite3.connect(indexed.file, isolation_level=None)) as db:
        db.execute("UPDATE text_1 SET c1 = 'oil' WHERE rowid = 1")
        db.execute("DELETE FROM text_1 WHERE rowid = 2")
        db.execute("DELETE FROM rows_1 WHERE id = 2")
        db.execute("INSERT INTO rows_1 VALUES (9, '[9]', '{\"id\":9}', 0, 0)")
        db.execute("INSERT INTO text_1 (rowid, c0) VALUES (9, 'ghost')")
    found = audit(indexed.file, indexed.topic)
    assert not found.ok and found.keys == 6
    assert sorted((each.what, each.key == [9]) for each in found.differences) == [
        ("different", False),
        ("extra", True),
        ("missing", False),
    ]
    different = next(each for each in found.differences if each.what == "different")
    assert different.index is not None and different.log is not None
    assert (different.index["about"], different.log["about"]) == ("oil", "heat")
    with indexed.writing(anew=True) as opened:
        opened.rebuild()
    indexed.same()


def test_the_audit_reads_the_words_themselves(indexed: Indexed) -> None:
    for id in range(5):
        indexed.put(id, "heat")
    indexed.drain()
    with contextlib.closing(sqlite3.connect(indexed.file, isolation_level=None)) as db:
        db.execute("UPDATE text_1_content SET c0 = 'oil' WHERE id = 1")  # behind the back of FTS5
        db.execute("UPDATE text_1_content SET c0 = 'heat' WHERE id = 1")
        assert audit(indexed.file, indexed.topic).ok
        db.execute("DELETE FROM text_1_data WHERE id > 10")
    assert "the words of text_1 are not those of its texts" in audit(indexed.file, indexed.topic).words


def test_what_compaction_and_retention_took_is_not_judged(tmp_path: Path) -> None:
    with hr.open_log(tmp_path / "home") as log:
        topic = log.create_topic("kept", "_op string, id int, name string", key="id", cleanup="compact")
        index = search_index(tmp_path / "kept.db", text="name")
        topic.append([{"_op": "upsert", "id": id, "name": "old"} for id in range(4)])
        with contextlib.closing(index.over("kept", log, topic, tmp_path, None)) as opened:
            while opened.step():
                pass
        topic.append([{"_op": "upsert", "id": id, "name": "new"} for id in range(2)])
        log.maintain()  # type: ignore[attr-defined]
        found = audit(Path(index.path), topic)
        assert (found.ok, found.keys) == (True, 4)
        with contextlib.closing(index.over("kept", log, topic, tmp_path, None)) as opened:
            assert opened.rebuild() == 4
        assert audit(Path(index.path), topic).ok


# -- what is over it -------------------------------------------------------------------------------------


def test_records_without_rows_are_rows_of_their_own(tmp_path: Path) -> None:
    with hr.open_log(tmp_path / "home") as log:
        topic = log.create_topic("pages", "page string, n int", key="n")
        topic.append([{"page": "heat pumps", "n": 1}, {"page": "heat", "n": 1}])
        index = search_index("pages.db", text="page")
        with contextlib.closing(index.over("pages", log, topic, tmp_path, None)) as opened:
            while opened.step():
                pass
        with Searching(index.file(tmp_path)) as found:
            assert [hit.key for hit in found.search("heat").hits] == [[0, 1], [0, 0]]  # the shorter text is the better
        assert audit(index.file(tmp_path), topic).ok


def test_what_cannot_be_indexed_is_refused(indexed: Indexed) -> None:
    for columns, why in (("nam", "has no such column"), ("id", "is int in topic 'users', not string")):
        with pytest.raises(InvalidArgument, match=why), indexed.writing(search_index("x.db", text=columns)):
            pass
    for text, more in (((), {}), (["a", "a"], {}), ("a", {"tokenizer": "soundex"}), ("a", {"key": 7})):
        with pytest.raises((InvalidArgument, TypeError)):
            search_index("x.db", text=text, **more)  # type: ignore[arg-type]
    for path in ("..", "a b", ""):
        with pytest.raises(hr.HeadraceError):
            search_index(path, text="a")
    assert search_index("sub/x.db", text="a").file(indexed.home).is_absolute()


def test_a_topic_that_is_another_is_not_mixed_in(indexed: Indexed) -> None:
    indexed.put(1, "heat")
    indexed.drain()
    indexed.log.delete_topic("users")
    again = Indexed(indexed.home)
    again.put(2, "heat")
    with pytest.raises(TopicReplaced), again.writing():
        pass
    assert again.found("heat") == [1]
    with again.writing(anew=True) as opened:
        opened.rebuild()
    assert again.found("heat") == [2]
    again.same()
    again.log.close()


def test_its_file_is_its_owners_and_nobody_elses_is_taken(indexed: Indexed, tmp_path: Path) -> None:
    indexed.put(1, "heat")
    indexed.drain()
    assert stat.S_IMODE(indexed.file.stat().st_mode) == 0o600
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE t (x)")
    text = tmp_path / "text.db"
    text.write_text("no database at all, but long enough to be one" * 30)
    for path in (other, text):
        with pytest.raises(SearchIndexDamaged):
            Searching(path)
        with pytest.raises(SearchIndexDamaged), indexed.writing(search_index(path, text="name")):
            pass


def test_a_search_has_an_end(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed.topic.append([{"_op": "upsert", "id": id, "name": f"heat{id} heat"} for id in range(2_000)])
    indexed.drain()
    with Searching(indexed.file) as found:
        answer = found.search("heat", limit=5)
        assert (len(answer.hits), answer.count, answer.more) == (5, 1_000, True)
        clock = itertools.count()
        monkeypatch.setattr(searching.time, "monotonic", lambda: next(clock))
        with pytest.raises(QueryTimeout):
            found.search("he*", seconds=1)
        monkeypatch.undo()
        assert found.search("heat1999").count == 1  # the same connection goes on
        for bad in ({"limit": 0}, {"limit": 101}, {"skip": -1}, {"skip": 10_001}):
            with pytest.raises(InvalidArgument):
                found.search("heat", **bad)


def test_long_texts_are_not_marked(indexed: Indexed) -> None:
    indexed.put(1, "heat", "heat " * 30_000)
    indexed.drain()
    (hit,) = indexed.search("heat").hits
    assert hit.marks["name"] == [("heat", True)]
    assert [(len(text), marked) for text, marked in hit.marks["about"]] == [(searching.BEGINNING, False)]


def test_an_older_log_is_noticed(indexed: Indexed, tmp_path: Path) -> None:
    """It ends before the index does; then it has other records there."""
    indexed.put(1, "heat")
    hr.backup(indexed.home, tmp_path / "copy")
    indexed.put(2, "heat")
    indexed.put(3, "heat")
    indexed.drain()
    hr.restore(tmp_path / "copy", tmp_path / "older")
    older = Indexed(tmp_path / "older")
    older.file.parent.mkdir()
    shutil.copy(indexed.file, older.file)
    for _ in range(2):
        with pytest.raises(LogDiverged, match="headrace index rebuild users"), older.writing():
            pass
        older.put(4, "oil")
        older.put(5, "oil")
        older.put(6, "oil")
    with older.writing(anew=True) as opened:
        opened.rebuild()
    assert (older.found("heat"), older.found("oil")) == ([1], [4, 5, 6])
    older.log.close()
