"""Who is let in, and what cannot be done by those who are."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from headrace.errors import InvalidArgument
from headrace.serve import guard, home
from headrace.serve.guard import Door
from headrace.serve.server import STRANGERS_MAX, Server, kept_token
from headrace.views.contract import Column, FlowSpec, Result, SlotColumn, ViewSpec
from headrace.views.reading import Bounds
from headrace.views.sqlite.query_process import QueryProcesses
from headrace.views.sqlite.store import SqliteViews
from tests.serve.conftest import VIEW, Served
from tests.views.committing import Committing

PAGE = {"X-Headrace": "page"}


# -- the token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api/overview", "/api/topics/clicks/records", "/metrics", "/api/openapi.json", "/nothing", "/page"]
)
def test_nothing_without_a_token(shared: Served, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {shared.server.token}"}):
        answer = shared.anonymous.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert shared.anonymous.get(f"{path}?token={shared.server.token}x").status_code == 401


def test_the_pages_frame_is_for_everybody_and_holds_nothing(shared: Served) -> None:
    for path in ("/", "/page/app.js"):
        assert shared.anonymous.get(path).content == shared.client.get(path).content
    assert shared.anonymous.post("/").status_code == 401


def test_health_says_nothing_else(shared: Served) -> None:
    assert shared.anonymous.get("/api/health").json() == {"status": "ok"}


def browser(shared: Served) -> httpx.Client:
    client = httpx.Client(base_url=shared.server.url, follow_redirects=False)
    answer = client.get(f"/?token={shared.server.token}")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"headrace_{shared.server.port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    return client


def test_the_link_becomes_a_cookie(shared: Served) -> None:
    with contextlib.closing(browser(shared)) as client:
        page = client.get("/")
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
        assert client.get("/api/overview").status_code == 200
        assert "Set-Cookie" not in client.get("/?token=wrong").headers
        ours = {"Cookie": f'theirs={{"a": "b;c"}}; headrace_{shared.server.port}={shared.server.token}; =;"'}
        assert shared.anonymous.get("/api/overview", headers=ours).status_code == 200  # cookies of all ports come


def test_a_cookie_alone_changes_nothing(shared: Served) -> None:
    """A page of another site can make the browser send the cookie, but not this header, nor its own origin."""
    ask = {"sql": "select 1"}
    ours = shared.server.url
    with contextlib.closing(browser(shared)) as client:
        assert client.post("/api/query", json=ask).status_code == 403
        assert client.post("/api/query", json=ask, headers={**PAGE, "Origin": "http://evil.example"}).status_code == 403
        assert client.post("/api/query", json=ask, headers={**PAGE, "Origin": "null"}).status_code == 403
        assert client.post("/api/query", json=ask, headers={**PAGE, "Origin": ours}).status_code == 200
        assert client.post("/api/query", json=ask, headers=PAGE).status_code == 200
        assert client.post("/api/dead-letters/0/drop").status_code == 403
        options = client.options("/api/query", headers={"Origin": "http://evil.example"})
        assert "Access-Control-Allow-Origin" not in options.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:{port}", "", "10.0.0.1:{port}"],
)
def test_another_host_is_not_ours(shared: Served, host: str) -> None:
    """A name that somebody's DNS points to this machine, say."""
    for path in ("/api/health", "/api/overview"):
        answer = shared.client.get(path, headers={"Host": host.format(port=shared.server.port)})
        assert answer.status_code == 403 or (not host and answer.status_code == 400), answer.text


@pytest.mark.parametrize("host", ["localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
def test_loopback_is(shared: Served, host: str) -> None:
    assert shared.client.get("/api/topics", headers={"Host": host.format(port=shared.server.port)}).status_code == 200


def test_who_listens_everywhere_is_asked_by_address() -> None:
    door = Door("t" * 20, "0.0.0.0", 80)
    assert all(map(door.knows_host, ["192.168.1.7", "127.0.0.1:80", "localhost", "[fe80::1]"]))
    assert not any(map(door.knows_host, ["evil.example", "192.168.1.7:81", "", ":", "[", "x" * 9999]))
    assert Door("t" * 20, "box.lan", 8321).knows_host("box.lan:8321")


def test_a_token_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = kept_token(path)
    assert len(token) > 40 and kept_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(InvalidArgument, match="others may read it"):
        kept_token(path)
    with pytest.raises(InvalidArgument, match="16 or more"):
        Server(tmp_path, port=0, token="short")
    with pytest.raises(InvalidArgument, match="16 or more"):
        Server(tmp_path, port=0, token="")  # of a file that is empty: another token would be a surprise
    with pytest.raises(InvalidArgument, match=r"not known$"):
        Server(tmp_path, host="256.1.1.1")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        kept_token(tmp_path / "link")


# -- what every answer says ------------------------------------------------------------------------------


def test_headers(shared: Served) -> None:
    answers = [
        shared.client.get("/"),
        shared.client.get("/api/topics"),
        shared.client.get("/api/none"),
        shared.client.put("/api/topics"),
        shared.anonymous.get("/"),
        shared.anonymous.get("/api/topics", headers={"Host": "evil"}),
        shared.client.get("/page/nothing.js"),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 405, 200, 403, 404]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == guard.CSP
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in answer.headers
        assert answer.headers["Cache-Control"] in ("no-store", "no-cache")


def test_files_of_the_page_are_asked_for_again(shared: Served) -> None:
    first = shared.client.get("/page/index.html")
    again = shared.client.get("/page/index.html", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.headers["Cache-Control"], again.status_code) == ("no-cache", 304)


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e%2f%2e%2e%2ferrors.py",
        "/page//etc/passwd",
        "/page/%00",
        "/api/topics/..",
        "/api/topics/%2e%2e",
        "/api/topics/%2e%2e%2f%2e%2e",
        "/api/views/..%2f..%2fetc%2fpasswd/rows",
        "/api/topics/%00/records",
        "/api/views/%ff/changes",
    ],
)
def test_tricks_with_paths(shared: Served, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.server.port, timeout=10)  # sends the path as it is
    connection.request("GET", path, headers={"Authorization": f"Bearer {shared.server.token}"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status in (400, 404), body
    assert b"import" not in body and b"root:" not in body
    connection.close()


# -- how much can be sent --------------------------------------------------------------------------------


def test_a_large_request_is_refused(shared: Served) -> None:
    for path in ("/api/topics/clicks/records", "/api/query"):
        answer = shared.client.post(path, content=b"x" * (guard.BODY_BYTES_MAX + 1))
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "TooLarge")


def test_a_large_request_that_does_not_say_so_is_refused(shared: Served) -> None:
    """In pieces, without a length: it is counted while it comes."""
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1 << 20
            yield b" " * (1 << 20)

    try:
        answer = shared.client.post(
            "/api/topics/clicks/records", content=pieces(), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the door was closed before all was sent
    assert sent < 64 << 20
    assert shared.clicks.describe().records == 0


def test_a_request_that_does_not_come_is_not_waited_for(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", shared.server.port), timeout=10) as stalled:
        head = f"POST /api/query HTTP/1.1\r\nHost: 127.0.0.1:{shared.server.port}\r\nContent-Length: 100\r\n"
        stalled.sendall(f"{head}Authorization: Bearer {shared.server.token}\r\n\r\n{{".encode())
        assert stalled.recv(1000).startswith(b"HTTP/1.1 408")


def test_who_only_connects_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.server.HEAD_SECONDS", 0.2)
    with Server(tmp_path / "home", port=0) as server:
        head = f"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
        for sent, answers in ((b"", 0), (head, 0), (head + b"\r\n" + head, 1), (head + b"\r\n", 1)):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(sent)
                said = b"".join(iter(lambda: connection.recv(10_000), b""))
                assert said.count(b"200 OK") == answers
        listening = {"Authorization": f"Bearer {server.token}"}
        with httpx.stream("GET", f"{server.url}/api/overview/events", headers=listening) as stream:
            time.sleep(1)  # as long as somebody listens, it is open
            assert next(stream.iter_lines()) == "event: overview" and not stream.is_closed


def test_strangers_who_only_connect_take_nobodys_place(shared: Served) -> None:
    """Nor the descriptors of the process, which runs flows perhaps."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as strangers:
        came = [
            strangers.enter_context(socket.create_connection(("127.0.0.1", shared.server.port), timeout=10))
            for _ in range(1_300)
        ]
        began = time.monotonic()
        assert shared.client.get("/api/topics").status_code == 200
        with contextlib.closing(browser(shared)) as owner:
            assert owner.get("/api/overview").status_code == 200
        assert time.monotonic() - began < 5
        until(lambda: sum(map(is_open, came)) <= STRANGERS_MAX)


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_who_has_shown_the_token_is_no_stranger(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of those who have not goes."""
    monkeypatch.setattr("headrace.serve.server.NEWCOMERS_MAX", 1)
    before = place_of(shared.client)
    strangers = [socket.create_connection(("127.0.0.1", shared.server.port), timeout=10) for _ in range(3)]
    until(lambda: [is_open(stranger) for stranger in strangers] == [False, False, True])
    assert place_of(shared.client) == before, "the same connection"
    for stranger in strangers:
        stranger.close()


def place_of(client: httpx.Client) -> object:
    return client.get("/api/topics").extensions["network_stream"].get_extra_info("client_addr")


def test_no_more_at_a_time_than_are_served(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REQUESTS_MAX", 2)
    with contextlib.ExitStack() as listening:
        for _ in range(2):
            stream = httpx.stream("GET", f"{shared.server.url}/api/overview/events", headers=shared.client.headers)
            assert listening.enter_context(stream).status_code == 200
        answer = shared.client.get("/api/topics")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Busy")
        assert answer.headers["Content-Security-Policy"] == guard.CSP
    limit = time.monotonic() + 10
    while shared.client.get("/api/topics").status_code != 200:
        assert time.monotonic() < limit, "who has gone makes room"
        time.sleep(0.05)


# -- SQL -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        f"delete from {VIEW}",
        "insert into _meta values ('a', 'b')",
        "update _flows set epoch = 99",
        "create table t (a)",
        "create temp table t (a)",
        "drop table _flows",
        "attach '/tmp/headrace-evil.db' as evil",
        "vacuum into '/tmp/headrace-evil.db'",
        "pragma writable_schema = 1",
        "pragma journal_mode = delete",
        "select load_extension('evil')",
        "select writefile('/tmp/headrace-evil', 'x')",
        "select readfile('/etc/passwd')",
        "begin exclusive",
        "select 1; drop table _flows",
        "with x as (select 1) delete from _flows",
        "reindex",
        "analyze",
        "select * from pragma_database_list",
        "select fts3_tokenizer('simple')",
        "",
        "\0",
        "select '\ud800'".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    ],
)
def test_sql_only_reads(shared: Served, sql: str) -> None:
    before = shared.get(f"/api/views/{VIEW}")
    answer = shared.client.post("/api/query", json={"sql": sql})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200:
        assert sql.startswith("select '")
    assert not Path("/tmp/headrace-evil.db").exists() and not Path("/tmp/headrace-evil").exists()
    assert shared.get(f"/api/views/{VIEW}") == before


ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) "


@pytest.mark.parametrize(
    "sql",
    [
        "select zeroblob(1000000000)",
        "select length(zeroblob(1000000000))",
        "select hex(zeroblob(200000))",
        "select printf('%.*c', 1000000000, 'x')",
        "select replace(hex(zeroblob(500000)), '0', 'xxxxxxxxxx')",
        "select group_concat(hex(zeroblob(1000))) from (" + ENDLESS + "select i from n limit 100000)",
        "select json_group_array(hex(zeroblob(1000))) from (" + ENDLESS + "select i from n limit 100000)",
        f"select '{'x' * 2000}' like '{'%x' * 1000}'",
    ],
)
def test_values_are_bounded(shared: Served, sql: str) -> None:
    began = time.monotonic()
    assert shared.query(sql, 400)["error"]["type"] == "InvalidQuery"
    assert time.monotonic() - began < 5


def test_a_row_of_many_columns_is_bounded(shared: Served) -> None:
    many = ["hex(zeroblob(50000))"] * 2000
    assert shared.query(f"select {', '.join(many)}", 400)["error"]["type"] == "InvalidQuery"
    assert len(shared.query("select hex(zeroblob(50000)), ?", params=[1])["rows"][0][0]) == 100_000


@pytest.mark.parametrize("text", ["/* ", "[", "`"])
def test_a_comment_without_an_end_takes_no_time(shared: Served, text: str) -> None:
    began = time.monotonic()
    assert shared.query("select null /* " + text * (60_000 // len(text)))["rows"] == [[None]]
    assert time.monotonic() - began < 5


def test_decimals_that_are_none(served: Served) -> None:
    spec = ViewSpec(
        name="sales",
        groups=(Column("page", "string"),),
        slots=(SlotColumn("amount", "decimal(10,2)", "greatest"),),
        results=(Result("amount", "decimal(10,2)", ("amount",)),),
        window_us=None,
    )
    with Committing(served.home, FlowSpec("sales", "shop", ("clicks",), spec)):
        assert "InvalidOperation" not in served.query("select amount from sales union all select 'x'", 400)["error"]
        for text in ("Infinity", "NaN", "1e100", "1e60"):
            assert served.query(f"select amount from sales union all select '{text}'")["rows"]


def test_what_is_refused_is_said_once(shared: Served) -> None:
    assert shared.query("begin", 400)["error"]["message"].count("'begin'") == 1


def test_results_are_bounded(shared: Served) -> None:
    cut = shared.query(ENDLESS + "select hex(zeroblob(100000)) from n limit 1000")
    assert cut["truncated"] and sum(len(row[0]) for row in cut["rows"]) <= 16 << 20


def test_slow_queries_are_stopped_and_others_told_to_come_again(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        home.Home, "bounds", lambda _self, **less: home.Bounds(**{"seconds": 1.0, "stop": lambda: False, **less})
    )
    found: list[int] = []

    def ask() -> None:
        answer = shared.client.post("/api/query", json={"sql": ENDLESS + "select sum(i) from n"})
        found.append(answer.status_code)

    asking = [threading.Thread(target=ask) for _ in range(home.QUERIES + 3)]
    for thread in asking:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert shared.client.get("/api/topics").status_code == 200  # beside them
    assert time.monotonic() - began < 2
    for thread in asking:
        thread.join()
    assert sorted(found) == [503] * 3 + [504] * home.QUERIES
    assert shared.query("select 1")["rows"] == [[1]]


def nested(depth: int) -> str:
    """Each table reads the one before it twice: SQLite writes out 2^depth of them before the first step is run."""
    tables = [f"c{n} as (select a.x from c{n - 1} a, c{n - 1} b)" for n in range(1, depth + 1)]
    return f"with c0 as (select 1 x), {', '.join(tables)} select * from c{depth}"


def chained(depth: int) -> str:
    """Each of 2,000 columns is looked up at each depth: it takes seconds, and little memory."""
    columns = ", ".join(f"1 x{n}" for n in range(2_000))
    tables = [f"c{n} as (select * from c{n - 1} limit 1)" for n in range(1, depth + 1)]
    return f"with c0 as (select {columns}), {', '.join(tables)} select x1 from c{depth}"


def test_sql_that_needs_much_memory_to_prepare_is_refused(shared: Served) -> None:
    before_mb, began = peak_mb(), time.monotonic()
    refused = shared.query(nested(30), 400)["error"]
    assert refused["type"] == "InvalidQuery" and "128 MiB of memory" in refused["message"]
    assert time.monotonic() - began < 8  # a billion tables would take hours
    assert peak_mb() - before_mb < 50, "the server itself spends nothing on it"
    assert shared.query("select 1")["rows"] == [[1]]


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_sql_that_takes_long_to_prepare_is_stopped(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.query("select 1")  # what starts with the first query has started
    with monkeypatch.context() as patched:
        patched.setattr(home.Home, "bounds", lambda _self, **less: home.Bounds(**{"seconds": 0.3, **less}))
        began = time.monotonic()
        assert shared.query(chained(150), 504)["error"]["type"] == "QueryTimeout"
        assert time.monotonic() - began < 4
    assert shared.query("select 1")["rows"] == [[1]]


def test_queries_end_with_the_server(tmp_path: Path) -> None:
    SqliteViews(tmp_path).close()
    before = set(children(os.getpid()))
    with Server(tmp_path, port=0) as server:
        token = {"Authorization": f"Bearer {server.token}"}
        ask = threading.Thread(
            target=httpx.post,
            args=(f"{server.url}/api/query",),
            kwargs={"json": {"sql": ENDLESS + "select sum(i) from n"}, "headers": token, "timeout": 30},
        )
        ask.start()
        until(lambda: bool(set(children(os.getpid())) - before))
    ask.join(5)
    assert not ask.is_alive() and set(children(os.getpid())) == before


def test_a_process_for_queries_that_was_killed_is_not_asked(tmp_path: Path) -> None:
    SqliteViews(tmp_path).close()
    with contextlib.closing(QueryProcesses(tmp_path)) as queries:
        for _ in range(2):
            assert queries.bounded("select 1 as n", bounds=Bounds())[0].to_pylist() == [{"n": 1}]
            (process,) = queries._idle
            os.kill(process._process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, process._process.pid, os.WEXITED | os.WNOWAIT)


def test_queries_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headrace.views.sqlite import query_process as apart\n"
        "process = apart.QueryProcesses(Path(sys.argv[1]))._taken(); print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"begun\n"
        (child,) = children(running.pid)
        running.kill()
    until(lambda: not Path(f"/proc/{child}").exists())


def until(there: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not there():
        assert time.monotonic() < limit
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


# -- errors ----------------------------------------------------------------------------------------------


def test_an_error_of_ours_tells_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.api.group_facts", lambda *_: 1 / 0)
    with served.clicks.group("billing").join():
        answer = served.client.get("/api/groups")
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "type": "InternalError",
        "message": "the server failed to answer this; its log says why.",
        "facts": {},
    }
    assert "ZeroDivision" not in answer.text
    assert answer.headers["Content-Security-Policy"] == guard.CSP


def test_no_file_of_the_home_is_open_to_others(served: Served) -> None:
    served.get("/api/overview")
    for folder, _, files in os.walk(served.home):
        for name in files:
            assert not stat.S_IMODE((Path(folder) / name).stat().st_mode) & 0o077, name
