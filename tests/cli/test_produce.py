"""`headrace produce`: good records go in, bad lines are told and left out, nothing is changed in silence."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.formats import files
from tests.cli.conftest import Shell

EVERY_TYPE = (
    "id bigint, t tinyint, s string, d decimal(38, 18), b binary, f float, g double, m map<int, string>, "
    "n map<string, array<double>>, a array<struct<x: int, y: date, z: binary>>, at timestamp, local timestamp_ntz, "
    "day date, ok boolean, big decimal(38, 0)"
)
EVERY_VALUE = [
    b'{"id":9223372036854775807,"t":-128,"s":"\\u001b \\u2028 \\ud83d\\ude00\\n","d":"0.000000000000000001",'
    b'"b":"AAH/","f":"NaN","g":"-Infinity","m":[[1,"x"],[-2,null]],"n":{"a":["NaN",1.5,null],"":[]},'
    b'"a":[{"x":1,"y":"0001-01-01","z":""},null,{"x":null,"y":null,"z":"/w=="}],"at":"9999-12-31T23:59:59.999999Z",'
    b'"local":"1969-12-31T23:59:59.000001","day":"9999-12-31","ok":false,"big":"99999999999999999999999999999999999999"}',
    b'{"id":1,"t":null,"s":"","d":"-1.500000000000000000","b":"","f":0.10000000149011612,"g":1e300,"m":[],"n":null,"a":[],'
    b'"at":"1880-01-01T00:00:00Z","local":null,"day":null,"ok":null,"big":null}',
]


def test_what_consume_prints_produce_reads_back(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.ok("topics", "create", name, EVERY_TYPE)
    shell.ok("produce", "a", stdin=b"\n".join(EVERY_VALUE))
    printed = shell.ok("consume", "a").out
    shell.ok("produce", "b", stdin=printed)
    assert shell.ok("consume", "b").out == printed
    assert shell.ok("consume", "b").rows[0]["big"] == "99999999999999999999999999999999999999"
    shell.ok("topics", "create", "c", EVERY_TYPE)
    shell.ok("produce", "c", "--format", "arrow", stdin=shell.ok("consume", "a", "--format", "arrow").out)
    assert shell.ok("consume", "c").out == printed
    shell.ok("topics", "create", "d", EVERY_TYPE)
    shell.ok("produce", "d", "--format", "csv", stdin=shell.ok("consume", "a", "--format", "csv").out)
    # CSV has one word for nothing: an empty field is the empty string where strings are, else null.
    assert shell.ok("consume", "d").out == printed.replace(b'"b":"",', b'"b":null,')


def test_extra_fields_round_trip(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.ok("topics", "create", name, "x int", "--extra", "keep")
    shell.ok("produce", "a", stdin=b'{"x":1,"more":{"deep":[1,2.5]}}')
    shell.ok("produce", "b", stdin=shell.ok("consume", "a").out)
    assert shell.ok("consume", "b").rows == [{"x": 1, "more": {"deep": [1, 2.5]}}]
    for args in (("--format", "arrow"), ("--format", "arrow", "--follow", "--max", "1")):
        shell.ok("produce", "b", "--format", "arrow", stdin=shell.ok("consume", "a", *args).out)
    assert shell.ok("consume", "b").rows == [{"x": 1, "more": {"deep": [1, 2.5]}}] * 3
    assert shell.ok("consume", "a", "--format", "csv").text == 'x,_extra\n1,"{""more"":{""deep"":[1,2.5]}}"\n'
    assert "more" in shell.ok("consume", "a", "--format", "table").text


def test_where_records_went(clicks: Shell) -> None:
    done = clicks.ok("produce", "clicks", stdin=b'{"user":"ann","ms":1,"at":"2026-01-01T00:00:00Z"}\n\n')
    assert done.out == b""
    assert done.err.startswith("1 record appended to clicks (")
    assert clicks.ok("produce", "clicks").err == "0 records appended to clicks\n"


BAD_LINES = b"""{"user":"ok1","at":"2026-01-01T00:00:00Z"}
{"user":"truncated
{"user":"u","at":"2026-01-01T00:00:00Z"} trailing
{"user":"u","user":"v","at":"2026-01-01T00:00:00Z"}
[1]
{"user":"u","ms":1.5,"at":"2026-01-01T00:00:00Z"}
{"user":"u","ms":99999999999999999999,"at":"2026-01-01T00:00:00Z"}
{"user":"\xff"}
{"user":"u","at":"yesterday"}
{"user":"u","at":"2026-01-01T00:00:00"}
{"user":"u","usr":1,"at":"2026-01-01T00:00:00Z"}
{"user":"u","_offset":1,"at":"2026-01-01T00:00:00Z"}
{"user":"ok2","at":"2026-01-01T00:00:00Z"}
"""


def test_bad_lines_are_told_with_their_number_and_the_good_ones_appended(clicks: Shell, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(BAD_LINES)
    done = clicks("produce", "clicks", str(path))
    assert done.code == 1
    told = done.err.splitlines()
    assert [line.split(":")[1] for line in told[:10]] == [str(n) for n in range(2, 12)]
    assert all(line.startswith(str(path)) for line in told[:10])
    assert told[10].startswith("2 records appended to clicks")
    assert told[11] == "11 bad lines left out, the first 10 are above; --dead-letters would keep them"
    users = [row["user"] for row in clicks.ok("consume", "clicks").rows]
    assert sorted(users) == ["ann", "bob", "cat", "ok1", "ok2"]


def test_bad_lines_kept_as_dead_letters(clicks: Shell) -> None:
    done = clicks.ok("produce", "clicks", "--dead-letters", stdin=BAD_LINES)
    assert done.err.splitlines()[-1] == "11 bad lines went to the dead letters (see headrace dead list)"
    letters = clicks.ok("dead", "list", "--topic", "clicks").rows
    assert [letter["source"] for letter in letters] == [f"stdin:{n}" for n in range(2, 13)]
    assert {letter["reason"] for letter in letters} == {"bad_input"}
    assert letters[0]["value"] == '{"user":"truncated'
    assert letters[6]["value"] == '{"user":"\\xff"}'


def test_null_event_time_and_far_future(clicks: Shell) -> None:
    done = clicks("produce", "clicks", stdin=b'{"user":"u"}\n{"user":"v","at":"9000-01-01T00:00:00Z"}\n')
    assert "record went to the dead letters: event time too far ahead" in done.err or "stdin:2" in done.err
    assert not any(row["user"] == "v" for row in clicks.ok("consume", "clicks").rows)


def test_every_bad_row_of_a_large_batch_is_found(shell: Shell) -> None:
    shell.ok("topics", "create", "n", "x int NOT NULL")
    lines = [b"{}" if i % 7 == 0 else b'{"x":%d}' % i for i in range(2_000)]
    done = shell("produce", "n", stdin=b"\n".join(lines))
    assert done.code == 1
    assert [row["x"] for row in shell.ok("consume", "n").rows] == [i for i in range(2_000) if i % 7]
    assert f"{len(range(0, 2_000, 7))} bad lines left out" in done.err


def test_too_large_a_record(shell: Shell) -> None:
    shell.ok("topics", "create", "n", "x string")
    done = shell("produce", "n", stdin=b'{"x":"%s"}\n{"x":"small"}' % (b"a" * (17 << 20)))
    assert done.code == 1
    assert "stdin:1: " in done.err
    assert shell.ok("consume", "n").rows == [{"x": "small"}]


def test_a_line_without_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(files, "READ_BYTES", 10)
    shell.ok("topics", "create", "n", "x string")
    done = shell("produce", "n", stdin=b'{"x":"%s"}\n{"x":"small"}\n' % (b"a" * 1_000))
    assert "stdin:1: is longer than 100 bytes" in done.err
    assert shell.ok("consume", "n").rows == [{"x": "small"}]


def test_csv_is_read_by_the_topics_types(shell: Shell) -> None:
    shell.ok("topics", "create", "c", "n int, s string, f double, ok boolean, at timestamp, a array<int>, b binary")
    text = (
        b'\xef\xbb\xbfn,s,f,ok,at,a,b\n1,"two\nlines, ""quoted""",NaN,TRUE,2026-01-01 00:00:00+01:00,"[1,2]",AAE=\n'
        b",,,,,,\n"
        b"x,s,1,true,,,\n"
        b"1,s\n"
        b"1,\xff,,,,,\n"
        b"1_0,s,,,,,\n"
        b"2,s,,maybe,,,\n"
        b'3,"unclosed'
    )
    done = shell("produce", "c", "--format", "csv", stdin=text)
    assert done.code == 1
    assert [line.split(":")[1] for line in done.err.splitlines()[:6]] == ["5", "6", "7", "8", "9", "10"]
    assert "column 'n': 'x' is not a whole number" in done.err
    assert "has 2 fields, the header row has 7" in done.err
    assert shell.ok("consume", "c").rows == [
        {
            "n": 1,
            "s": 'two\nlines, "quoted"',
            "f": "NaN",
            "ok": True,
            "at": "2025-12-31T23:00:00Z",
            "a": [1, 2],
            "b": "AAE=",
        },
        {"n": None, "s": "", "f": None, "ok": None, "at": None, "a": None, "b": None},
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is empty; CSV needs a header row"),
        (b"user,user\n", "names the column 'user' twice"),
        (b"user,\n", "has a column without a name"),
        (b"user,mss\n", "has the column 'mss', which the topic does not. Did you mean 'ms'?"),
        (b"user,_offset\n", "has the metadata column '_offset'"),
        (b"user;ms\nu;1\n", "Fields are separated by commas. Columns are"),
    ],
)
def test_csv_headers_that_make_no_sense(clicks: Shell, text: bytes, why: str) -> None:
    done = clicks("produce", "clicks", "--format", "csv", stdin=text)
    assert done.code == 1
    assert why in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'[\n{"user": "a"},\n{"user": "b"}\n]\n', "is an array; a row is one JSON object on one line. jq -c '.[]'"),
        (b'\xef\xbb\xbf\n[{"user": "a"}, {"user": "b"}]', "is an array"),
        (b'{\n  "user": "a"\n}\n', "is an object over several lines; a row is one JSON object on one line. jq -c ."),
    ],
)
def test_one_json_document_is_refused_before_a_line_of_it_is_taken_for_a_row(
    clicks: Shell, text: bytes, why: str
) -> None:
    for more in ("clicks",), ("others", "--create"):
        done = clicks("produce", *more, stdin=text)
        assert done.code == 1
        assert f"headrace: file 'stdin': {why}" in done.err.splitlines()[-1]
    assert len(clicks.ok("consume", "clicks").rows) == 3  # as before


def test_parquet_and_arrow_files(shell: Shell, tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1, 2, 3], pa.int32()), "s": ["a", None, "c"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "c.arrows", table.schema) as writer:
        writer.write_table(table)
    files = [str(tmp_path / name) for name in ("a.parquet", "b.arrow", "c.arrows")]
    done = shell.ok("produce", "t", "--create", *files)
    assert done.err.splitlines()[0] == "topic t created: x int, s string"
    assert [row["x"] for row in shell.ok("consume", "t").rows] == [1, 2, 3] * 3
    shell.ok("topics", "create", "n", "x int, s string NOT NULL")
    done = shell("produce", "n", "--dead-letters", files[0])
    assert done.code == 0
    assert f"{files[0]}:2: column 's'" in done.err
    assert [row["x"] for row in shell.ok("consume", "n").rows] == [1, 3]
    assert shell.ok("dead", "list").rows[0]["value"] == '{"x":2,"s":null}'


def test_files_that_are_not_what_they_say(shell: Shell, tmp_path: Path) -> None:
    shell.ok("topics", "create", "t", "x int")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no, not really PAR1")
    (tmp_path / "a.arrow").write_bytes(b"\xff" * 1000)
    assert "cannot be read as Parquet" in shell("produce", "t", str(tmp_path / "a.parquet")).err
    assert "cannot be read as Arrow" in shell("produce", "t", str(tmp_path / "a.arrow")).err
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}'))
    packed = shell.refused("produce", "t", "--dead-letters", str(tmp_path / "a.jsonl.gz"))
    assert f"is compressed: gzip -dc {tmp_path / 'a.jsonl.gz'} | headrace produce" in packed
    assert "A record comes from a file or a pipe: echo" in shell.refused("produce", "t", '{"x": 1}')
    missing = shell("produce", "t", str(tmp_path / "a.parquet"), str(tmp_path / "none.csv"))
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert "No such file or directory" in missing.err


def test_create_infers_the_schema(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "clicks.jsonl"
    path.write_text(
        '{"user":"u1","ms":12,"at":"2026-01-01T00:00:00Z"}\n{"user":"u2","ms":1.5,"at":"2026-01-01T00:00:01Z"}\n'
    )
    done = shell.ok(
        "produce", "clicks", "--create", "--key", "user", "--event-time", "at", "--partitions", "2", str(path)
    )
    assert done.err.startswith("topic clicks created: user string, ms double, at timestamp\n2 records appended")
    (shown,) = shell.ok("topics", "show", "clicks").rows
    assert (shown["key"], shown["event_time"], len(shown["partitions"])) == (["user"], "at", 2)
    assert "created" not in shell.ok("produce", "clicks", "--create", str(path)).err
    assert "is there already, with partitions 2" in shell.refused(
        "produce", "clicks", "--create", "--partitions", "3", str(path)
    )
    assert shell("produce", "clicks", "--key", "user", str(path)).code == 2


def test_create_from_a_pipe_and_from_csv(shell: Shell, tmp_path: Path) -> None:
    done = shell("produce", "a", "--create", stdin=b'{"x":1}\nbad\n{"x":2}')
    assert (done.code, shell.ok("consume", "a").rows) == (1, [{"x": 1}, {"x": 2}])
    path = tmp_path / "b.csv"
    path.write_text("zip,n,f,day,ok\n01234,1,1,2026-01-01,true\n99999,,2.5,2026-01-02,\n")
    assert "zip string, n bigint, f double, day date, ok boolean" in shell.ok("produce", "b", "--create", str(path)).err
    assert shell.ok("consume", "b").rows[1] == {"zip": "99999", "n": None, "f": 2.5, "day": "2026-01-02", "ok": None}


def test_create_refuses_what_could_be_this_or_that(shell: Shell) -> None:
    line = shell.refused("produce", "a", "--create", stdin=b'{"x":1}\n{"x":"one"}')
    assert "column 'x' is bigint and string at once" in line
    assert not shell.home.exists()
    assert "at character" in shell.refused("topics", "create", "b", "x integ")
    assert not shell.home.exists()


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("a.jsonl", '{"at":"2026-01-01T09:00:05Z"}\n\n{"at":null}\n{"at":"2026-01-01T09:00:06"}\n', "a.jsonl:4: "),
        ("a.csv", 'note,at\n"two\nlines",2026-01-01T09:00:05Z\nx,2026-01-01 09:00:06\n', "a.csv:4: "),
        ("-", '{"at":"2026-01-01T09:00:06"}\n', "stdin:1: "),
    ],
)
def test_create_names_the_line_whose_event_time_has_no_zone(
    shell: Shell, tmp_path: Path, name: str, text: str, where: str
) -> None:
    path = "-" if name == "-" else str(tmp_path / name)
    (tmp_path / name).write_text(text)
    line = shell.refused("produce", "t", "--create", "--event-time", "at", path, stdin=text.encode())
    assert f"event_time 'at': {path.removesuffix(name)}{where}" in line
    assert "has no time zone. Say which: add 'Z'" in line
    assert not shell.home.exists()


def test_create_names_the_line_whose_event_time_is_no_time(shell: Shell) -> None:
    line = shell.refused("produce", "t", "--create", "--event-time", "at", stdin=b'{"at":"soon"}\n')
    assert "stdin:1: 'soon' is not ISO 8601" in line
    line = shell.refused("produce", "t", "--create", "--event-time", "at", stdin=b'{"at":1767258005}\n')
    assert "stdin:1: 1767258005 is not a time" in line
