"""For programs that run in a process of their own, unchanged, and whose JVM is not what is tested: they take the one of
the tests, because starting one takes seconds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.flows.spark import session

LENT = Path(__file__).parent / "lent"


def jvm_of(spark: Any, program: str) -> dict[str, str]:
    """The environment in which a process whose command line has `program` in it, and no other, takes the JVM."""
    port, token = session.lent(spark) or (0, "")
    path = os.pathsep.join(filter(None, [str(LENT), os.environ.get("PYTHONPATH")]))
    return {"HEADRACE_TESTS_JVM": f"{port} {token} {program}", "PYTHONPATH": path}
