"""What only a process has: exit codes, pipes, signals, a terminal, the cost of starting."""

import json
import os
import pty
import resource
import select
import signal
import subprocess
import time
from pathlib import Path

import headrace as hr
from tests.cli.conftest import COMMAND, SECONDS_MAX, Shell, Spawner, environment


def test_exit_codes_and_one_line(clicks: Shell, spawn: Spawner) -> None:
    assert spawn.done("topics", "list").code == 0
    refused = spawn.done("topics", "show", "nothing")
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, b"", 1)
    assert spawn.done("topics", "list", "--nonsense").code == 2
    assert spawn.done("nonsense").code == 2
    assert "Did you mean 'produce'" in spawn.done("produc").err
    assert "There are: demo, new, topics, produce," in " ".join(spawn.done("foo").err.split())
    missing = spawn.done("run", "nothing.py")
    assert missing.code == 2 and "there is no file 'nothing.py'" in missing.err and "starting" not in missing.err
    del clicks


def test_closed_and_full_streams(clicks: Shell) -> None:
    def shell(line: str) -> tuple[int, str]:
        text = line.replace("headrace", " ".join(COMMAND))
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=SECONDS_MAX)
        return done.returncode, done.stderr

    assert shell("headrace produce clicks <&-") == (0, "0 records appended to clicks\n")
    assert shell("headrace topics list >&-") == (0, "")
    assert shell("headrace topics show nothing 2>&-") == (1, "")
    assert shell("headrace consume clicks >/dev/full") == (1, "headrace: No space left on device\n")
    assert shell("headrace --help | true") == (0, "")
    del clicks


def cpu_seconds(command: list[str], env: dict[str, str]) -> float:
    """User and system time of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=SECONDS_MAX)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_listing_topics_is_cheap(clicks: Shell, tmp_path: Path) -> None:
    """Under 150 ms of CPU, the whole process, with compiled modules, as they are after the first run. Where cores are
    shared, CPU time stretches: then it is under thrice what Python and click alone take in the same minute."""
    env = environment(PYTHONPYCACHEPREFIX=str(tmp_path / "pyc"))
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    loaded = (
        "import sys; from headrace.cli import run; run(['topics', 'list']);"
        "print([m for m in ('pyarrow', 'numpy', 'rich', 'watchfiles') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([COMMAND[0], "-c", loaded], env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.stderr.splitlines()[-1] == "[]"
    costs, yardsticks = [], []
    for _ in range(5):
        yardsticks.append(cpu_seconds([COMMAND[0], "-c", "import click"], env))
        costs.append(cpu_seconds([*COMMAND, "topics", "list"], env))
        if min(costs) < 0.150:
            break
    assert min(costs) < max(0.150, 3 * min(yardsticks)), (costs, yardsticks)
    del clicks


def test_a_closed_pipe_is_quiet(shell: Shell, spawn: Spawner) -> None:
    shell.ok("topics", "create", "n", "x string")
    with hr.open_log(shell.home) as log:
        log.topic("n").append([{"x": "y" * 200}] * 20_000)
    reader = spawn("consume", "n")
    assert reader.stdout is not None
    assert reader.stdout.readline().startswith(b'{"x":"yyy')
    reader.stdout.close()
    assert reader.wait(SECONDS_MAX) == 0
    assert reader.stderr is not None
    assert reader.stderr.read() == b""


def test_a_follower_ends_with_its_reader(clicks: Shell, spawn: Spawner) -> None:
    reader = spawn("consume", "clicks", "--follow")
    assert reader.stdout is not None and reader.stderr is not None
    for _ in range(3):
        assert reader.stdout.readline()
    reader.stdout.close()  # no record comes any more
    assert reader.wait(SECONDS_MAX) == 0
    assert reader.stderr.read() == b""
    del clicks


def test_records_that_were_not_printed_are_not_committed(shell: Shell, spawn: Spawner) -> None:
    shell.ok("topics", "create", "n", "x int, pad string")
    with hr.open_log(shell.home) as log:
        log.topic("n").append([{"x": i, "pad": "p" * 300} for i in range(30_000)])
    reader = spawn("consume", "n", "--group", "g")
    assert reader.stdout is not None
    first = json.loads(reader.stdout.readline())
    reader.stdout.close()
    assert (first["x"], reader.wait(SECONDS_MAX)) == (0, 0)
    with hr.open_log(shell.home) as log:
        group = log.topic("n").group("g")
        assert group.members() == []  # it left
        assert group.committed().get(0, 0) == 0
    assert len(spawn.done("consume", "n", "--group", "g").rows) == 30_000


def test_a_member_takes_over_from_one_that_was_killed(clicks: Shell, spawn: Spawner) -> None:
    first = spawn("consume", "clicks", "--group", "g", "--follow", "--lease", "1 second")
    assert first.stdout is not None
    for _ in range(3):
        assert first.stdout.readline()
    first.kill()
    first.wait()
    clicks.ok("produce", "clicks", stdin=b'{"user":"new","ms":1,"at":"2026-01-01T00:00:00Z"}')
    rest = spawn.done("consume", "clicks", "--group", "g")  # waits for the lease to run out, then for nothing
    assert rest.code == 0
    assert rest.rows[-1]["user"] == "new"  # the three before were committed, or are printed again: at least once
    assert clicks.ok("groups", "list").rows[0]["lag_records"] == 0


def test_following_is_woken_and_stops_on_signals(clicks: Shell, spawn: Spawner) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        group = f"g{code}"
        follower = spawn("consume", "clicks", "--group", group, "--follow")
        assert follower.stdout is not None and follower.stderr is not None
        for _ in range(3):
            assert follower.stdout.readline()
        clicks.ok("produce", "clicks", stdin=b'{"user":"new","ms":1,"at":"2026-01-01T00:00:00Z"}')
        assert b'"new"' in follower.stdout.readline()
        with hr.open_log(clicks.home) as log:
            handle = log.topic("clicks").group(group)
            ends = {number: at.next for number, at in log.topic("clicks").offsets().items()}
            deadline = time.monotonic() + SECONDS_MAX
            while handle.committed() != ends:  # printed first, committed right behind
                assert time.monotonic() < deadline
            follower.send_signal(number)
            assert follower.wait(SECONDS_MAX) == code
            assert handle.members() == []
        assert follower.stderr.read().strip() == b""
        assert clicks.ok("consume", "clicks", "--group", group).out == b""
        with hr.open_log(clicks.home) as log:
            log.delete_topic("clicks")
        clicks.ok("topics", "create", "clicks", "user string, ms int, at timestamp", "--key", "user")
        clicks.ok("produce", "clicks", stdin=b'{"user":"a"}\n{"user":"b"}\n{"user":"c"}')


def test_what_is_sent_into_a_pipe_is_appended_at_once(clicks: Shell, spawn: Spawner) -> None:
    producer = spawn("produce", "clicks", stdin=subprocess.PIPE)
    assert producer.stdin is not None
    with hr.open_log(clicks.home) as log:
        records = log.topic("clicks").records("latest", follow=True, timeout="50 seconds")
        producer.stdin.write(b'{"user":"now","ms":1,"at":"2026-01-01T00:00:00Z"}\n')
        producer.stdin.flush()
        assert next(records).value["user"] == "now"  # although the pipe is still open
    producer.stdin.close()
    producer.stdin = None
    assert producer.wait(SECONDS_MAX) == 0


def test_a_pipe_between_two_topics(clicks: Shell, spawn: Spawner) -> None:
    clicks.ok("topics", "create", "copy", "user string, ms int, at timestamp", "--key", "user", "--partitions", "3")
    source = spawn("consume", "clicks")
    assert spawn.done("produce", "copy", stdin=source.stdout).code == 0
    assert sorted(clicks.ok("consume", "copy").out.splitlines()) == sorted(
        clicks.ok("consume", "clicks").out.splitlines()
    )


# -- a terminal ----------------------------------------------------------------------------------------


def on_terminal(*args: str, answer: bytes = b"", **changes: str) -> tuple[int, bytes]:
    """Runs a command on a terminal of its own; its exit code and everything it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(COMMAND[0], [*COMMAND, *args], environment(TERM="xterm-256color", COLUMNS="100", **changes))
    shown = b""
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            if not select.select([fd], [], [], 1)[0]:
                continue
            try:
                chunk = os.read(fd, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
            if answer and b"Go on?" in shown:
                os.write(fd, answer)
                answer = b""
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_tables_on_a_terminal(clicks: Shell) -> None:
    code, shown = on_terminal("topics", "list")
    assert code == 0
    assert b"\x1b[1mtopic" in shown
    assert b"{" not in shown
    code, shown = on_terminal("topics", "list", NO_COLOR="1")
    assert code == 0
    assert b"clicks" in shown
    assert b"\x1b[3" not in shown
    code, shown = on_terminal("consume", "clicks")
    assert shown.count(b"2026-01-01T00:00:0") == 3
    assert on_terminal("topics", "list", "--format", "arrow")[0] == 2
    del clicks


def test_brokers_that_do_not_answer_are_not_waited_for_in_silence() -> None:
    code, shown = on_terminal("topics", "list", "--log", "kafka://127.0.0.1:1")
    assert code == 1 and b"asking kafka://127.0.0.1:1" in shown and b"Connection refused" in shown


def test_json_on_a_terminal_is_harmless_and_still_json(shell: Shell) -> None:
    shell.ok("topics", "create", "a", "s string")
    shell.ok("produce", "a", stdin=b'{"s":"\\u001b[31m\xc2\x9b31m\xe2\x80\xae"}')
    code, shown = on_terminal("consume", "a", "--format", "json")
    assert code == 0
    assert json.loads(shown) == {"s": "\x1b[31m\x9b31m\u202e"}
    assert b"\x1b" not in shown and b"\xc2\x9b" not in shown and b"\xe2\x80\xae" not in shown


def test_asking_before_deleting(clicks: Shell) -> None:
    code, shown = on_terminal("topics", "delete", "clicks", answer=b"n\n")
    assert (code, b"Nothing was done" in shown) == (1, True)
    assert on_terminal("topics", "delete", "clicks", answer=b"y\n")[0] == 0
    assert clicks.ok("topics", "list").out == b""


# -- completion ----------------------------------------------------------------------------------------


def completed(*words: str, **changes: str) -> list[str]:
    env = environment(
        _HEADRACE_COMPLETE="bash_complete", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1), **changes
    )
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_names_are_completed(clicks: Shell, spawn: Spawner) -> None:
    clicks.ok("consume", "clicks", "--group", "billing")
    assert completed("headrace", "pro") == ["produce"]
    assert completed("headrace", "topics", "sh") == ["show"]
    assert completed("headrace", "topics", "show", "cl") == ["clicks"]
    assert completed("headrace", "consume", "clicks", "--group", "b") == ["billing"]
    assert completed("headrace", "groups", "show", "b") == ["billing"]
    assert completed("headrace", "--home", str(clicks.home), "consume", "c", HEADRACE_HOME="/nowhere") == ["clicks"]
    assert completed("headrace", "topics", "show", "", HEADRACE_HOME="/nowhere") == []
    for shell, word in (("bash", "complete -o nosort"), ("zsh", "#compdef headrace"), ("fish", "complete --no-files")):
        assert word in spawn.done("completion", shell).out.decode()
