"""The Spark session: one of ours, with the settings that suit small batches on one machine, or the user's as it is.
Owns the session it made and what the JVM prints: that goes to a file, not over the user's terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import Closed, HeadraceError, InvalidArgument, JavaMissing, SparkLost
from headrace.flows.spark import class_archive, java, local_dir, shipping
from headrace.storage import disk

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headrace.flows.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",  # one task groups at once, by the faster map too
    "spark.sql.shuffle.partitions": "{cores}",
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",
}
"""Of a session we make; a user's own entries come over them."""
JAVA_OPTIONS, LOCAL_DIR = "spark.driver.extraJavaOptions", "spark.local.dir"
CLASSES = (
    *("PythonRDD", "PythonSQLUtils", "PythonUtils", "SerDeUtil", "SimplePythonFunction", "functions"),
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.sql.functions",
)
"""Of Spark's, by the names that PySpark has for them."""
LOG = "spark.log"
LOCATE, LOCATED = "headrace.locate", re.compile(r"^headrace: row (\d+)\n", re.MULTILINE)
"""The property of a job whose Python functions note at which row they fail, and the note."""
END_SECONDS = 5.0
"""A JVM that does not answer any more has ended by then."""


def active() -> SparkSession | None:
    """The session that is there already."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def make(app: str, spark: Any, home: Path, *, outlives_home: bool = False) -> tuple[SparkSession, bool]:
    """The session to run on, and whether we made it (and so have to stop it). `spark`: a SparkSession, a master
    ("spark://…", "local[4]"), a connect address ("sc://…"), a mapping of settings, or None. `outlives_home`: another
    app may go on with the session when the home is gone."""
    shipping.register_programs()
    if spark is not None and not isinstance(spark, (str, Mapping)):
        if shipping.is_elsewhere(master_of(spark)):
            shipping.to_given(spark, connected=context_of(spark) is None)
        return spark, False
    from pyspark.sql import SparkSession

    settings = {key: value.format(cores=os.cpu_count() or 1) for key, value in SETTINGS.items()}
    if isinstance(spark, Mapping):
        settings |= {str(key): str(value) for key, value in spark.items()}
    settings[JAVA_OPTIONS] = f"{settings.get(JAVA_OPTIONS, '')} {class_archive.java_options()}".strip()
    builder = SparkSession.builder.appName(f"headrace {app}")
    running = active() is not None
    java_of_ours = contextlib.nullcontext() if running else java.chosen(class_archive.cache_folder())
    if isinstance(spark, str) and spark.startswith("sc://"):
        builder = builder.remote(spark)
        settings, java_of_ours = {}, contextlib.nullcontext()
    else:
        master = spark if isinstance(spark, str) else settings.get("spark.master", "local[*,4]")
        builder = builder.master(master)
        if not running:
            folder = local_dir.make(home, outlives_home=outlives_home)
            settings.setdefault(LOCAL_DIR, str(folder))
            given = spark if isinstance(spark, Mapping) else {}
            settings = {
                key: value for key, value in settings.items() if key in given or key not in shipping.not_for(master)
            }
            settings |= shipping.settings(master, settings, folder)
    for key, value in settings.items():
        builder = builder.config(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    disk.make_directory(home)
    with java_of_ours, _quiet(home / LOG):
        try:
            session = builder.getOrCreate()
        except ImportError as error:
            raise InvalidArgument("spark", spark, f"needs pip install 'headrace[connect]' ({error})") from error
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" in str(error) or isinstance(error, FileNotFoundError):
                raise _not_started(error, home) from error
            raise
    if (context := context_of(session)) is None:
        shipping.to_given(session, connected=True)
    else:
        context.setLogLevel("ERROR")
        if not running:
            _ignore_sigterm(context)
            _end_quietly(context)
            _know_classes(context)
    if not running:
        _say_errors_once()
    return session, not running


def _not_started(error: Exception, home: Path) -> HeadraceError:
    """Why there is no JVM: no Java that Spark runs on, or it ended while it started."""
    found = java.home()
    if found is None or not java.serves(java.said(found / "bin" / "java")):
        return JavaMissing(why=java.missing() or str(error).splitlines()[0])
    return SparkLost(why="while it started", log=str(home / LOG))


def _ignore_sigterm(context: SparkContext) -> None:
    """A SIGTERM for the whole group, or for all processes of a service, is ours to answer: flows need the JVM to finish
    their batches. It ends when its standard input does: with this process, however that ends."""
    misc = context._jvm.sun.misc  # type: ignore[union-attr]
    misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)


def _end_quietly(context: SparkContext) -> None:
    """When the JVM goes away, PySpark's server of accumulators prints a traceback, and Py4J logs one with the root
    logger in place of its own. The flow says that it is gone."""
    from py4j import java_gateway  # type: ignore[import-untyped]

    server = context._accumulatorServer
    tell = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            tell(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]
    own = java_gateway.logger
    java_gateway.logging = SimpleNamespace(**{**vars(logging), "info": own.info, "exception": own.exception})


def _know_classes(context: SparkContext) -> None:
    """PySpark names these at every column and every frame, each time Py4J asks the JVM what the name means, and for a
    name without its package the JVM looks through all its jars first: a fifth of the time it took to plan a flow."""
    view: Any = context._jvm
    vars(view).update((name, getattr(view, name)) for name in CLASSES)


def _say_errors_once() -> None:
    """Spark prints errors of analysis, with the JVM's stack, as JSON to standard error, besides raising them."""
    from pyspark.logger import PySparkLogger

    for name in "SQLQueryContextLogger", "DataFrameQueryContextLogger":
        PySparkLogger.getLogger(name).disabled = True


# -- a JVM for several processes ---------------------------------------------------------------------


def lent(spark: SparkSession) -> tuple[int, str] | None:
    """How another process on this machine gets to the session's JVM; None over Spark Connect."""
    context = context_of(spark)
    if context is None:
        return None
    known = context._gateway.gateway_parameters  # type: ignore[union-attr]
    return known.port, known.auth_token


def borrowed(port: int, token: str) -> SparkSession:
    """The session of the process that lent it, for this one: starting a JVM takes seconds. This process may stop it or
    die as it likes, the JVM goes on."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    where = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    os.environ.update(where)
    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # to the one that is there
    for name in where:
        del os.environ[name]
    found = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    java = gateway.jvm.JavaSparkContext(found.sparkContext())
    made = SparkSession(SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf())), found)
    made.stop = lambda: None  # type: ignore[method-assign]
    _know_classes(made.sparkContext)
    return made


# -- what a session can be asked, over Spark Connect too ---------------------------------------------


def context_of(spark: SparkSession) -> SparkContext | None:
    """A session of Spark Connect has none: its JVM is elsewhere."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def cores(spark: SparkSession) -> int:
    """How many tasks run at once, as far as the session tells."""
    context = context_of(spark)
    return context.defaultParallelism if context is not None else os.cpu_count() or 1


def side_by_side(actions: Sequence[Callable[[], T]]) -> list[T]:
    """What the actions return, run at the same time, the last one in this thread. The others get this thread's local
    properties, such as job tags. When several fail, the first one's error is raised, after all have ended."""
    from pyspark import InheritableThread

    ended: list[Future[T]] = [Future() for _ in actions]

    def run(action: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    pairs = list(zip(actions, ended, strict=True))
    threads = [InheritableThread(target=run, args=pair) for pair in pairs[:-1]]
    for thread in threads:
        thread.start()
    run(*pairs[-1])
    for thread in threads:
        thread.join()
    return [future.result() for future in ended]


def master_of(spark: SparkSession) -> str:
    """Of Spark Connect, that it is that."""
    context = context_of(spark)
    return "sc://" if context is None else str(context.master)


def workers_are_here(spark: SparkSession) -> bool:
    """Whether they share this process's files."""
    return not shipping.is_elsewhere(master_of(spark))


def workers_reach(spark: SparkSession, *, shared: bool) -> bool:
    """Whether workers can open the flow's state; `shared`: it is in a store that is reached from anywhere."""
    return workers_are_here(spark) or (shared and context_of(spark) is not None)


def refuse_far_workers(spark: SparkSession, log: Path | None) -> None:
    """WorkersElsewhere if Spark's workers are on other machines, and the log is a directory of this one."""
    master = master_of(spark)
    if shipping.is_elsewhere(master):
        shipping.refuse_far_workers(spark, master, 2 * cores(spark), log)


def refuse_lost(spark: SparkSession, what: str, home: Path) -> None:
    """SparkLost if the session's JVM is gone, Closed if the session was stopped; over Spark Connect nobody can tell."""
    context = context_of(spark)
    if context is None:
        return
    try:
        stopped = context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception as error:
        raise SparkLost(why=_ended(context), log=str(home / LOG)) from error
    if stopped:
        raise Closed(what=f"the Spark session of {what}")


def refuse_ended(spark: SparkSession, home: Path) -> None:
    """SparkLost if the JVM that this process started has ended. Asks the process, not the JVM: that costs nothing."""
    context = context_of(spark)
    jvm = None if context is None else getattr(context._gateway, "proc", None)
    if context is not None and jvm is not None and jvm.poll() is not None:
        raise SparkLost(why=_ended(context), log=str(home / LOG))


def _ended(context: SparkContext) -> str:
    """How the JVM did; a JVM that this process did not start does not tell."""
    try:
        code = context._gateway.proc.wait(END_SECONDS)  # type: ignore[union-attr]
    except (AttributeError, subprocess.TimeoutExpired):
        return "it does not answer"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def stop(spark: SparkSession) -> None:
    """Ends the session; one whose JVM is gone has ended."""
    try:
        spark.stop()
    except Exception:
        if _answers(spark):
            raise


def _answers(spark: SparkSession) -> bool:
    try:
        return spark._jvm is not None and bool(spark._jvm.System.nanoTime())
    except Exception:
        return False


def cancel(spark: SparkSession) -> None:
    """Whatever runs is given up."""
    context = context_of(spark)
    if context is not None:
        context.cancelAllJobs()
    else:
        spark.interruptAll()


@dataclass(frozen=True, slots=True)
class FailedTask:
    """`row`: of those it was given, the one it had come to, as far as it is known."""

    error: str
    row: int | None


def failed_tasks(spark: SparkSession, run: Callable[[], object], tasks: int) -> dict[int, FailedTask]:
    """Runs a job of so many tasks: number -> each that failed at first. None, if it is not known: over Spark Connect,
    and where a task that fails is not run again."""
    context = context_of(spark)
    if context is None:
        return {}
    tag = f"headrace-search-{uuid.uuid4().hex}"
    context.addJobTag(tag)  # not a job group: the thread may have one of its own
    context.setLocalProperty(LOCATE, "true")
    try:
        run()
        return _errors_of_tasks(context, tag, tasks)
    except Exception:  # Spark's own records of its tasks are not for everybody: they may look otherwise tomorrow
        return {}
    finally:
        context.setLocalProperty(LOCATE, None)  # type: ignore[arg-type]
        context.removeJobTag(tag)


def _errors_of_tasks(context: SparkContext, tag: str, tasks: int) -> dict[int, FailedTask]:
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    status, states = scala.statusStore(), context._jvm.org.apache.spark.status.api.v1  # type: ignore[union-attr]
    failed = context._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    failed.add(states.TaskStatus.FAILED)
    tracker, out = context.statusTracker(), {}
    jobs = [tracker.getJobInfo(job) for job in scala.statusTracker().getJobIdsForTag(tag)]
    for stage in (stage for job in jobs if job is not None for stage in job.stageIds):
        known = tracker.getStageInfo(stage)
        if known is None or known.numTasks != tasks:
            continue  # of a table that is joined
        found = status.taskList(stage, 0, 0, 2**31 - 1, states.TaskSorting.ID, failed)
        for number in range(found.size()):
            task = found.apply(number)
            out[task.index()] = _failed(task)
    return out


def _failed(task: Any) -> FailedTask:
    """What failed in Python says at which row. What did in the JVM, which takes row by row, did at the last it took."""
    error = task.errorMessage().get()
    if noted := LOCATED.search(error):
        return FailedTask(error[: noted.start()] + error[noted.end() :], int(noted[1]))
    metrics = task.taskMetrics()
    if "Traceback (most recent call last):" in error or metrics.isEmpty():
        return FailedTask(error, None)
    return FailedTask(error, metrics.get().inputMetrics().recordsRead() - 1)


@contextlib.contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """While the JVM is started, standard error is a file: the JVM inherits it, and so do its Python workers."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.dup2(target, 2)
        os.close(target)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
