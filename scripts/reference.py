"""The reference, written from the code while the site is built (a hook of mkdocs): the page api.md from signatures and
docstrings, and under each command of cli.md what it takes. Owns no text of its own but headings, and the list of what
belongs where; `tests/docs/test_reference.py` says that nothing is left out."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import click

import headrace as hr
import headrace.testing as kit
from headrace import erasure, keeping, streams, why
from headrace import sourcing as es
from headrace.aggregates import TABLE
from headrace.cdc.running import CaptureStatus, TableStatus
from headrace.cli.root import cli
from headrace.connect.index.audit import IndexAudit, IndexDifference
from headrace.connect.index.searching import Found, Hit, IndexStatus
from headrace.flows.audit import Audited
from headrace.flows.rebuild import Rebuild
from headrace.flows.status import FlowStatus
from headrace.joined import JoinedTables
from headrace.log import contract
from headrace.log.embedded import log, topic, transaction
from headrace.log.embedded.consume import groups, queues
from headrace.log.embedded.write import dead_letters
from headrace.log.producer import AsyncProducer, BufferedProducer
from headrace.views import reading

CHAPTERS: dict[str, tuple[str, list[Any]]] = {
    "The log": (
        "`hr.open_log(home)` opens a directory. [The log](log.md) explains.",
        [
            *(
                "open_log",
                "kafka",
                "epoch",
                "backup",
                "restore",
                keeping.Backup,
                "erase",
                erasure.Forgotten,
                erasure.Place,
                "avro",
                log.EmbeddedLog,
                topic.EmbeddedTopic,
                transaction.EmbeddedTransaction,
            ),
            *(BufferedProducer, AsyncProducer, groups.EmbeddedGroup, groups.EmbeddedMember),
            *(queues.EmbeddedQueue, "Message", dead_letters.DeadLetter),
            *("Record", "Appended", "Position", "Offsets", "Lag", "QueueStats", "Duration", "Start", "META"),
            *(contract.TopicDescription, contract.TopicSettings, contract.MemberInfo, contract.ProducerStats),
            *(contract.Origin, contract.Maintained, contract.Overtaken, contract.AtRisk, contract.Erased),
            *(contract.TopicUsage, contract.Consumer, contract.LogUsage, contract.Verified, contract.Problem),
        ],
    ),
    "Flows": (
        "What a program is made of. [Views](views.md), [time](time.md), [windows](windows.md), "
        "[aggregates](aggregates.md), [tables](tables.md), [joins](joins.md), "
        "[patterns](patterns.md) and [search](search.md) explain.",
        [
            *(
                "App",
                "Stream",
                streams.Windowed,
                streams.Grouped,
                "Aggregated",
                "View",
                "Table",
                "Queries",
                "Rules",
                FlowStatus,
                Audited,
            ),
            *(JoinedTables, why.Why, why.Origin, Rebuild, reading.Diff, reading.Counts),
            *("tumbling", "hopping", "cumulative", "calendar", "session", "sliding", "correct", "drop"),
            *(*TABLE, "merge", "CHANGE", "Aggregate", "changed", "RecordOperator", "Explanation", "RuleExplanation"),
            *("corrected_time", "clock_quality"),
            *("pattern", "match_recognize", "Pattern"),
        ],
    ),
    "Requests": ("`app.answers(name, flow)` answers. [Requests](calls.md) explains.", ["call", "cancel", "Reply"]),
    "Change capture": (
        "`app.capture(name, url)` gives a capture. [Change capture](capture.md) explains.",
        ["Capture", "debezium", "outbox", CaptureStatus, TableStatus],
    ),
    "Sinks": (
        "`stream.to_sink(name, …)` gives a sink. [Sinks and search](sinks.md) explains.",
        ["search_index", "webhook", "command", "Sink", Found, Hit, IndexStatus, IndexAudit, IndexDifference],
    ),
    "Event sourcing": (
        "`from headrace import sourcing as es`. [Event sourcing](event-sourcing.md) explains.",
        [
            es.Entities,
            es.Handled,
            es.Loaded,
            es.Event,
            es.EntityAudit,
            es.ProcessManager,
            es.Send,
            es.Timer,
            es.Cancel,
            es.CommandAccepted,
            es.CommandRejected,
            es.TimerFired,
            es.PendingTimer,
            es.append,
            es.boundary,
            es.erase,
            es.query,
            es.read,
            es.tagged,
        ],
    ),
    "Reading views": (
        "For any process, without Spark. [Views](views.md) explains.",
        ["open_views", reading.Views, reading.SqlViews, reading.ViewStatus, reading.Watch],
    ),
    "Testing": ("`from headrace.testing import …`. [Testing](testing.md) explains.", sorted(kit.__all__)),
}

BETWEEN_LAYERS = {
    *(
        "EmbeddedLog.clone_topic",
        "EmbeddedLog.news",
        "EmbeddedLog.wait",
        "EmbeddedLog.report",
        "EmbeddedLog.forget_flow",
        "EmbeddedLog.sender",
        "EmbeddedLog.back_up",
    ),
    *("EmbeddedTopic.refresh", "EmbeddedTopic.known_state", "EmbeddedTopic.prepare", "EmbeddedTopic.bury"),
    *("EmbeddedTopic.letter_stamps", "EmbeddedTopic.stamps", "EmbeddedTopic.spans", "EmbeddedTopic.ref"),
    *("EmbeddedTransaction.abandon", "EmbeddedTransaction.finish", "App.running", "Rebuild.make"),
    *("App.begin", "Sink.check"),
    *("Views.specs", "Views.states", "Views.spec", "Views.flow", "Views.state", "Views.buried", "Views.wait_for_any"),
    *("Views.address", "Views.identity"),
    *("EmbeddedMember.committed", "EmbeddedMember.claims", "EmbeddedMember.lease_us"),
    *("EmbeddedMember.apply_commit", "EmbeddedQueue.apply_ack", "Aggregate.kind", "Aggregate.slots"),
    *("Aggregate.algebra", "Aggregate.with_algebra"),
}
"""Public for the modules above, not for programs."""
STAGES = (streams.Stream, streams.Windowed, streams.Grouped, streams.Aggregated)
"""What a stream is on its way: their fields are their own."""


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)
    markdown = re.sub(r"^```(\w+) run( \S+)?$", r"```\1", markdown, flags=re.MULTILINE)  # a word for the tests alone
    return with_options(markdown) if page.file.src_uri == "cli.md" else markdown


# -- names ---------------------------------------------------------------------------------------------


def api() -> str:
    parts = ["# Python\n\nEvery public name, written from the code. Errors have [their own page](errors.md).\n"]
    for chapter, (text, names) in CHAPTERS.items():
        parts.append(f"## {chapter}\n\n{text}\n")
        home = kit if chapter == "Testing" else hr
        for named in names:
            thing = getattr(home, named) if isinstance(named, str) else named
            parts.extend(described(named if isinstance(named, str) else public(thing.__name__), thing, home))
    return "\n".join(parts)


def described(name: str, thing: Any, home: Any) -> Iterator[str]:
    shown = name if home is kit or inspect.isclass(thing) else f"hr.{name}"
    yield f"### {shown}\n"
    if inspect.isclass(thing):
        yield f"{prose(thing)}\n"
        if dataclasses.is_dataclass(thing) and thing not in STAGES:
            yield from (f"- {line}" for line in fields(thing))
            yield ""
        elif thing is hr.App:
            yield f"```python\nhr.{name}{signature(thing)}\n```\n"
        if not name.endswith("Contract"):  # of a suite, each method is a test
            for method, function in methods(thing):
                call = method if isinstance(function, property) else f"{method}{signature(function)}"
                yield f"`.{call}`\n:   {textwrap.indent(prose(function), '    ').lstrip()}\n"
    elif inspect.isfunction(thing):
        yield f"```python\n{shown}{signature(thing)}\n```\n\n{prose(thing)}\n"
    else:
        value = str(thing).replace("datetime.", "")
        yield f"`{shown} = {value if len(value) < 200 else value[:199] + '…'}`\n"


def methods(thing: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(thing).items():
        if name.startswith("_") or f"{thing.__name__}.{name}" in BETWEEN_LAYERS:
            continue
        value = getattr(thing, name) if isinstance(value, classmethod | staticmethod) else value
        if inspect.isroutine(value) or isinstance(value, property):
            yield name, value


def fields(thing: type) -> Iterator[str]:
    """A value's fields, with the text that stands below each in the code."""
    texts: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0].body  # type: ignore[attr-defined]
    for entry, after in pairwise(body):
        if isinstance(entry, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[entry.target.id] = f": {after.value.value}"  # type: ignore[union-attr]
    for field in dataclasses.fields(thing):
        if not field.name.startswith("_"):
            yield f"`{field.name}`, `{public(str(field.type))}`{texts.get(field.name, '')}"


def prose(thing: Any) -> str:
    """A docstring as Markdown: what is indented in it is code."""
    text = inspect.cleandoc((thing.fget if isinstance(thing, property) else thing).__doc__ or "")
    return re.sub(r"(?m)(?:^    .*\n?)+", lambda code: f"```python\n{textwrap.dedent(code[0]).rstrip()}\n```\n", text)


def signature(function: Any) -> str:
    """As it is written, without `self`, and with the names users know."""
    found = inspect.signature(function)
    parts, keywords = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts.append("*")
        keywords |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parts.append(f"{stars}{parameter.name}{default}")
    back = (
        "" if found.return_annotation in (found.empty, "None", None) else f" -> {public(str(found.return_annotation))}"
    )
    return f"({', '.join(parts)}){back if inspect.isroutine(function) else ''}"


def public(text: str) -> str:
    return re.sub(r"\b(Embedded|Buffered)(?=[A-Z])", "", text)


# -- commands ------------------------------------------------------------------------------------------


def commands(command: click.Command = cli, name: str = "headrace") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its whole name."""
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for part in command.list_commands(ctx):
                found = command.get_command(ctx, part)
                assert found is not None
                yield from commands(found, f"{name} {part}")
    else:
        yield name, command


def with_options(page: str) -> str:
    known = dict(commands())

    def taken(heading: re.Match[str]) -> str:
        command = known[heading[1]]
        with click.Context(command, info_name=heading[1]) as ctx:
            usage = " ".join(command.collect_usage_pieces(ctx))
            rows = [row for row in (p.get_help_record(ctx) for p in command.params) if row is not None]
        table = "\n".join(f"| `{cell(option)}` | {cell(text)} |" for option, text in rows)
        return f"{heading[0]}\n\n```text\n{heading[1]} {usage}\n```\n\n| option | |\n|---|---|\n{table}\n"

    return re.sub(r"^## (headrace .+)$", taken, page, flags=re.MULTILINE)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
