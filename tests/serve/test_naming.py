"""What a user sees are the names that a user chose: a flow that takes out duplicates belongs to the one it was made
for, and a topic of changes is its view."""

from __future__ import annotations

from dataclasses import replace

from headrace.serve.naming import flow_names, named_sources, reader_name
from tests.serve.conftest import Served
from tests.views.committing import SPEC, Committing

assert SPEC.view is not None
ONCE = replace(SPEC, name="once", sources=("__changes.once.dedup",), view=replace(SPEC.view, name="once"))
HELPER = replace(
    SPEC,
    name="once.dedup",
    view=replace(SPEC.view, name="once.dedup", public=False),
    target="__changes.once.dedup",
    parent="once",
)
APPROXIMATE = replace(HELPER, sources=("clicks", "taps"), view=None, target="__records.once.dedup")


def test_a_flow_that_takes_out_duplicates_belongs_to_another() -> None:
    mine = replace(SPEC, name="mine.dedup", target="clean")  # a user may call a flow so
    for helper in (HELPER, APPROXIMATE):
        names = flow_names([helper, ONCE, mine])
        assert {name: facts["helps"] for name, facts in names.items()} == {
            "once.dedup": "once",
            "once": None,
            "mine.dedup": None,
        }


def test_sources_are_what_the_user_wrote() -> None:
    topic = {"kind": "topic", "name": "clicks"}
    assert named_sources(SPEC, [SPEC]) == [topic]
    assert named_sources(ONCE, [HELPER, ONCE]) == [topic]
    behind = replace(ONCE, sources=("__records.once.dedup",))
    assert named_sources(behind, [APPROXIMATE, behind]) == [topic, {"kind": "topic", "name": "taps"}]
    for source in ("__changes.once", "__finals.once"):
        assert named_sources(replace(SPEC, name="hours", sources=(source,)), [ONCE]) == [
            {"kind": "view", "name": "once"}
        ]


def test_flows_that_help_each_other_belong_to_the_one_that_a_user_named() -> None:
    near = replace(APPROXIMATE, name="once.previous", sources=("__records.once.previous.dedup",))
    near = replace(near, target="__records.once.previous")
    far = replace(APPROXIMATE, name="once.previous.dedup", sources=("clicks",), target=near.sources[0])
    once = replace(ONCE, sources=("__records.once.previous",))
    names = flow_names([once, near, far])
    assert [facts["helps"] for facts in names.values()] == [None, "once", "once"]
    assert [facts["reads"] for facts in names.values()] == [[{"kind": "topic", "name": "clicks"}]] * 3


def test_readers_have_the_names_of_flows() -> None:
    helps = {"once.dedup": "once", "once": None, "mine.dedup": None}
    assert reader_name("billing", helps) == "group billing"
    assert reader_name("__flow.once", helps) == reader_name("__flow.once.dedup", helps) == "flow once"
    assert reader_name("__flow.mine.dedup", helps) == "flow mine.dedup"


def test_the_overview_has_no_internal_names(served: Served) -> None:
    with Committing(served.home, HELPER), Committing(served.home, ONCE):
        pass
    served.committing.commit([(0, "/", 5)])
    flows = {flow["name"]: flow for flow in served.get("/api/overview")["flows"]}
    assert flows["once"]["reads"] == [{"kind": "topic", "name": "clicks"}]
    assert (flows["once"]["helps"], flows["once.dedup"]["helps"]) == (None, "once")
