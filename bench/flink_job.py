"""A job of Flink SQL, in PyFlink's own environment: bench.flink_peer starts it. Runs a query as often as asked in one
JVM, each time on a local cluster of its own, and prints what each time took."""

import json
import os
import sys
import time
from pathlib import Path

began = time.perf_counter()
request = json.load(sys.stdin)

from pyflink.common import Configuration  # noqa: E402
from pyflink.table import EnvironmentSettings, TableEnvironment  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds():
    """Of this process and all it started: the JVM."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        except OSError:
            continue
    mine, total = {os.getpid()}, 0
    for _ in range(4):
        mine |= {pid for pid, (parent, _) in found.items() if parent in mine}
    for pid in mine:
        total += found[pid][1]
    return total / TICKS


configuration = Configuration()
for name, value in request["settings"].items():
    configuration.set_string(name, value)
env = TableEnvironment.create(
    EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
)
for statement in filter(str.strip, request["ddl"].split(";")):
    env.execute_sql(statement)
started = time.perf_counter() - began

times = []
for number in range(request["times"]):
    sink, select = {"connector": "blackhole"}, request["query"]
    if number == 0 and request["out"]:
        sink = {"connector": "filesystem", "path": request["out"], "format": "csv"}
        env.execute_sql(f"CREATE TEMPORARY VIEW asked AS {select}")
        select = "SELECT * FROM TO_CHANGELOG(input => TABLE asked)"
    options = ", ".join(f"'{name}' = '{value}'" for name, value in sink.items())
    busy, began = processor_seconds(), time.perf_counter()
    result = env.execute_sql(f"CREATE TABLE result_{number} WITH ({options}) AS {select}")
    result.wait()
    wall = time.perf_counter() - began
    net = result.get_job_client().get_job_execution_result().result().get_net_runtime() / 1e3
    times.append({"seconds": net, "wall_seconds": wall, "cpu_seconds": processor_seconds() - busy})
print(json.dumps({"start_seconds": started, "times": times}))
