"""What every test run shares: the seed, and how long a soak test may go on.

The seed of `make test` is fixed, so a failure repeats; `make soak` draws a fresh one. Both are printed,
and HEADRACE_SEED=... brings a run back."""

import os
import secrets
import signal

import pytest
from hypothesis import HealthCheck, settings

from headrace.testing.spark import SETTINGS

pytest_plugins = ["headrace.testing.pytest_plugin", "tests.broker", "tests.databases", "tests.taking"]

SEED_FIXED = 20260101

# Stated, not inherited: where CI is set, hypothesis's own defaults derandomize, and no seed would count.
# A contract's suite is inherited by every implementation, so one test runs in several classes.
SHARED = [HealthCheck.differing_executors]
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=False, suppress_health_check=SHARED)
settings.register_profile(
    "soak",
    settings.get_profile("ci"),
    max_examples=1_000,
    stateful_step_count=200,
    suppress_health_check=[*SHARED, HealthCheck.too_slow],
)
settings.load_profile("ci")

# JVMs that tests start live for seconds: a compiler that is quick, not one that is thorough.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# PySpark tells the JVM for each column at which line it was made: more work than making it. Programs with a JVM of
# their own still do.
SETTINGS["spark.python.sql.dataFrameDebugging.enabled"] = "false"

# A shell's background job ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Settle the one seed of this run: --hypothesis-seed over HEADRACE_SEED over the profile's default."""
    fresh = config.getoption("--hypothesis-profile") == "soak"
    default = secrets.randbits(32) if fresh else SEED_FIXED
    seed = int(config.getoption("--hypothesis-seed") or os.environ.get("HEADRACE_SEED") or default)
    config.option.hypothesis_seed = str(seed)
    config.stash[SEED] = seed


SEED = pytest.StashKey[int]()


def pytest_report_header(config: pytest.Config) -> str:
    """Say the seed, and how to run with it again."""
    return f"headrace: random seed {config.stash[SEED]} (HEADRACE_SEED={config.stash[SEED]} repeats this run)"


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run; whatever else is random in a test draws from `random.Random(seed)`."""
    return pytestconfig.stash[SEED]


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long a test marked `soak` goes on: its share of HEADRACE_SOAK_SECONDS."""
    sharing = sum("soak_seconds" in getattr(item, "fixturenames", ()) for item in request.session.items)
    return float(os.environ.get("HEADRACE_SOAK_SECONDS", "600")) / sharing
