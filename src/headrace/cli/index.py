"""`headrace index …`: full-text indexes over topics, without a program and without Spark. Owns what the commands print;
what an index is, lies in the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import complete_index, format_option, home, home_option, opened, topic_argument
from headrace.cli.output import FOUND, chosen, counted, note, on_terminal, print_rows, say
from headrace.cli.stopping import stoppable
from headrace.connect.index.spec import SearchIndex, search_index
from headrace.connect.index.standing import index_facts, index_file, index_names
from headrace.connect.index.writing import check_fits
from headrace.connect.journal import Journal, recorded, sinks
from headrace.connect.open import open_sink
from headrace.connect.running import SinkThread, drained
from headrace.errors import InvalidArgument
from headrace.names import check_name
from headrace.sink import Sink

if TYPE_CHECKING:
    from headrace.connect.index.searching import Hit
    from headrace.log.contract import Log

EMPTY = "No indexes yet: headrace index add users shop_users --text name"
LISTED = ("index", "topic", "text", "state", "rows", "rebuilding", "lag_records", "bytes", "tokenizer")
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
new_argument = click.argument("name")
name_argument = click.argument("name", shell_complete=complete_index)


@click.group()
@home_option
def index() -> None:
    """Full-text indexes over tables and topics: searched here, over HTTP and on the page.

    \b
    Example:
      headrace index add users shop_users --text name --text about
      headrace index run users --drain
      headrace index search users 'heat pump'
    """


@index.command()
@new_argument
@topic_argument
@click.option("--text", "texts", metavar="COLUMN", multiple=True, required=True, help="A column that is searched.")
@click.option("--key", "keys", metavar="COLUMN", multiple=True, help="Tells rows apart, if the topic does not say so.")
@click.option(
    "--tokenizer",
    type=click.Choice(["unicode61", "porter", "trigram"]),
    default="unicode61",
    help="Words, English word stems, or parts of words.",
)
@click.option("--path", metavar="FILE", help="Its file; NAME.db in the home's folder indexes without it.")
@home_option
def add(name: str, topic: str, texts: tuple[str, ...], keys: tuple[str, ...], tokenizer: Any, path: str | None) -> None:
    """Store what an index is. No record is read before `index run`.

    \b
    Example:
      headrace index add users shop_users --text name --text about
      headrace index add pages clicks --text page --tokenizer trigram
    """
    check_name(name, argument="name")
    made = search_index(path or f"{name}.db", text=texts, key=keys or None, tokenizer=tokenizer)
    with contextlib.closing(opened()) as log, Sink.locked(home(), name):
        check_fits(log.topic(topic), made)
        known = sinks(log).get(name)
        if known is not None and known.get("kind") != made.kind:
            why = f"is a sink that is a {known.get('kind')}: choose another name"
            raise InvalidArgument("name", name, why)
        facts = {"kind": made.kind, "topic": topic, **made.facts()}
        Journal(log, name).describe(facts)
    done = "added" if known is None else "changed, and built again" if known != facts else "as it was"
    note(f"index {name} is {done}; headrace index run {name}")


@contextlib.contextmanager
def _known(name: str) -> Iterator[tuple[Log, SearchIndex, str]]:
    """The log, the index, and the name of its topic."""
    with contextlib.closing(opened()) as log:
        index_file(log, home(), name)
        facts = recorded(log, name)["spec"]
        yield log, SearchIndex.of(name, facts), facts["topic"]


@index.command()
@name_argument
@click.option("--drain", is_flag=True, help="Take all that the topic has now, then end.")
@home_option
def run(name: str, drain: bool) -> None:
    """Keep an index up with its topic until Ctrl-C or SIGTERM.

    \b
    Example:
      headrace index run users
      headrace index run users --drain
    """
    with _known(name) as (log, made, topic), Sink.locked(home(), name), stoppable() as stopping:
        if drain:
            with contextlib.closing(open_sink(made, name, log, log.topic(topic), home())) as found:
                note(f"{counted(drained(log, name, found), 'record')} taken")
            return
        thread = SinkThread(log, name, lambda: open_sink(made, name, log, log.topic(topic), home()))
        thread.start()
        note(f"indexing {topic} as {name}; Ctrl-C stops")
        while not stopping.is_set() and not thread.join(0.2):
            pass
        thread.stop()
        if thread.error is not None:
            raise thread.error
    note("stopped")
    stopping.tell()


@index.command("list")
@format_option
@home_option
def list_(format_: str | None) -> None:
    """List the indexes: topic, rows, and what they have not read.

    \b
    Example:
      headrace index list
    """
    with contextlib.closing(opened()) as log:
        found = [index_facts(log, home(), name) for name in index_names(log)]
    if not found:
        note(EMPTY)
        return
    rows = [{"index": each.pop("name"), **each, "text": ", ".join(each["text"])} for each in found]
    print_rows(rows, LISTED, format_)
    for each in rows:
        if each["problem"]:
            note(f"{each['index']}: {each['problem']}")


@index.command()
@name_argument
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 100), default=20, help="At most so many rows.")
@format_option
@home_option
def search(name: str, words: tuple[str, ...], limit: int, format_: str | None) -> None:
    """Find rows with WORDS, the best first.

    All of the words; "one phrase"; begin*; -without; this OR that; column:word.

    \b
    Example:
      headrace index search users heat pump
      headrace index search users '"heat pump" -oil'
    """
    from headrace.connect.index.searching import Searching

    with _known(name) as (_, made, _topic):
        file = made.file(home())
    with Searching(file) as found:
        answer = found.search(" ".join(words), limit=limit)
    if on_terminal() and chosen(format_) == "table":
        for hit in answer.hits:
            say(_shown(hit, made.text))
        much = f"{answer.count:,}{'+' if answer.more else ''}"
        note(answer.why or f"{counted(len(answer.hits), 'row')} of {much}")
        return
    rows = [{"key": hit.key, **hit.row} for hit in answer.hits]
    print_rows(rows, ("key", *made.text), format_)
    if answer.why:
        note(answer.why)


def _shown(hit: Hit, text: tuple[str, ...]) -> str:
    from headrace.cli.output import harmless

    key = ", ".join(str(part) for part in hit.key)
    lines = [harmless(key)]
    for name in text:
        pieces = [
            f"{BOLD}{harmless(part)}{PLAIN}" if marked else harmless(part) for part, marked in hit.marks.get(name, [])
        ]
        lines += [f"  {name}: {''.join(pieces)}"] if pieces else []
    return "\n".join(lines)


@index.command()
@name_argument
@format_option
@home_option
def audit(name: str, format_: str | None) -> None:
    """Compare an index with its log, key by key.

    Prints what differs; the exit code is 3 if anything does.

    \b
    Example:
      headrace index audit users
    """
    from headrace.connect.index.audit import audit as compare

    with _known(name) as (log, made, topic):
        found = compare(made.file(home()), log.topic(topic))
    rows = [asdict(each) for each in found.differences]
    if rows:
        print_rows(rows, ("key", "what", "index", "log"), format_)
    if found.words:
        note(found.words)
    unjudged = f"; {counted(found.unjudged, 'key')} not judged, as the log has too little of them"
    note(
        f"{name}: {counted(found.keys, 'key')} compared, "
        f"{'no difference' if found.ok else counted(len(rows), 'difference')}{unjudged if found.unjudged else ''}"
    )
    if not found.ok:
        raise click.exceptions.Exit(FOUND)


@index.command()
@name_argument
@home_option
def rebuild(name: str) -> None:
    """Build an index again from the log, then serve it.

    It is built beside the one that is served, whose runner may go on.

    \b
    Example:
      headrace index rebuild users
    """
    with _known(name) as (log, made, topic):
        again = made.over(name, log, log.topic(topic), home(), None, anew=True)
        with contextlib.closing(again):
            rows = again.rebuild()
    note(f"{name}: built again, {counted(rows, 'row')}")
