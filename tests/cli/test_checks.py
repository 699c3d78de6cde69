"""`headrace verify` and `headrace doctor`: 3 when something is wrong, and where."""

import os

import pytest

import headrace.cli.checks as checks
from headrace.cli.deployment import beyond, skew
from tests.cli.conftest import Shell


def test_a_sound_log(clicks: Shell) -> None:
    done = clicks.ok("verify")
    assert done.out == b""
    assert done.err.startswith("1 topic, ")
    assert "3 records" in done.err
    assert done.err.endswith("ok\n")


def test_damage_is_found_with_its_place(clicks: Shell) -> None:
    (file,) = [path for path in (clicks.home / "data").iterdir() if path.stat().st_size > 100]
    data = bytearray(file.read_bytes())
    data[data.index(b"cat")] ^= 1
    file.write_bytes(data)
    done = clicks("verify")
    assert done.code == 3
    assert done.rows[0]["kind"] == "problem"
    assert (done.rows[0]["topic"], done.rows[0]["file"]) == ("clicks", file.name)
    assert done.rows[0]["start"] < done.rows[0]["stop"]


def test_an_index_that_cannot_be_opened(clicks: Shell) -> None:
    (clicks.home / "log.db").write_bytes(b"\0" * 8192)
    (clicks.home / "log.db-wal").unlink(missing_ok=True)
    done = clicks("verify")
    assert done.code == 3
    assert done.rows[0]["what"]


def test_data_files_that_are_gone(clicks: Shell) -> None:
    (clicks.home / "data").rename(clicks.home / "gone")
    done = clicks("verify")
    assert done.code == 3
    assert "the data files are gone" in done.rows[0]["what"]
    assert "the data files are gone" in clicks.refused("consume", "clicks")


def test_nothing_to_verify(shell: Shell) -> None:
    assert "there is no log" in shell.refused("verify")


def test_doctor(clicks: Shell) -> None:
    found = {row["check"]: row for row in clicks.ok("doctor").rows}
    assert set(found) == {
        *("python", "sqlite", "pyarrow", "java", "notification"),
        *("file system", "free space", "permissions", "log", "upkeep", "clock", "lost ranges"),
    }
    assert found["permissions"]["state"] == "ok"
    assert "1 topic" in found["log"]["found"]
    assert all(row["do"] for row in found.values() if row["state"] != "ok")


def test_doctor_does_not_warn_of_what_cannot_occur(clicks: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SQLITE_SOUND", (99, 0, 0))  # as if this were Debian's
    (found,) = (row for row in clicks.ok("doctor").rows if row["check"] == "sqlite")
    assert (found["state"], found["do"]) == ("ok", None) and "cannot occur" in found["found"]


def test_doctor_warns_and_fails(clicks: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    clicks.home.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(checks, "FREE_FAIL_BYTES", 1 << 80)
    done = clicks("doctor")
    states = {row["check"]: row["state"] for row in done.rows}
    assert (states["permissions"], states["java"], states["free space"], done.code) == ("warn", "warn", "fail", 3)
    (clicks.home / "data").rename(clicks.home / "gone")
    assert {row["check"]: row["state"] for row in clicks("doctor").rows}["log"] == "fail"


def test_doctor_sees_what_maintain_is_for(clicks: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def upkeep() -> dict[str, str]:
        return next(row for row in clicks.ok("doctor").rows if row["check"] == "upkeep")

    assert upkeep()["state"] == "ok"
    clicks.ok("topics", "create", "other", "x string")
    clicks.ok("produce", "other", stdin=b'{"x": "kept"}')
    clicks.ok("topics", "delete", "clicks", "--yes")
    monkeypatch.setattr(checks, "DEAD_WARN_BYTES", 100)
    assert (upkeep()["state"], upkeep()["do"]) == ("warn", "headrace maintain")
    clicks.ok("maintain")
    assert upkeep()["state"] == "ok"


def test_emptied_ranges_are_not_lost_ones(clicks: Shell) -> None:
    clicks.ok("erase", "clicks", "ann", "--yes")
    assert clicks.ok("verify").out == b""
    assert {row["check"]: row["found"] for row in clicks.ok("doctor").rows}["lost ranges"] == "none"


def test_doctor_asks_for_a_log_that_is_not_in_the_home(shell: Shell) -> None:
    done = shell("doctor", "--log", "kafka://no-port")
    last = done.rows[-1]
    assert (last["check"], last["state"], done.code) == ("log", "fail", 3) and "--log" in last["do"]


def test_doctor_finds_nothing_wrong_with_a_log_on_kafka(shell: Shell, broker: str) -> None:
    address = f"kafka://{broker}?prefix=doctor."
    found = {row["check"]: row for row in shell.ok("doctor", "--log", address).rows}
    assert found["log"]["state"] == "ok" and "0 topics" in found["log"]["found"]
    assert (found["brokers"]["state"], found["brokers"]["found"]) == ("warn", broker)
    assert "--write" in found["broker clock"]["found"] and "broker permissions" not in found
    found = {row["check"]: row for row in shell.ok("doctor", "--write", "--log", address).rows}
    assert (found["broker clock"]["state"], found["broker permissions"]["state"]) == ("ok", "ok")
    assert "s of this machine's clock" in found["broker clock"]["found"]


@pytest.mark.parametrize(
    ("off_us", "state", "said"),
    [(0, "ok", "within 1 s"), (2_000_000, "warn", "2.0 s ahead of"), (-90_000_000, "fail", "90.0 s behind")],
)
def test_a_clock_that_is_off(off_us: int, state: str, said: str) -> None:
    found = skew("clock", "it", beyond(500_000 + off_us, 500_000, 500_000))
    assert found.state == state and said in found.found and (found.do is None) is (state == "ok")


def test_doctor_where_no_home_can_be_made(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_asked: False)  # root may write everywhere
    done = shell("doctor")
    last = done.rows[-1]
    assert (last["check"], last["state"], done.code) == ("home", "fail", 3) and "--home" in last["do"]


def test_doctor_without_a_log(shell: Shell) -> None:
    assert shell.ok("doctor").rows[-1]["check"] == "home"
    assert not shell.home.exists()
