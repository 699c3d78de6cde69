"""References to secrets: `env:NAME` and `file:PATH`. A setting holds the reference; what it stands for is read where it
is needed, and is in no setting, plan, log or error. Owns what a reference can be."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import InvalidArgument

__all__ = ["secret_of"]


def secret_of(reference: str, *, argument: str) -> str:
    """What a reference stands for. The error names the reference, never a value."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        value = os.environ.get(where)
        if not value:
            raise InvalidArgument(argument, reference, "this environment variable is not set")
        return value
    try:
        path = Path(where)
        if path.stat().st_mode & 0o077:
            raise InvalidArgument(argument, reference, "others can read this file: chmod 600 it")
        found = path.read_bytes().strip().decode("utf-8", "replace")
    except OSError as error:
        raise InvalidArgument(argument, reference, f"cannot be read: {error.strerror}") from None
    if not found or "\ufffd" in found:
        raise InvalidArgument(argument, reference, "this file has no text in it" if found else "this file is empty")
    return found
