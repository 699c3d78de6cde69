"""The API as its document says: whatever is asked by it, the server does not fail, and answers in the form it says."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance

from headrace.serve.guard import CSP
from tests.serve.beside import make_capture, make_index
from tests.serve.conftest import VIEW, Served
from tests.serve.joined import shop
from tests.serve.matched import make_alerts, make_frauds

EXAMPLES = 12
STREAMS = ("/api/overview/events", "/api/views/{view}/changes")
KNOWN = {"topic": "clicks", "view": VIEW, "table": "rates", "id": 0, "index": "people", "queries": "alerts"}


def test_every_route_is_documented(shared: Served) -> None:
    document = shared.get("/api/openapi.json")
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route["description"], f"{method} {path}"
            assert {"401", "403"} <= route["responses"].keys()
            for status, answer in route["responses"].items():
                (schema,) = [content["schema"] for content in answer["content"].values()]
                text = status == "200" and path in (*STREAMS, "/metrics")
                named = schema.get("$ref") or schema.get("items", {}).get("$ref")
                assert schema["type"] == "string" if text else named, f"{method} {path}: {status} has no schema"
    assert set(STREAMS) <= document["paths"].keys()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_the_server_never_fails(served: Served) -> None:
    """What is there is asked for as often as what is not. Streams have no end: see `test_changes`."""
    served.committing.commit([(0, "/", 5), (1, None, 7)], closed=1)
    for queue in "mail", "post":
        served.clicks.append({"user": "ann", "page": "/", "at": "2026-01-01T09:00:05Z"})
        for message in served.clicks.queue(queue, max_deliveries=1).receive(1):
            message.nack("refused")
    with closing(shop(served.home)):
        pass
    make_index(served.log, served.home, "clicks", "page")
    make_capture(served.log)
    make_frauds(served.home)
    make_alerts(served.home)
    served.log.create_topic("unread", "n int", retention="1 day").group("g").join().close()
    document = served.get("/api/openapi.json")
    del document["paths"]["/api/topics/{topic}/records"]["post"]["requestBody"]["content"]["application/x-ndjson"]
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    token = {"Authorization": f"Bearer {served.server.token}"}
    statuses: dict[str, set[int]] = {}
    for operation in operations:
        if operation.path not in STREAMS:
            seen = statuses.setdefault(f"{operation.method} {operation.path}", set())
            _ask(operation, served.server.url, token, seen)
    assert len(statuses) >= 17
    missing = {name: seen for name, seen in statuses.items() if not seen & {200, 400}}
    assert not missing, "each is asked in a way that it understands"


def _ask(operation: Any, url: str, token: dict[str, str], seen: set[int]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(), there=st.booleans())
    def ask(case: schemathesis.Case, there: bool) -> None:
        if there:
            case.path_parameters = {name: KNOWN[name] for name in case.path_parameters}
        answer = case.call(base_url=url, headers=token, timeout=30)
        seen.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        assert answer.headers["content-security-policy"] == [CSP]
        case.validate_response(answer, checks=[response_schema_conformance])
        if answer.status_code >= 400:
            assert answer.json()["error"].keys() == {"type", "message", "facts"}

    ask()
