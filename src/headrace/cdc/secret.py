"""What hashes of masked columns are made with, and the folder that it is in. After a crash while it is made, the next
use says so: it is not made anew, as equal values would have other hashes then."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from headrace.errors import InvalidArgument
from headrace.storage import disk

__all__ = ["private_folder", "stored_secret"]

SECRET_BYTES: Final = 32


def private_folder(path: Path) -> Path:
    """A folder that only its owner may look into."""
    disk.make_directory(path)
    with disk.typed(path):
        os.chmod(path, disk.DIRECTORY_MODE)
    return path


def stored_secret(folder: Path) -> bytes:
    """What hashes are made with: of this home alone, readable by its owner alone."""
    path = private_folder(folder) / "mask.key"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            why = "is no secret of 32 bytes: writing it was cut off. Delete it if nothing was hashed with it yet"
            raise InvalidArgument("mask", str(path), why) from None
        return secret
    with os.fdopen(fd, "wb") as file:
        secret = secrets.token_bytes(SECRET_BYTES)
        file.write(secret)
        file.flush()
        os.fsync(fd)
    disk.sync_directory(path.parent)
    return secret
