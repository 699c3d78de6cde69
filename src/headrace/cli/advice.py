"""Errors as the command line says them: one line, with what to type. Owns the words where the library's own advice
is Python, and nothing else."""

from __future__ import annotations

from headrace.cli.options import home, views_at
from headrace.cli.output import harmless
from headrace.errors import (
    HeadraceError,
    InvalidArgument,
    LogMissing,
    OffsetOutOfRange,
    TopicExists,
    TopicFull,
    TopicReplaced,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
    UnknownView,
    Unsupported,
)
from headrace.places import without_secrets

CREATE = 'headrace topics create {} "user string, at timestamp"'


def sentence(error: HeadraceError) -> str:
    """What happened, where, and what to do; always one line."""
    return harmless(" ".join(_words(error).split()))


def _words(error: HeadraceError) -> str:
    if isinstance(error, LogMissing) and error.path == str(home()):
        return (
            f"there is no log in {error.path}. Name another directory with --home, or begin one: "
            f"{CREATE.format('clicks')}"
        )
    if isinstance(error, TopicExists) and not error.foreign:
        return f"topic {error.topic!r} exists already. Choose another name, or say --exist-ok to leave it as it is."
    if isinstance(error, TopicReplaced):
        return (
            f"topic {error.topic!r} was deleted or mended meanwhile (another topic may have its name now). Run the "
            f"command again; rebuild its views (headrace rebuild APP.py VIEW --switch), or drop them."
        )
    if isinstance(error, UnknownTopic) and not error.known and not error.foreign:
        made = f"Start the program that declares it, or create it: {CREATE.format(error.topic)}"
        return f"there is no topic {error.topic!r}, and no other. {made}"
    if isinstance(error, UnknownView) and not error.known and error.why is None:
        what = f"there is no view {error.view!r}, and no other," if error.view else "there are no views"
        made = "The first run of an app creates its views: headrace run APP.py"
        place = views_at()
        if isinstance(place, str):
            return f"{what} at {without_secrets(place)}. {made}. Name another address with --views."
        return f"{what} in {place}. {made}. Name another directory with --home."
    if isinstance(error, Unsupported) and error.handle.startswith("<"):  # a log or a topic, not what one was to have
        return f"this command is for a log in a directory: {error.handle[1:-1]} has no {error.what}."
    if isinstance(error, UnknownGroup | UnknownQueue):
        known = f" There are: {', '.join(sorted(error.known)[:10])}." if error.known else " It has none yet."
        return f"{error}{known}"
    if isinstance(error, OffsetOutOfRange) and 0 <= error.offset < error.earliest:
        return (
            f"{error.topic}/{error.partition}: offsets {error.offset}..{error.earliest} were deleted by retention "
            f"(have {error.earliest}..{error.next}). Start from earliest; for a group: headrace groups rewind "
            f"GROUP {error.topic} --start earliest, for a queue: headrace queue rewind {error.topic} QUEUE --start "
            f"earliest."
        )
    if isinstance(error, TopicFull):
        return (
            f"{error.topic} holds {error.held_bytes} bytes of {error.limit_bytes} that groups or queues have not read. "
            f"Nothing more was written. headrace topics show {error.topic} says who: let them catch up, delete those "
            f"nobody needs, or raise --retention-bytes with headrace topics alter."
        )
    if isinstance(error, OffsetOutOfRange) and error.offset > error.next:
        return (
            f"{error.topic}/{error.partition} offset {error.offset} is beyond the end (have {error.earliest}.."
            f"{error.next}). See headrace topics show {error.topic}."
        )
    if isinstance(error, InvalidArgument):
        return f"{error.argument} {error.value!r}: {error.why}"
    return str(error) or type(error).__name__
