"""Commands on views in Postgres: `--views`, and what `doctor` says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import commit, counted, counting
from headrace.views.open import open_store
from tests.cli.conftest import Shell
from tests.databases import PostgresServer

pytest.importorskip("psycopg")


def test_commands_read_the_views_of_an_address(postgres: PostgresServer, tmp_path: Path, shell: Shell) -> None:
    address = postgres.schema(tmp_path)
    doctor = {row["check"]: row for row in shell("doctor", "--views", address).rows}
    assert "none yet" in doctor["views"]["found"]
    assert doctor["database"]["found"].startswith("Postgres ") and doctor["database clock"]["state"] == "ok"
    assert doctor["database permissions"]["state"] == "ok"
    assert "there are no views at postgresql://" in shell.refused("query", "SELECT 1", "--views", address)
    with FoldingStore(open_store(address)) as store:
        state = store.begin(counting())
        store.commit(state, commit(state, counted(counting(), [(0, "/", 3)])))
    assert [row["view"] for row in shell("views", "list", "--views", address).rows] == ["clicks"]
    assert shell("query", "SELECT sum(n) AS n FROM clicks", "--views", address).rows == [{"n": 3}]
    doctor = {row["check"]: row for row in shell("doctor", "--views", address).rows}
    assert (doctor["views"]["state"], "1 view" in doctor["views"]["found"]) == ("ok", True)
    wrong = shell("doctor", "--views", "postgresql://ann:canary@127.0.0.1:1/db")
    assert wrong.code == 3 and "canary" not in wrong.text + wrong.err
    assert shell("views", "drop", "clicks", "--yes", "--force", "--views", address).code == 0
    assert shell("views", "list", "--views", address).rows == []


def test_doctor_on_a_user_who_may_not(postgres: PostgresServer, tmp_path: Path, shell: Shell) -> None:
    import psycopg

    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS reader")
        db.execute("CREATE ROLE reader LOGIN")
    address = postgres.schema(tmp_path).replace("headrace@", "reader@")
    done = shell("doctor", "--views", address)
    (found,) = [row for row in done.rows if row["check"] == "database permissions"]
    assert done.code == 3 and found["state"] == "fail" and "AUTHORIZATION reader" in found["do"]
    assert "database user" not in {row["check"] for row in done.rows}
    (found,) = [
        row for row in shell("doctor", "--views", postgres.schema(tmp_path)).rows if row["check"] == "database user"
    ]
    assert found["state"] == "warn" and found["found"].startswith("headrace is a superuser")
    standby = f"{address}&options=-c%20default_transaction_read_only%3Don"
    (found,) = [row for row in shell("doctor", "--views", standby).rows if row["check"] == "database permissions"]
    assert "nothing can be written" in found["found"]
