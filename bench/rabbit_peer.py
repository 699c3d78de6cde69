"""A peer: RabbitMQ as Debian has it (`apt-get install rabbitmq-server`, pika), one node on free ports of the loopback,
in a temporary folder, stopped afterwards. Durable queue, persistent messages, publisher confirms, prefetch 100."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from bench.peers import Unavailable, free_port, stop, until_ready

READY_SECONDS = 60.0
PREFETCH = 100
QUEUE = "mailer"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Any]:
    """A connection to a node of its own."""
    try:
        import pika
    except ImportError:
        raise Unavailable("pika is not installed (pip install 'headrace[bench]')") from None
    if not SERVER.exists():
        raise Unavailable("RabbitMQ is not installed (apt-get install rabbitmq-server)")
    folder.mkdir()
    port, names, distribution = free_port(), free_port(), free_port()
    config = folder / "rabbitmq.conf"
    config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    settings = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    environment = {**os.environ, **settings}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen([str(SERVER)], stdout=log, stderr=log, env=environment)
    try:
        until_ready(process, port, folder / "server.log", READY_SECONDS)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        try:
            yield connection
        finally:
            connection.close()
    finally:
        stop(process)
        if epmd := shutil.which("epmd"):
            subprocess.run([epmd, "-port", str(names), "-kill"], capture_output=True, env=environment)


def publish(connection: Any, messages: Sequence[bytes]) -> None:
    """Persistent, each confirmed."""
    import pika

    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()
    for message in messages:
        channel.basic_publish("", QUEUE, message, pika.BasicProperties(delivery_mode=2))
    channel.close()


def consume(connection: Any, count: int, *, one_by_one: bool) -> None:
    """Receives and parses; acknowledges each, or every hundredth with all before it."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    for done, (method, _, body) in enumerate(channel.consume(QUEUE), start=1):
        orjson.loads(body)
        if one_by_one or done % PREFETCH == 0 or done == count:
            channel.basic_ack(method.delivery_tag, multiple=not one_by_one)
        if done == count:
            break
    channel.cancel()
    channel.close()
