"""A view is rebuilt, and switched, beside an app that runs it: that goes on with the new version, and with its other
views in any case. Without a JVM; each `running` has a store of its own, as another process has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.errors import FlowFenced
from headrace.failpoints import InjectedFault
from headrace.flows.running import Running
from headrace.views.contract import FlowSpec, FlowState, State
from headrace.views.sqlite.store import SqliteViews
from tests.flows.sparkless import Sparkless
from tests.flows.test_windows_sparkless import at


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Sparkless]:
    """Its own view is `view`; the apps of the tests run others."""
    with Sparkless(tmp_path, hr.tumbling("4 seconds"), names=("records",), within=10**6) as flow:
        flow.store.drop("view")
        yield flow
    failpoints.disarm()


def put(flow: Sparkless, count: int) -> hr.Position:
    return flow.topic.append([{"word": "a", "n": n, "at": at(n)} for n in range(count)]).position


def records_in(flow: Sparkless, view: str) -> int:
    return sum(row["records"] for row in flow.views.to_arrow(view).to_pylist())


def states(app: Running) -> dict[str, str]:
    return {status.flow: status.state for status in app.status()}


@pytest.mark.parametrize("quiet", [True, False])
def test_a_running_app_goes_on_with_the_version_that_is_switched_to(flow: Sparkless, quiet: bool) -> None:
    """While records come, too; and back again, and from there."""
    with closing(flow.running("one", "other")) as app, closing(flow.running("one", "other")) as beside:
        app.start()
        sent, done = 10, threading.Event()
        flow.views.wait_for(put(flow, 10), timeout="30 seconds")
        produced = [0]

        def produce() -> None:
            while not done.wait(0.001):
                put(flow, 1)
                produced[0] += 1

        producer = threading.Thread(target=produce)
        if not quiet:
            producer.start()
        made = beside.rebuild(beside.flows[0], "earliest")
        made.switch()
        born = flow.store.state("one").born
        beside.roll_back("one")
        assert flow.store.state("one").born != born
        done.set()
        if not quiet:
            producer.join()
        flow.views.wait_for(put(flow, 5), timeout="30 seconds")
        sent += produced[0] + 5
        assert records_in(flow, "one") == records_in(flow, "other") == sent
        assert not app.wait(0) and {*states(app).values()} <= {"running", "waiting"}


def least(df: Any) -> Any:
    return df.where("n > 0")


@pytest.mark.parametrize("change", ["functions", "aggregates"])
def test_another_program_takes_one_view_and_the_others_go_on(flow: Sparkless, tmp_path: Path, change: str) -> None:
    """The flow of that view says why it ends, and the app ends when all have."""
    with ExitStack() as stack, closing(flow.running("one", "other")) as app:
        app.start()
        flow.views.wait_for(put(flow, 3), timeout="30 seconds")
        if change == "functions":
            beside = flow.running("one", after=(least,))
            spec = beside._queries["one"].compiled.spec
            assert spec == app._queries["one"].compiled.spec
        else:
            settings = {"names": ("records", "total"), "within": 10**6}
            beside = stack.enter_context(Sparkless(tmp_path, hr.tumbling("4 seconds"), **settings)).running("one")
        with closing(beside):
            beside.rebuild(beside.flows[0], "earliest").switch()
        while states(app)["one"] != "failed":
            assert not app.wait(0.05), "the others run on"
        position = put(flow, 4)
        while records_in(flow, "other") < 7:
            assert not app.wait(0.05)
        assert records_in(flow, "one") == 3 and not flow.views.are_at(position)
        (status,) = [status for status in app.status() if status.flow == "one"]
        assert "another version of the view takes its place, made by another program" in status.error
        why = "its functions are others" if change == "functions" else "aggregate"
        assert f"made by another program ({why}" in status.error
        app._supervisors["other"].ask_to_stop()
        with pytest.raises(hr.FlowFenced, match="run that one"):
            app.wait(30)


@pytest.mark.parametrize("point", ["switch.fenced", "switch.applied"])
def test_a_switch_that_fails_is_over(flow: Sparkless, point: str) -> None:
    with closing(flow.running("one", "other")) as app, closing(flow.running("one", "other")) as beside:
        app.start()
        flow.views.wait_for(put(flow, 3), timeout="30 seconds")
        made = beside.rebuild(beside.flows[0], "earliest")
        failpoints.arm(point, "raise")
        with pytest.raises(InjectedFault):
            made.switch()
        failpoints.disarm()
        flow.views.wait_for(put(flow, 4), timeout="30 seconds")
        assert records_in(flow, "one") == records_in(flow, "other") == 7
        assert not app.wait(0)


def test_a_flow_that_waits_for_the_end_of_a_switch_can_be_stopped(flow: Sparkless) -> None:
    with closing(flow.running("one")) as app, closing(flow.running("one")) as beside:
        app.start()
        flow.views.wait_for(put(flow, 3), timeout="30 seconds")
        beside.rebuild(beside.flows[0], "earliest")  # which holds the lock of the version
        flow.store.fence("one")
        put(flow, 1)
        while app._supervisors["one"]._loop is not None:
            assert not app.wait(0.01)
        app.stop()
        assert flow.store.is_fenced("one"), "nobody has taken it from who switches"


class Overtaken(SqliteViews):
    """Somebody else drops the view, or makes it anew with other columns, while the flow folds a batch."""

    anew: FlowSpec | None = None

    def read_state(self, flow: FlowState) -> State:
        found = super().read_state(flow)
        with SqliteViews(self.path.parent) as other:
            if self.anew is None:
                other.drop(flow.name)
            else:
                other.begin(self.anew, replace=True)
        return found


@pytest.mark.parametrize("made_anew", [True, False])
def test_who_loses_the_flow_while_it_folds_is_fenced(tmp_path: Path, made_anew: bool) -> None:
    with (
        Sparkless(tmp_path, hr.tumbling("4 seconds"), names=("words",)) as flow,
        Sparkless(tmp_path / "another", hr.tumbling("4 seconds"), names=("records",)) as another,
        Overtaken(tmp_path) as store,
    ):
        put(flow, 1)
        store.anew = another.compiled.spec if made_anew else None
        flow.loop._store = store
        with pytest.raises(FlowFenced):
            flow.loop.drain()
        assert flow.views.names() == (["view"] if made_anew else [])


def test_a_runner_that_takes_the_flow_back_as_it_is_fenced_is_fenced_again(
    flow: Sparkless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked whether the flow is fenced, and found that it is not, just before."""
    with closing(flow.running("one")) as app, closing(flow.running("one")) as beside:
        put(flow, 10)
        app.drain(None, close=False)
        beside.rebuild(beside.flows[0], "earliest").switch()
        fence, epochs = SqliteViews.fence, list[int]()

        def fence_and_be_late(store: SqliteViews, view: str) -> FlowState:
            state = fence(store, view)
            epochs.append(state.epoch)
            if len(epochs) == 1:
                app.begun(app.flows[0])
            return state

        monkeypatch.setattr(SqliteViews, "fence", fence_and_be_late)
        beside.roll_back("one")
        assert len(epochs) == 2
        assert records_in(flow, "one") == 10


def test_a_runner_that_takes_the_flow_back_just_before_the_switch_is_fenced_again(
    flow: Sparkless, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(flow.running("one")) as app, closing(flow.running("one")) as beside:
        put(flow, 10)
        app.drain(None, close=False)
        made = beside.rebuild(beside.flows[0], "earliest")
        switch, epochs = SqliteViews.switch, list[int]()

        def be_late_and_switch(store: SqliteViews, served: FlowState, state: FlowState) -> FlowState:
            epochs.append(served.epoch)
            if len(epochs) % 2:
                app.begun(app.flows[0])
            return switch(store, served, state)

        monkeypatch.setattr(SqliteViews, "switch", be_late_and_switch)
        made.switch()
        beside.roll_back("one")
        assert len(epochs) == 4
        assert records_in(flow, "one") == 10
