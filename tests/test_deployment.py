"""The files in deploy/: what they say exists. Images are not built and no container is started: commands, options,
environment, metrics and their labels are compared with the program, units and rules are read as what they are."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from headrace.cli.root import cli
from headrace.flows import metrics
from headrace.log.open import log_address
from headrace.serve import exposition
from headrace.views.open import examine_views, open_store
from tests.databases import PostgresServer

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
LABELS = {name: set(labels) for name, (_, _, _, labels, _) in exposition.METRICS.items()}
LABELS |= {name: {"flow"} for name in metrics.METRICS}
"""name of a metric -> its labels."""


def text(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def refuse_unknown(command: list[str]) -> None:
    """That click takes the command as it is written; nothing is run."""
    context = click.Context(cli, info_name="headrace")
    found = cli.get_command(context, command[0])
    assert found is not None, command
    found.make_context(command[0], list(command[1:]), parent=context)


def test_every_file_is_named_in_the_documentation() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    assert [path.name for path in DEPLOY.iterdir() if path.is_file() and f"deploy/{path.name}" not in page] == []


# -- Prometheus and Grafana ----------------------------------------------------------------------------


def refuse_metrics(expression: str) -> None:
    for name, selector in re.findall(r"\b(headrace_\w+)(?:\{([^}]*)\})?", expression):
        assert name in LABELS, name
        assert {each.split("=")[0].strip() for each in selector.split(",") if each} <= LABELS[name], expression


def labels_of(expression: str) -> set[str]:
    return set.intersection(*(LABELS[name] for name in re.findall(r"\bheadrace_\w+", expression)))


def test_every_alert_is_about_metrics_that_exist() -> None:
    (group,) = yaml.safe_load(text("alerts.yaml"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) >= 10
    for rule in group["rules"]:
        refuse_metrics(rule["expr"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m")) and rule["labels"]["severity"] in ("page", "ticket")
        said = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert said <= labels_of(rule["expr"]), rule["alert"]


def test_prometheus_takes_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    subprocess.run(["promtool", "check", "rules", str(DEPLOY / "alerts.yaml")], check=True)


def test_every_panel_is_about_metrics_that_exist() -> None:
    board = json.loads(text("dashboard.json"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            refuse_metrics(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_of(target["expr"])
    shown = set(re.findall(r"\bheadrace_\w+", text("dashboard.json") + text("alerts.yaml")))
    assert set(metrics.METRICS) <= shown, "every metric of a flow is on the dashboard, or in an alert"


# -- systemd -------------------------------------------------------------------------------------------


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text(name))
    return parser


def test_units_start_commands_that_exist() -> None:
    shop = unit("shop.service")["Service"]
    command = shlex.split(shop["ExecStart"])
    assert command[0].endswith("/bin/headrace")
    refuse_unknown(command[1:])
    assert int(shop["TimeoutStopSec"]) > 10, "a running batch has ten seconds"
    inner = shlex.split(unit("shop-backup.service")["Service"]["ExecStart"])[-1]
    words = shlex.split(inner)
    refuse_unknown(words[words.index("/srv/shop/.venv/bin/headrace") + 1 :])


@pytest.mark.parametrize("name", ["shop.service", "shop-backup.service"])
def test_systemd_takes_the_units(name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / name)], capture_output=True, text=True, check=False
    )
    wrong = [line for line in done.stderr.splitlines() if name in line and "is not executable" not in line]
    assert wrong == []


# -- containers ----------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text("compose.yaml"))
    return found


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile: each with its arguments."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text("Containerfile"), flags=re.MULTILINE))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines() if line]


def test_the_image_has_what_it_copies_and_needs() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    found = instructions()
    assert {name for name, _ in found} <= known
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (extras,) = re.findall(r'"\$1\[([a-z,]+)\]"', text("Containerfile"))
    assert {"avro", "kafka", "postgres", "serve"} <= set(extras.split(",")), "one image for everything"
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    users = [rest for name, rest in found if name == "USER"]
    assert users == ["headrace"], "it does not run as root"
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["headrace"]
    (python,) = set(re.findall(r"python:(\d+\.\d+)-", text("Containerfile")))
    assert f"Python :: {python}" in project


def test_services_are_wired_to_each_other() -> None:
    found = compose()
    services, secrets = found["services"], set(found["secrets"])
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert set(service.get("secrets", ())) <= secrets, name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source.startswith(".") or source in found["volumes"], volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing is published to others"
    shop = services["shop"]
    refuse_unknown([*shop["command"]])
    environment = shop["environment"]
    documented = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert [name for name in environment if f"`{name}`" not in documented] == []
    assert log_address(environment["HEADRACE_LOG"]).servers == "broker:9092"
    assert (
        "@postgres/" in environment["HEADRACE_VIEWS"] and "password=file:/run/secrets/" in environment["HEADRACE_VIEWS"]
    )
    assert environment["HEADRACE_SPARK"] == "spark://spark-master:7077"
    assert services["spark-worker"]["command"][-1] == environment["HEADRACE_SPARK"]
    assert int(shop["stop_grace_period"].rstrip("s")) > 10
    port = shop["command"][shop["command"].index("--metrics") + 1].split(":")[1]
    assert port in shop["healthcheck"]["test"][-1] and shop["ports"] == [f"127.0.0.1:{port}:{port}"]
    compile(shop["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_the_programs_user_owns_one_schema_and_nothing_else(postgres: PostgresServer, tmp_path: Path) -> None:
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    psycopg = pytest.importorskip("psycopg")
    mounted = compose()["services"]["postgres"]["volumes"]
    assert "./postgres-init.sql:/docker-entrypoint-initdb.d/init.sql:ro" in mounted
    (tmp_path / "password").write_text("it's a \\ canary\n")
    init = text("postgres-init.sql").replace("/run/secrets/postgres-password", str(tmp_path / "password"))
    superuser = postgres.database("deployed")
    subprocess.run(
        ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", superuser], input=init, text=True, check=True
    )
    try:
        views = urlsplit(compose()["services"]["shop"]["environment"]["HEADRACE_VIEWS"])
        assert (views.username, views.path) == ("shop", "/headrace")
        address = superuser.replace("headrace@", "shop@")
        with open_store(address) as store:
            assert store.leases is not None
        found = examine_views(address)
        assert (found.user, found.may_create, found.reads_files) == ("shop", True, False)
        with psycopg.connect(superuser) as db:
            known = dict(db.execute("SELECT rolname, rolpassword IS NOT NULL FROM pg_authid").fetchall())
        assert (known["shop"], known["headrace"]) == (True, False)
    finally:
        with psycopg.connect(superuser, autocommit=True) as db:
            db.execute("DROP OWNED BY shop")
            db.execute("DROP ROLE shop")


def test_no_secret_is_in_the_files() -> None:
    for path in DEPLOY.iterdir():
        if path.is_file():
            said = path.read_text("utf-8").replace(":'given'", "")  # a variable of psql's
            assert not re.search(r"(?i)password\s*[:=]\s*(?!file:|env:)[\"']?\w+", said), path.name


def test_the_version_of_kafka_checks_tokens() -> None:
    """Kafka 4.1.0 and 4.1.1 took unsigned ones."""
    version = tuple(map(int, compose()["services"]["broker"]["image"].rpartition(":")[2].split(".")))
    assert version >= (4, 1, 2)
