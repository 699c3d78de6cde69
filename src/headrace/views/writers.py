"""What follows for a flow from other flows of its home: whether time closes a window of some flow, how far the writers
of a topic are, and whether progress can go back in it. Pure: flows as values, and facts that a store is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.views.contract import DUE, FlowSpec, Mark, feed_topic

__all__ = ["closes", "goes_back", "mark_of", "with_helpers"]


def closes(
    spec: FlowSpec, frontier_us: int, others: Sequence[FlowSpec], has_open: Callable[[FlowSpec, int], bool]
) -> bool:
    """Whether a window that has a row is open, and final with this frontier of the flow: one of its own, or of a flow
    that reads what it writes. `has_open`: whether a flow's view has a row of an open window that ends by then, or a
    timer of its operator is due."""
    asked = [(spec, frontier_us)]
    for each, us in asked:  # which grows
        final_us = each.horizon.final_us(us)
        if final_us is not None and (_is_windowed(each) or _has_timers(each)) and has_open(each, final_us):
            return True
        known = {other.name for other, _ in asked}
        for topic, told_us in _frontiers_of_targets(each, us).items():
            readers = [other for other in others if topic in other.sources and other.name not in known]
            asked += [(other, told_us) for other in readers if told_us is not None]
    return False


def _is_windowed(spec: FlowSpec) -> bool:
    """Whether anybody sees that its rows are final."""
    return spec.view is not None and spec.view.ending is not None and not spec.view.records


def _has_timers(spec: FlowSpec) -> bool:
    return any(each.name.startswith(DUE) for each in spec.tables)


def _frontiers_of_targets(spec: FlowSpec, frontier_us: int) -> dict[str, int | None]:
    """The topics that the flow writes to, and the frontier of those who have read them."""
    horizon, records = spec.horizon, spec.view is not None and spec.view.records
    out = {} if spec.target is None else {spec.target: horizon.written_us(frontier_us)}
    fed_us = frontier_us if records else horizon.told_us(horizon.final_us(frontier_us))
    return out | {feed_topic(spec.name, emit): fed_us for emit in spec.feeds}


def goes_back(topics: Iterable[str], flows: Sequence[FlowSpec], partitions_read: Callable[[str], int]) -> bool:
    """Whether some flow writes one of the topics so that progress can go back in it: results, whose windows come in any
    order; records that can go again, with the progress they came with; records of several partitions, which headrace's
    own topics keep apart; or copies of what is in such a topic. The rows of a join of streams, and matches, have the
    flow's own reach as progress."""
    behind = [*topics]
    for topic in behind:  # which grows
        for spec in flows:
            if spec.target != topic or spec.operator.startswith(("join(", "match(")):
                continue
            if spec.view is not None or (partitions_read(spec.name) > 1 and not topic.startswith("__")):
                return True
            behind += [source for source in spec.sources if source not in behind]
    return False


def mark_of(writers: Iterable[tuple[FlowSpec, int | None, bool]]) -> Mark | None:
    """Up to where what these flows write to a topic is complete: each with its frontier, and whether all of it has been
    sent. None: not known, as of results whose time does not say it."""
    marks = [(spec.horizon.written_us(frontier_us), sent) for spec, frontier_us, sent in writers]
    known = [us for us, _ in marks if us is not None]
    return Mark(min(known), all(sent for _, sent in marks)) if len(known) == len(marks) else None


def with_helpers(spec: FlowSpec, flows: Sequence[FlowSpec]) -> list[FlowSpec]:
    """The flow and its helpers; helpers may have helpers."""
    out = [spec]
    for each in out:  # which grows
        out += [other for other in flows if other.parent == each.name]
    return out
