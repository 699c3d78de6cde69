"""`headrace run|check|audit APP.py`: programs of streams and views. Owns the loading of the program, the status line,
and how a run is stopped. Does not know what flows do."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.catching_up import Pace, Ticker, catching_up, in_spark, shown_columns
from headrace.cli.options import HOME, LOG, VIEWS, format_option, home_option
from headrace.cli.output import FOUND, busy, counted, note, print_rows, standard_error
from headrace.cli.stopping import Stopping, Terminated, stoppable
from headrace.errors import HeadraceError, InvalidArgument, ServeMissing

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.flows.status import FlowStatus
    from headrace.serve.server import Server

Result = TypeVar("Result")

STATUS_COLUMNS = ("flow", "state", "rows", "rate", "lag", "frontier", "dead", "restarts", "error")


def _address(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Where `--metrics` listens."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is no port: write 9321, or 0.0.0.0:9321")
    return host or "127.0.0.1", int(port)


app_argument = click.argument("program", metavar="APP.py[:NAME]", type=click.Path(dir_okay=False))


@click.command()
@app_argument
@click.option("--drain", "--once", "drain", is_flag=True, help="Process all records, then end.")
@click.option("--standby", is_flag=True, help="If another process runs the flows, wait until it ends.")
@click.option("--take-over", is_flag=True, help="If another process runs the flows, take them from it.")
@click.option("--share", is_flag=True, help="Run a part of the flows; other runners with --share have the others.")
@click.option("--spark", metavar="MASTER", help="The Spark to use: local[4], spark://…; default: a local session.")
@click.option("--serve/--no-serve", default=None, help="Serve the page; default: on a terminal.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve /metrics for Prometheus and /api/health on this port; HOST: 127.0.0.1 by default.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of log lines.",
)
@home_option
def run(
    program: str,
    drain: bool,
    standby: bool,
    take_over: bool,
    share: bool,
    spark: str | None,
    serve: bool | None,
    metrics: tuple[str, int] | None,
    log_format: str,
) -> None:
    """Run every flow of a program, until Ctrl-C or SIGTERM; on a terminal, serve the page meanwhile.

    The program is a Python file with one hr.App; if it has several, use APP.py:NAME. A flow that fails is started
    again. A record on which its functions fail becomes a dead letter. When it is stopped, a running batch has ten
    seconds to finish; the next start reads again what is not committed.

    \b
    Example:
      headrace run shop.py
      headrace run shop.py --drain
    """  # fmt: skip
    if standby + take_over + share > 1:
        raise click.UsageError("--standby waits, --take-over takes all flows, --share a part: say one of them.")
    log_to_stderr(log_format)
    app = loaded(program, spark)
    _check_flows(app)
    if app.flows:
        note(f"starting Spark for {_file(program)[0].name}")
    server = None if drain else _server(app, serve)
    with stoppable() as stopping, contextlib.closing(app), contextlib.ExitStack() as served, blamed(program, app):
        if server is not None:
            served.callback(server.stop)
        if drain:
            records = run_in_thread(app.drain, stopping, catching_up(app.status))
            note(f"{counted(records, 'record')} processed{in_spark(app.status())}")
            _say_who_waits(app)
            return
        waiting = (lambda: not stopping.is_set()) if standby else None
        began = time.monotonic()
        what = (
            "on standby" if waiting is not None else "Spark starts, and flows are checked" if app.flows else "starting"
        )
        ticker = Ticker(lambda: f"{what}: {time.monotonic() - began:.0f} s")
        run_in_thread(lambda: app.begin(wait=waiting, take_over=take_over, share=share), stopping, ticker)
        note(f"running {_parts(app)} of {app.name} in {app.home}; Ctrl-C stops")
        if "capture" not in app.beside.kinds():  # they make topics
            _say_who_waits(app)
        if metrics is not None:
            from headrace.flows import metrics as numbers

            host, port = metrics
            note(f"metrics on http://{host}:{numbers.serve(port, app.status, host=host)}/metrics")
        if server is not None:
            from headrace.cli.serve import tell

            server.start()
            tell(server)
        _watch(app, stopping)
    note("stopped")
    stopping.tell()


def _server(app: App, wanted: bool | None) -> Server | None:
    """What serves the page; None if it is not wanted, or nobody asked for it and it is not installed."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    from headrace.cli.serve import token
    from headrace.serve import open_server

    try:
        at = {"views": app.views_at, "log": app.log_at}
        return open_server(app.home, token=token(), flows=app.status, beside=app.beside.states, **at)
    except ServeMissing as error:
        if wanted:
            app.close()
            raise
        note(f"no page: {error}")
        return None


def run_in_thread(work: Callable[[], Result], stopping: Stopping, ticker: Ticker | None = None) -> Result:
    """Does it in a thread: a Spark that is started in the main thread puts its own handler of Ctrl-C over ours, and
    what that raises is lost, or ends in a traceback."""
    done: list[Result] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as problem:
            error.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    with standard_error() as said, contextlib.ExitStack() as at_end:
        if ticker is not None:
            at_end.callback(ticker.clear)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            if stopping.is_set():
                click.echo("stopping", file=said)  # a Spark that is being started has to be waited for
                raise KeyboardInterrupt if stopping.interrupted else Terminated
            if ticker is not None:
                ticker.tick()
    if error and stopping.is_set():  # whoever stops all processes of a service stops Spark, too
        raise KeyboardInterrupt if stopping.interrupted else Terminated
    if error:
        raise error[0]
    return done[0]


def _watch(app: App, stopping: Stopping) -> None:
    """Until it is stopped or a flow fails; how it does is on the terminal meanwhile."""
    live = sys.stderr.isatty()
    pace = Pace(bar=live)

    def all_of_it() -> str:
        return " · ".join(filter(None, (line(app.status(), pace, shown_columns()), *_beside(app, whole=not app.flows))))

    ticker = Ticker(all_of_it) if live else catching_up(app.status)
    while not stopping.is_set():
        if app.wait("200 milliseconds"):
            return
        ticker.tick()
    ticker.clear()
    note("stopping")


def line(statuses: list[FlowStatus], pace: Pace, columns: int) -> str:
    """All flows in one line: each by itself where that fits, else all together, and the one that is behind most."""
    said = _one_by_one(statuses, pace)
    return said if len(said) <= columns else _together(statuses)


def _beside(app: App, *, whole: bool) -> list[str]:
    """What runs beside the flows and not as it should; or all of it."""
    return [
        f"{lock.replace('/', ' ')}: {state}{f': {error}' if error else ''}"
        for lock, (state, error) in app.beside.states().items()
        if whole or state != "running"
    ]


def _parts(app: App) -> str:
    """How much of it there is: "2 flows, 1 capture"."""
    kinds = app.beside.kinds()
    numbers = {"flow": len(app.flows), **{kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}}
    return ", ".join(counted(number, what) for what, number in numbers.items() if number)


def _say_who_waits(app: App) -> None:
    """A topic that is misspelt never comes."""
    for each in app.beside:
        if said := each.waits:
            note(said)


def _together(statuses: list[FlowStatus]) -> str:
    said = f"{counted(len(statuses), 'flow')}: {sum(status.rate for status in statuses):,.0f}/s"
    said += f", lag {sum(status.lag for status in statuses):,}"
    behind = max(statuses, key=lambda status: status.lag)
    if behind.lag:
        said += f" ({behind.flow} {behind.lag:,})"
    if frontiers := [status.frontier for status in statuses if status.frontier is not None]:
        said += f", complete to {min(frontiers):%H:%M:%S}"
    if dead := sum(status.dead for status in statuses):
        said += f", {counted(dead, 'dead letter')}"
    for status in statuses:
        if status.state in ("retrying", "failed"):
            said += f", {status.flow} {status.state}: {status.error}"
        said += "".join(f", {each}" for each in status.held)
    return said + in_spark(statuses)


def _one_by_one(statuses: list[FlowStatus], pace: Pace) -> str:
    parts = []
    for status in statuses:
        said = pace.line(status) if status.state in ("running", "waiting") else None
        if said is not None:
            parts.append(said)
            continue
        said = f"{status.flow}: {status.rows:,} rows, {status.rate:,.0f}/s, lag {status.lag:,}"
        if status.frontier is not None:
            said += f", complete to {status.frontier:%H:%M:%S}"
        if status.dead:
            said += f", {counted(status.dead, 'dead letter')}"
        if status.committing_seconds > 1:
            said += f", committing for {status.committing_seconds:.0f} s"
        if status.state in ("retrying", "failed"):
            said += f", {status.state}: {status.error}"
        said += "".join(f", {each}" for each in status.held)
        parts.append(said + in_spark([status]))
    return " · ".join(parts)


@click.command()
@app_argument
@click.option("--spark", metavar="MASTER", help="The Spark to use; default: a local session.")
@home_option
def check(program: str, spark: str | None) -> None:
    """Check a program without running it: columns, types, transforms, and whether its views are what they were.

    \b
    Example:
      headrace check shop.py
    """
    with busy("starting Spark"):
        app = loaded(program, spark)
        with contextlib.closing(app), blamed(program, app):
            _check_flows(app)
            app._check()
        said = f"{app.name}: {_parts(app)}, ok"
    note(said)


@click.command()
@app_argument
@click.option("--spark", metavar="MASTER", help="The Spark to use; default: a local session.")
@format_option
@home_option
def audit(program: str, spark: str | None, format_: str | None) -> None:
    """Recompute every view from the log, as one batch, and compare; exit code 3 if there is a difference.

    \b
    Example:
      headrace audit shop.py
    """
    with busy("recomputing"):
        app = loaded(program, spark)
        with contextlib.closing(app), blamed(program, app):
            result = app.audit()
    if result.differences:
        columns = ("view", "row", "column", "stored", "expected")
        print_rows([{name: getattr(each, name) for name in columns} for each in result.differences], columns, format_)
    for each in result.gone:
        note(str(each))
    if not result.views and not result.gone:
        note(f"nothing to compare: no view of {app.name} has been run yet (headrace run {program})")
        return
    note(
        f"{counted(result.views, 'view')}, {counted(result.rows, 'row')} recomputed: "
        + ("no difference" if result.ok else counted(result.found, "difference"))
    )
    if not result.ok:
        raise click.exceptions.Exit(FOUND)


# -- the program ---------------------------------------------------------------------------------------


def _file(program: str) -> tuple[Path, str]:
    """The file that APP.py[:NAME] means, and the name; wrong usage if there is none."""
    name, _, attribute = program.partition(":") if ".py:" in program else (program, "", "")
    if not Path(name).is_file():
        raise click.BadParameter(f"there is no file {name!r}", param_hint="APP.py")
    if not name.endswith(".py"):
        raise click.BadParameter(f"{name!r} is not a Python file (.py)", param_hint="APP.py")
    return Path(name), attribute


def loaded(program: str, spark: str | None) -> App:
    """The app of a file; wrong usage says what is wrong with it."""
    from headrace import app as apps

    path, attribute = _file(program)
    if path.stem in sys.stdlib_module_names:
        why = f"is named like Python's module {path.stem!r}, and would be imported in its place: rename the file"
        raise click.BadParameter(f"{path} {why}", param_hint="APP.py")
    home = click.get_current_context().meta.get(HOME)
    if home:
        apps.overrides["home"] = home
    if log := click.get_current_context().meta.get(LOG):
        apps.overrides["log"] = log
    if views := click.get_current_context().meta.get(VIEWS):
        apps.overrides["views"] = views
    if spark:
        apps.overrides["spark"] = spark
    sys.path.insert(0, str(path.parent.absolute()))
    from headrace.flows.spark import shipping

    shipping.by_value(path.stem)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        _trace(error, path)
        what = NO_SESSION if _wants_session(error) else f"{type(error).__name__}: {error}"
        raise click.ClickException(f"{path} cannot be loaded: {what}") from None
    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, apps.App):
            return found
    named = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, apps.App)}
    names = ", ".join(name for name, _ in named.values())
    if not named:
        raise click.BadParameter(f"{path} has no hr.App", param_hint="APP.py")
    if attribute:
        raise click.BadParameter(f"{path} has no app named {attribute!r}. It has: {names}", param_hint="APP.py")
    if len(named) > 1:
        why = f"{path} has {len(named)} apps: {names}. Say which: {path}:{names.partition(',')[0]}"
        raise click.BadParameter(why, param_hint="APP.py")
    ((_, app),) = named.values()
    return app


def _check_flows(app: App) -> None:
    if not app._has_flows or app.flows:
        return
    why = "has no flows: end a stream with .to_view(…), .to_topic(…) or .to_sink(…)"
    raise InvalidArgument("app", app.name, why)


NO_SESSION = (
    "PySpark can create columns (F.col, F.expr) and UDFs whose type is text (F.udf('int')) only while there is a "
    "session, and there is none yet. In .agg(…) write a column's name or SQL: hr.sum('v'), hr.sum('v * 2'), "
    "hr.count(where='v > 2'). Declare a UDF with a type object: @F.udf(IntegerType()). Put everything else into the "
    "function of .transform(…)."
)


def _wants_session(error: Exception) -> bool:
    """PySpark says so, or fails an assertion without a word."""
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    of = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return isinstance(error, AssertionError) and of.startswith("pyspark.")


@contextlib.contextmanager
def blamed(program: str, app: App) -> Iterator[None]:
    """What the program's own functions raise while its flows are checked: where, and one line at the end. Of a Spark
    that is gone, that it is. Anything else is not the program's fault, and is left alone."""
    path, _ = _file(program)
    try:
        yield
    except (HeadraceError, click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        app.running.refuse_lost()
        notes = getattr(error, "__notes__", [])
        if not notes:
            raise
        _trace(error, path)
        what = next((line for line in str(error).splitlines() if line.strip()), "")
        raise click.ClickException(f"{path}: {type(error).__name__}: {what} ({', '.join(notes)})") from None


def _trace(error: Exception, path: Path) -> None:
    import traceback

    for each in "".join(traceback.format_exception(error.with_traceback(_own(error, path)))).splitlines():
        note(each)


def _own(error: BaseException, path: Path) -> Any:
    """The traceback from the program's own lines on; none if it has no line of it, as with a syntax error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path.absolute()):
        trace = trace.tb_next
    return trace


def log_to_stderr(how: str) -> None:
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # the line of the flows is there, and comes again

    class Json(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            said = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))}
            said |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
            return clear + json.dumps(said)

    handler = logging.StreamHandler()
    handler.setFormatter(Json() if how == "json" else logging.Formatter(f"{clear}%(levelname)s %(message)s"))
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if how == "json" else logging.WARNING)
