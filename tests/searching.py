"""Where a text can still be found in a log's directory: in the bytes of its files as they are, and in every frame of
the data files, live or dead, as it is when decompressed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from headrace.log.embedded.storage.frames import ALIGN_BYTES, HEADER_BYTES, MAGIC, BadFrame, Header, plain_body


def files_with(home: Path, text: str) -> list[str]:
    """Which files hold the text, by their paths in the directory. Only SQLite may open its files in a process that has
    the index open, so a child looks through them."""
    found = subprocess.run(
        ["grep", "-rlaF", "--", text, str(home)], capture_output=True, text=True, timeout=60, env={}, check=False
    )
    assert found.returncode in (0, 1), found.stderr
    paths = {Path(line) for line in found.stdout.splitlines()}
    for path in (home / "data").glob("*.frames"):
        if any(text.encode() in body for body in _bodies(path)):
            paths.add(path)
    return sorted(str(path.relative_to(home)) for path in paths)


def _bodies(path: Path) -> Iterator[bytes]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:  # reclaimed since it was listed
        return
    for at in _starts(raw):
        try:
            header = Header.unpack(raw[at : at + HEADER_BYTES])
            body = raw[at + HEADER_BYTES : at + HEADER_BYTES + header.length]
            yield plain_body(memoryview(body), header.flags, header.plain_bytes).to_pybytes()
        except BadFrame:
            continue


def _starts(raw: bytes) -> Iterator[int]:
    at = raw.find(MAGIC)
    while at >= 0:
        if at % ALIGN_BYTES == 0:
            yield at
        at = raw.find(MAGIC, at + 1)
