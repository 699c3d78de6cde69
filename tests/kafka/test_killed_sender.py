"""A sender that is killed: whatever it had reached, a plain read_committed consumer sees each row once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

import headrace as hr
from tests.kafka.test_foreign import plain_records

SENDS = """
import sys
import pyarrow as pa
import headrace as hr
from headrace import failpoints
address, point = sys.argv[1:]
log = hr.open_log(address)
sender = log.sender("flow.f")
sender.send("out", pa.table({"n": pa.array([1, 2], pa.int32())}), 0)
failpoints.arm(point, "kill")
sender.send("out", pa.table({"n": pa.array([3, 4], pa.int32())}), 2)
"""


@pytest.mark.parametrize("point", ["kafka.sent", "kafka.committed"])
def test_killed_inside_a_transaction_or_behind_it(broker: str, point: str) -> None:
    prefix = f"k{uuid.uuid4().hex[:8]}."
    address = f"kafka://{broker}?prefix={prefix}"
    with hr.open_log(address) as log:
        out = log.create_topic("out", "n int")
        killed = subprocess.run([sys.executable, "-c", SENDS, address, point], capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        sender = log.sender("flow.f")  # the next process: takes the id, so what was open is aborted
        sender.send("out", pa.table({"n": pa.array([3, 4], pa.int32())}), 2)
        sender.send("out", pa.table({"n": pa.array([5], pa.int32())}), 4)
        assert [json.loads(each.value())["n"] for each in plain_records(broker, f"{prefix}out")] == [1, 2, 3, 4, 5]
        assert [record.value["n"] for record in out.records()] == [1, 2, 3, 4, 5]
