"""The planner: from the graph of a program to its flows. Owns where the graph is cut (behind every node that keeps
state), which helper flows that takes, and what is refused. Pure: opens nothing, asks no Spark.

    check(node)    refuses what cannot be; every step of a program is checked when it is written
    plan(sink)     the flows that make one view or topic: helpers first, each with the flow it works for as parent

What a topic that is not used yet turns out to be may change both: then `plan` is asked again, and checks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from headrace.aggregates import Aggregate, first, over_changes
from headrace.durations import format_duration
from headrace.errors import InvalidArgument
from headrace.flows import graph
from headrace.flows.flow import Flow, Input, Transform
from headrace.log.declared import DeclaredTopic
from headrace.operators.dedup import TakeOut
from headrace.operators.joins.meetings import Enriching, Joining, ViewEnriching
from headrace.operators.stored.searching import FACTS, Searching
from headrace.views.contract import ARRIVED, RECORD, Gaps, feed_topic
from headrace.windows import Aligned, Correct, Drop, Late, Session, Window, drop

if TYPE_CHECKING:
    from headrace.log.contract import Topic

Written = Callable[[Flow], DeclaredTopic]
"""The topic that a helper writes, for the flow that reads it."""
Keeping = graph.Dedup | graph.Through | graph.Meet
"""Nodes that keep state: the graph is cut behind them."""
Stateful = (graph.Dedup, graph.Through, graph.Meet)


# -- what is known of a node -------------------------------------------------------------------------


def holds_changes(topic: Topic) -> bool:
    """Whether its records are changes, as far as that is known without opening it."""
    settings = topic.known_settings if isinstance(topic, DeclaredTopic) else topic.settings
    return settings is not None and settings.changes


def origin(node: graph.Records) -> graph.Records:
    """What comes before the transforms: a source, a union, a dedup or an operator."""
    while isinstance(node, graph.Transform):
        node = node.of
    return node


def reads_changes(node: graph.Records) -> bool:
    """Whether what it reads are changes: of a view, or in a topic."""
    found = origin(node)
    return isinstance(found, graph.Changes) or (isinstance(found, graph.Source) and holds_changes(found.topic))


def can_retract(node: graph.Records) -> bool:
    """Whether what comes out of it can be taken back."""
    found = origin(node)
    exact = isinstance(found, graph.Dedup) and found.approximate is None
    return reads_changes(node) or exact or isinstance(found, graph.Meet)


def writes_changes(sink: graph.Sink) -> bool:
    """Whether the topic gets changes, as far as that is known without Spark: a transform behind agg may drop `op`."""
    if isinstance(sink.of, graph.Aggregate):
        return not sink.of.after
    return can_retract(sink.of) and not (sink.plain and isinstance(sink.of, graph.Meet))


def only_adds(meet: graph.Meet) -> bool:
    """Whether its rows are never taken back: pairs of records that stay, where nothing is corrected; and records that
    stored queries find."""
    step, sides = meet.step, [node for _, node in meet.sides]
    if isinstance(step, Searching):
        return not any(_is_taken_back(node) for role, node in meet.sides if role == FACTS)
    adds = isinstance(step, Joining) and step.how == "inner" and not step.late.within_us
    return adds and not any(map(_is_taken_back, sides))


def _is_taken_back(node: graph.Records) -> bool:
    """Whether a row that comes out of it is ever taken back; `can_retract` says whether it is told as a change."""
    found = origin(node)
    return can_retract(node) and not (isinstance(found, graph.Meet) and only_adds(found))


def _keeps_arrival(node: graph.Node) -> bool:
    """Whether the arrival of its rows follows from the logs: it is the largest of those of the records in it. Of an
    aggregate that records are taken out of, nobody knows which was the last that stays."""
    match node:
        case graph.Changes():
            return node.view.sink is None or _keeps_arrival(node.view.sink.of)
        case graph.Aggregate() if can_retract(node.of.of):
            return False
    return all(map(_keeps_arrival, graph.before(node)))


# -- what is refused ---------------------------------------------------------------------------------


def check(node: graph.Node) -> None:
    """InvalidArgument if there can be no such node, by what is known of its topics now."""
    match node:
        case graph.Source():
            _check_source(node)
        case graph.Changes():
            _check_changes(node)
        case graph.Union():
            _check_union(node)
        case graph.Dedup():
            _check_plain(node.of, "key", node.key, "dedup()")
            if node.approximate is not None and isinstance(node.late, Correct):
                why = (
                    "with approx=… nothing is corrected: records count while their partition is `within` and `grace` on"
                )
                raise InvalidArgument("late", node.late, f"{why}. Make grace longer, or use hr.drop(…)")
        case graph.Through():
            _check_plain(node.of, "step", str(node.step), "through()")
        case graph.Meet():
            _check_meet(node)
        case graph.Window(window=Window() as window):
            _check_window(node, window)
        case graph.Aggregate():
            _aggregates(node)
        case graph.Sink():
            _check_sink(node)


def _check_meet(node: graph.Meet) -> None:
    called = f"{node.step.called}()"
    for role, each in node.sides:
        if isinstance(each, graph.Changes) and role in node.step.first:
            continue  # a view is a table, too
        found = origin(each)
        if isinstance(found, graph.Source) and holds_changes(found.topic):
            why = f"topic {found.topic.name!r} has changes, and its '-' does not say which row it takes back. Join the"
            raise InvalidArgument("step", called, f"{why} view, or the stream, that writes it")
        if isinstance(found, graph.Changes) and found.view.after:
            why = f"view {found.view.name!r} has a transform behind agg, and several of its rows may be of one result."
            raise InvalidArgument("step", called, f"{why} Join a view without it, and transform its stream")
        if isinstance(node.step, ViewEnriching) and can_retract(each):
            why = f"of a view needs plain records, and rows behind {_called(found)} can be taken back"
            raise InvalidArgument("step", called, f"{why}. Call it before that")
        if isinstance(node.step, Enriching) and node.step.missing == "dead_letter" and can_retract(each):
            why = "is for records, and rows can be taken back here: a dead letter could not. Use 'drop' or 'null'"
            raise InvalidArgument("missing", node.step.missing, why)
        if role == "facts" and not _keeps_arrival(each):
            why = "finds what had arrived before a row, and a result that records were taken out of does not know when "
            raise InvalidArgument("step", called, f"{why}it arrived. Call {called} before .agg(…)")
    starts: dict[str, object] = {}
    for _, each in node.sides:
        if isinstance(origin(each), Stateful):
            continue
        for read, _ in _branches(each):
            if isinstance(read, graph.Source) and starts.setdefault(read.topic.name, read.start) != read.start:
                why = (
                    f"topic {read.topic.name!r} is read twice, and a flow has one place in a topic: give both one start"
                )
                raise InvalidArgument("start", read.start, why)


def _check_source(source: graph.Source) -> None:
    if holds_changes(source.topic) and source.start != "earliest":
        why = "a topic of changes is read from the beginning, or its rows would not add up. Leave it out"
        raise InvalidArgument("start", source.start, why)


def _check_changes(changes: graph.Changes) -> None:
    flow = changes.view
    if flow.target is not None:
        why = f"is not a view, but a flow into topic {flow.target!r}: stream that topic"
        raise InvalidArgument("source", flow.name, why)
    if changes.emit == "final" and flow.window is None:
        raise InvalidArgument("emit", changes.emit, "without a window no result is ever final: use emit='updates'")
    if flow.lives:
        why = "drops groups that get no record for some time (keep=…), and that is not a change of their records"
        raise InvalidArgument("source", flow.name, f"{why}. Define a second view without keep=, and stream that")
    if flow.fill is not None:
        why = f"fills gaps when it is read (fill={flow.fill!r}), and rows that fill gaps are no changes"
        raise InvalidArgument("source", flow.name, f"{why}. Define a second view without fill=, and stream that")


def _check_union(union: graph.Union) -> None:
    for each in (union.left, union.right):
        if reads_changes(each) or isinstance(origin(each), Stateful):
            why = "union() needs plain records, and this stream can retract rows (it is behind dedup(…), or over a "
            why += "view). Call union() before that"
            raise InvalidArgument("other", _called(origin(each)), why)
    starts: dict[str, object] = {}
    for read, _ in _branches(union):
        assert isinstance(read, graph.Source)
        if starts.setdefault(read.topic.name, read.start) != read.start:
            why = f"topic {read.topic.name!r} is read twice, and a flow has one place in a topic: give both one start"
            raise InvalidArgument("start", read.start, why)


def _called(node: graph.Records) -> str:
    """In an error: what a stream begins with."""
    match node:
        case graph.Source():
            return f"topic {node.topic.name}"
        case graph.Changes():
            return f"view {node.view.name}"
        case graph.Through():
            return f"through({node.step})"
        case graph.Meet():
            return f"{node.step.called}(…)"
    return "dedup(…)"


def _check_plain(of: graph.Records, argument: str, value: object, step: str) -> None:
    if isinstance(found := origin(of), graph.Meet):
        why = f"{step} needs plain records, and rows behind {_called(found)} can be taken back. Call it before that; or"
        raise InvalidArgument(
            argument, value, f"{why} write an inner join to a topic with changes=False, and read that"
        )
    if can_retract(of):
        raise InvalidArgument(argument, value, f"{step} needs plain records: call it before .agg(…) and dedup(…)")
    if step == "dedup()" and isinstance(origin(of), graph.Dedup):
        raise InvalidArgument(argument, value, "dedup() is called twice: call it once")


def _check_window(node: graph.Window, window: Window) -> None:
    found = origin(node.of)
    if isinstance(found, graph.Changes):
        _check_over_view(found.view, node, window)
    elif isinstance(found, graph.Source) and holds_changes(found.topic):
        _check_over_changes(f"topic {found.topic.name!r}", node, window)
    elif isinstance(found, Stateful):
        if node.time is not None and not _by_a_side(node):
            why = f"behind {_called(found)} windows use the records' own event time: leave it out"
            raise InvalidArgument("time", node.time, why)
        if can_retract(found) and not window.aligned:
            why = f"behind {_called(found)} use tumbling, hopping, cumulative or calendar windows"
            why += "" if isinstance(found, graph.Meet) else "; dedup(…, approx=…) allows all"
            raise InvalidArgument("window", str(window), why)
    if node.fill is not None:
        _check_fill(node.fill, window)


def _by_a_side(node: graph.Window) -> bool:
    """Whether windows behind a join of streams may go by a column of their own: the time of a side, as the compiler
    makes sure."""
    found = origin(node.of)
    return isinstance(found, graph.Meet) and isinstance(found.step, Joining) and node.time != ARRIVED


def _check_over_view(view: Flow, node: graph.Window, window: Window) -> None:
    """Refuses settings of records (time, grace, late) over a view: they were decided where the topic was read."""
    of = f"view {view.name!r}"
    if view.window is None:
        why = f"{of} has no windows, so its rows have no time. Use .group_by(…) without .window(…)"
        raise InvalidArgument("window", str(window), why)
    _check_over_changes(of, node, window)
    if isinstance(window, Aligned) and isinstance(view.window, Aligned) and window.longest_us < view.window.longest_us:
        why = f"is shorter than the windows of {of}, {view.window}. Use the same size or a longer one"
        raise InvalidArgument("window", str(window), why)


def _check_over_changes(of: str, node: graph.Window, window: Window) -> None:
    if not window.aligned:
        raise InvalidArgument("window", str(window), f"over {of} use tumbling, hopping, cumulative or calendar windows")
    if node.time is not None:
        raise InvalidArgument("time", node.time, f"a row of {of} has the time of its window. Leave it out")
    given = {"grace": format_duration(node.grace_us) if node.grace_us else None, "late": node.late}
    for argument, value in given.items():
        if value is not None:
            why = f"a change of {of} is never late: lateness was decided where the topic was read. Leave it out"
            raise InvalidArgument(argument, str(value), why)


def _check_fill(fill: Gaps, window: Window) -> None:
    if fill not in get_args(Gaps):
        raise InvalidArgument("fill", fill, f"must be one of {', '.join(map(repr, get_args(Gaps)))}")
    if not window.aligned:
        why = f"{window} has a window only where there are records, so it has no gaps"
        raise InvalidArgument("fill", fill, f"{why}. Use hr.tumbling(…) or hr.calendar(…)")
    if not (isinstance(window, Aligned) and window.disjoint):
        why = f"is for windows that follow each other, and those of {window} overlap"
        raise InvalidArgument("fill", fill, f"{why}. Use hr.tumbling(…) or hr.calendar(…), or leave it out")


def _check_sink(sink: graph.Sink) -> None:
    if not isinstance(sink.of, graph.Aggregate):
        met = origin(sink.of)
        if sink.plain and isinstance(met, graph.Meet) and not (met is sink.of and only_adds(met)):
            why = "rows can be taken back here, and a topic of records does not say so. Leave it out, or make an inner"
            raise InvalidArgument(
                "changes", False, f"{why} join of streams, without late=hr.correct(…), and put transforms before it"
            )
        return
    window = sink.of.of
    if sink.target is None:
        if sink.keep_us is not None and window.window is None and can_retract(window.of):
            why = "needs a window here: over a view, and behind dedup, records can be retracted"
            why = f"{why}. Leave it out, use a window, or use dedup(…, approx=…)"
            raise InvalidArgument("keep", format_duration(sink.keep_us), why)
        if window.fill is not None and sink.of.after:
            why = "a transform behind agg sees stored results only, and rows that fill gaps are not stored"
            raise InvalidArgument("fill", window.fill, f"{why}. Leave one of them out, or compute it in the query")
        return
    if sink.emit == "final" and window.window is None:
        raise InvalidArgument("emit", sink.emit, "without a window no result is ever final: use emit='updates'")
    if window.fill is not None:
        why = "gaps are filled when a view is read, and a topic has stored rows only. Leave it out, or use"
        raise InvalidArgument("fill", window.fill, f"{why} .to_view(…)")


def _aggregates(node: graph.Aggregate) -> Mapping[str, Aggregate]:
    """The aggregates as they are made of what they are given: where that can be taken back, they can take it back."""
    found = origin(node.of.of)
    view = found.view if isinstance(found, graph.Changes) else None
    for name, each in node.aggregates.items():
        if each.kind == "merge" and view is None:
            raise InvalidArgument(name, str(each), "merges the state of a view: use it over app.stream(view)")
        if each.kind == "merge" and view is not None and view.after:
            why = f"view {view.name!r} has a transform behind agg, and transformed rows have no state to merge. "
            why += "Aggregate their columns, hr.sum(…), or stream a view without the transform"
            raise InvalidArgument(name, str(each), why)
    if not _is_taken_back(node.of.of):
        return node.aggregates
    known = None if isinstance(found, graph.Dedup | graph.Meet) else {} if view is None else view.aggregates or {}
    transformed = isinstance(node.of.of, graph.Transform)
    return {name: over_changes(name, each, known, transformed=transformed) for name, each in node.aggregates.items()}


# -- flows -------------------------------------------------------------------------------------------


def plan(sink: graph.Sink, written: Written) -> list[Flow]:
    """The flows that make the sink's view or topic: helpers first, its own last."""
    for node in graph.walk(sink):
        check(node)
    if isinstance(sink.of, graph.Aggregate):
        aggregate, window = sink.of, sink.of.of
        helpers, flow = _reading(sink, window.of, window, written)
        flow = replace(
            flow,
            window=window.window,
            time=None if _by_a_side(window) else window.time,
            grace_us=window.grace_us,
            late=window.late or Drop(),
            idle_us=window.idle_us,
            absent_us=window.absent_us,
            groups=aggregate.groups,
            aggregates=_aggregates(aggregate),
            after=aggregate.after,
            keep_us=sink.keep_us,
            every_us=sink.every_us,
            fill=window.fill,
        )
        if window.window is None and sink.keep_us is not None:
            flow = replace(flow, window=Session(sink.keep_us), time=ARRIVED, lives=True)
    elif isinstance(met := origin(sink.of), graph.Meet) and (sink.target is None or met is sink.of):
        helpers, flow = _meeting(sink.name, sink.name, met, graph.Window(met), written)
        flow = replace(flow, target=sink.target, every_us=sink.every_us, after=_transforms(sink.of), sink=sink)
    else:
        helpers, flow = _reading(sink, sink.of, graph.Window(sink.of), written)
    return [*helpers, flow]


def _reading(
    sink: graph.Sink, records: graph.Records, window: graph.Window, written: Written
) -> tuple[list[Flow], Flow]:
    """The sink's flow as far as its inputs, and the helpers that write these."""
    flow = Flow(sink.name, (), target=sink.target, emit=sink.emit, sink=sink)
    found = origin(records)
    if isinstance(found, Stateful):
        if isinstance(found, graph.Meet) and isinstance(found.step, Joining) and window.time is not None:
            found = replace(found, step=replace(found.step, by=window.time))
        helpers = _helpers(sink.name, sink.name, found, window, written)
        exact = can_retract(found)
        read = Input(written(helpers[-1]), changes=exact, judged=exact)
        return helpers, replace(flow, inputs=(read,), transforms=_transforms(records))
    inputs, transforms = _inputs(records)
    return [], replace(flow, inputs=inputs, transforms=transforms)


def _meeting(
    name: str, parent: str, node: graph.Meet, window: graph.Window, written: Written
) -> tuple[list[Flow], Flow]:
    """The flow in which records of several inputs meet, and the helpers that write these."""
    helpers: list[Flow] = []
    inputs: list[Input] = []
    for role, side in node.sides:
        found = origin(side)
        if isinstance(found, Stateful):
            before = _helpers(parent, f"{name}.{role}", found, window, written)
            helpers += before
            told = can_retract(found)
            read: tuple[Input, ...] = (
                Input(written(before[-1]), changes=told, judged=told, transforms=_transforms(side)),
            )
        else:
            read, transforms = _inputs(side)
            read = tuple(replace(each, transforms=(*each.transforms, *transforms)) for each in read)
        inputs += [replace(each, id=f"{role}:{each.id}", role=role) for each in read]
    step = node.step
    inputs.sort(key=lambda each: each.role in step.first)  # their ends are looked up after those of the others
    flow = Flow(name, tuple(inputs), idle_us=step.idle_us, absent_us=step.absent_us, late=step.late, meets=step)
    return helpers, flow


def _helpers(parent: str, behind: str, node: Keeping, window: graph.Window, written: Written) -> list[Flow]:
    """The flows that keep state for the flow `parent`: the node's, which the flow called `behind` reads, and those
    before it, the last one last."""
    if isinstance(node, graph.Meet):
        name = f"{behind}.{node.step.called}"
        helpers, flow = _meeting(name, parent, node, window, written)
        return [*helpers, replace(flow, parent=parent, target=feed_topic(name, "updates"))]
    step = node.step if isinstance(node, graph.Through) else None
    if step is None and isinstance(node, graph.Dedup) and node.approximate is not None:
        step = TakeOut(node.approximate)
    name = f"{behind}.{'dedup' if step is None else step.called}"
    before = origin(node.of)
    helpers = []
    inputs: tuple[Input, ...]
    if isinstance(before, Stateful):
        helpers = _helpers(parent, name, before, window, written)
        inputs, transforms = (Input(written(helpers[-1])),), _transforms(node.of)
    else:
        inputs, transforms = _inputs(node.of)
    by = node if isinstance(node, graph.Dedup) and window.window is None else window
    helper = Flow(name, inputs, transforms, idle_us=by.idle_us, absent_us=by.absent_us, parent=parent)
    if isinstance(node, graph.Dedup):
        helper = replace(helper, grace_us=node.grace_us, late=node.late or Drop())
    if step is not None:
        inputs = tuple(replace(each, transforms=(*each.transforms, *transforms)) for each in inputs)
        made = replace(helper, inputs=inputs, transforms=(), through=step, target=f"__records.{name}")
    else:
        assert isinstance(node, graph.Dedup)
        made = _exact_dedup(helper, node, window)
    return [*helpers, made]


def _inputs(records: graph.Records) -> tuple[tuple[Input, ...], tuple[Transform, ...]]:
    """The inputs, each with its own transforms, and the transforms of all of them together."""
    if not isinstance(origin(records), graph.Union):
        ((source, transforms),) = _branches(records)
        return (_input(source),), transforms
    found = [replace(_input(source), transforms=transforms) for source, transforms in _branches(origin(records))]
    seen: dict[str, int] = {}
    for at, each in enumerate(found):
        seen[each.id] = number = seen.get(each.id, 0) + 1
        found[at] = each if number == 1 else replace(each, id=f"{each.id}#{number}")
    return tuple(found), _transforms(records)


def _input(source: graph.Source | graph.Changes) -> Input:
    if isinstance(source, graph.Changes):
        return Input(source.topic, changes=True, name=source.name)
    return Input(source.topic, source.start, changes=holds_changes(source.topic), name=source.name)


def _branches(node: graph.Node) -> Iterable[tuple[graph.Source | graph.Changes, tuple[Transform, ...]]]:
    """Each source with the transforms of its records up to the node."""
    match node:
        case graph.Source() | graph.Changes():
            yield node, ()
        case graph.Transform():
            for source, transforms in _branches(node.of):
                yield source, (*transforms, node.function)
        case graph.Union():
            yield from _branches(node.left)
            yield from _branches(node.right)


def _transforms(records: graph.Records) -> tuple[Transform, ...]:
    """Those behind the last union or dedup."""
    out: tuple[Transform, ...] = ()
    while isinstance(records, graph.Transform):
        out = (records.function, *out)
        records = records.of
    return out


def _exact_dedup(helper: Flow, dedup: graph.Dedup, window: graph.Window) -> Flow:
    """The helper that takes out repetitions exactly. It accepts all records that the windows behind it accept; silence
    counts where records come from a topic, so by what they say of it."""
    late: Late = helper.late
    needed_us = 0
    if window.window is not None:
        behind = window.late or Drop()
        needed_us = window.window.reach_us + window.grace_us + behind.within_us - dedup.within_us
        late = drop(dropped_to=behind.dropped_to) if late == Drop() else late
    return replace(
        helper,
        window=Session(dedup.within_us),
        grace_us=max(dedup.grace_us, needed_us),
        late=late,
        groups=dedup.key,
        aggregates={RECORD: first("struct(*)")},
        keep_us=dedup.within_us,
        feeds=("updates",),
        records=True,
        target=feed_topic(helper.name, "updates"),
    )
