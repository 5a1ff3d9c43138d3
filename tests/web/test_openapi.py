"""The OpenAPI document, fuzzed: nothing that it allows, and nothing near it, is a server error."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis")


def test_no_request_is_a_server_error(serve, photo, filled):
    """Every operation, with requests that follow its schema and requests that break it."""
    running = serve()
    filled(running.client, photo, 3)
    schema = schemathesis.openapi.from_dict(running.client.get("/openapi.json").json())
    operations = [found.ok() for found in schema.get_all_operations()]
    headers = dict(running.client.headers)
    seen = set()
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            # What has neither body nor query cannot be asked for anything wrong.
            if mode.is_negative and not operation.body and not operation.query:
                continue
            cases = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=6,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=cases)
            def check(case):
                answer = case.call(base_url=running.address, headers=headers, timeout=300)
                assert answer.status_code < 500, (case, answer.content)
                assert answer.status_code < 400 or answer.json().keys() == {"error"}
                seen.add((case.method, case.operation.path))

            check()
    assert len(seen) >= 25


@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(body=st.binary(max_size=200), kind=st.sampled_from(["image/png", "multipart/form-data"]))
def test_no_bytes_are_a_server_error(shared, body, kind):
    kind += "; boundary=x" if kind.startswith("multipart") else ""
    body = b"--x\r\n" + body if kind.startswith("multipart") else body
    answer = shared.client.post("/v1/explain", content=body, headers={"Content-Type": kind})
    assert 400 <= answer.status_code < 500


def test_the_document_names_every_route(shared):
    paths = shared.client.get("/openapi.json").json()["paths"]
    expected = {
        "/v1/state": {"get"},
        "/v1/classes": {"post", "patch", "delete"},
        "/v1/examples": {"post", "patch", "delete"},
        "/v1/predict": {"post"},
        "/v1/explain": {"post"},
        "/v1/loo": {"get"},
        "/v2/models/{model}/infer": {"post"},
        "/v2/models/{model}/versions/{version}/infer": {"post"},
        "/metrics": {"get"},
    }
    for path, methods in expected.items():
        assert methods <= paths[path].keys()
