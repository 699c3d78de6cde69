"""What PySpark and Py4J print when the JVM goes away: nothing, for the flow says it, a quiet one, too. Without a JVM:
its ends of the sockets are closed here, and another process is in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import headrace as hr
from headrace.errors import SparkLost
from headrace.flows.supervise import Supervisor
from tests.flows.sparkless import Sparkless

SECONDS_MAX = 20.0
PROGRAM = """
import socket, sys, threading
from types import SimpleNamespace
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pyspark.accumulators import _start_update_server
from headrace.flows.spark import session

accumulators = _start_update_server("", True, sys.argv[1])
if sys.argv[2] == "quietly":
    session._end_quietly(SimpleNamespace(_accumulatorServer=accumulators))
handled, close_request = threading.Event(), accumulators.shutdown_request
accumulators.shutdown_request = lambda request: (close_request(request), handled.set())
with socket.socket(socket.AF_UNIX) as jvm:
    jvm.connect(sys.argv[1])
assert handled.wait(30)

listening = socket.create_server(("127.0.0.1", 0))

def hang_up():
    while True:
        connection, _ = listening.accept()
        connection.recv(1000)
        connection.close()

threading.Thread(target=hang_up, daemon=True).start()
gateway = ClientServer(
    java_parameters=JavaParameters(port=listening.getsockname()[1]),
    python_parameters=PythonParameters(port=0, eager_load=False),
)
try:
    gateway.jvm.System.nanoTime()
except Exception as error:
    print(type(error).__name__)
"""


def said(folder: Path, how: str) -> str:
    command = [sys.executable, "-c", PROGRAM, str(folder / "s"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Py4J")
    return done.stderr


def test_no_traceback_of_theirs(tmp_path: Path) -> None:
    loudly = said(tmp_path, "loudly")
    assert "EOFError" in loudly and "ERROR:root:Exception while sending" in loudly, "else this tests nothing any more"
    assert said(tmp_path, "quietly") == ""


def test_a_quiet_flow_notices(tmp_path: Path) -> None:
    """Else a service would go on without Spark until the next large batch, and nobody would start it again."""
    flow = Sparkless(tmp_path, hr.tumbling("1 minute"))
    with subprocess.Popen(["sleep", "600"]) as jvm:
        flow.loop._query.spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))  # type: ignore[assignment]
        supervisor = Supervisor(flow.loop, lambda _flow: flow.started())
        supervisor.start()
        flow.views.wait_for(flow.log.topic("events").append({"word": "b"}).position, timeout="20 seconds")
        jvm.kill()
        assert supervisor.join(SECONDS_MAX), "it goes on as if nothing were"
    assert isinstance(supervisor.error, SparkLost) and "by SIGKILL" in str(supervisor.error)
    flow.close()
