"""Who gets in, and how much of them: token, Host, Origin, headers, sizes."""

import socket

import httpx
import pytest

from gpcache.web.middleware import SECURITY_HEADERS

TOKEN = "a-token-for-tests"


@pytest.fixture
def stranger(shared):
    """A client without the token."""
    with httpx.Client(base_url=shared.address, timeout=300) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/", "/v1/state", "/v2", "/v2/health/live", "/metrics", "/openapi.json", "/static/x"]
)
def test_nothing_without_the_token(stranger, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "gpcache=wrong"}):
        answer = stranger.get(path, headers=headers)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]


def test_the_printed_address_sets_a_cookie_and_shows_the_page(stranger, shared):
    answer = stranger.get(f"/?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert f"gpcache-{shared.port}=" in cookie  # servers on other ports have their own
    assert stranger.get("/v1/state").status_code == 200
    assert stranger.get("/?token=wrong", headers={"Cookie": ""}).status_code in (200, 401)


def test_a_wrong_token_in_the_address_is_refused(stranger):
    assert stranger.get("/?token=wrong").status_code == 401
    assert "set-cookie" not in stranger.get("/?token=wrong").headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost:1:2", ""])
def test_other_hosts_are_refused(shared, host):
    answer = shared.client.get("/v1/state", headers={"Host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_other_origins_are_refused(shared, origin):
    answer = shared.client.post("/v1/classes", json={"name": "x"}, headers={"Origin": origin})
    assert answer.status_code == 403
    own = shared.client.get("/v1/state", headers={"Origin": shared.address})
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers


@pytest.mark.parametrize("path", ["/v1/state", "/v1/photos/p1", "/v1/none", "/"])
def test_every_answer_carries_the_policy(shared, path):
    headers = shared.client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_unforeseen_errors_are_answers_like_others(start, tiny, photo, caplog):
    """A fault of an encoder, which nobody expects: one sentence out, the rest into the log."""

    class Faulty(tiny.ColourEncoder):
        def _embed_images(self, batch):
            raise ZeroDivisionError("the inner workings")

    running = start(encoder=Faulty())
    running.client.post("/v1/classes", json={"name": "red"})
    for _ in range(2):  # the server goes on
        answer = running.client.post("/v1/predict", files={"files": ("a.jpg", photo("red"))})
        assert answer.status_code == 500
        assert answer.json().keys() == {"error"}
        assert "inner" not in answer.text
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
    failed = [record for record in caplog.records if record.exc_info]
    assert len(failed) == 2
    assert failed[0].getMessage() == "POST '/v1/predict' failed."
    assert failed[0].exc_info[0] is ZeroDivisionError
    assert 'route="/v1/predict",status="500"} 2' in running.client.get("/metrics").text


def exchanged(port, head):
    """The first bytes of the answer to a raw request whose body never comes."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as stream:
        stream.sendall(head.encode())
        answer = ""
        while "}" not in answer:
            answer += stream.recv(4096).decode()
        return answer


def head(path, kind, length):
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: {kind}\r\n{length}\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("path", "kind", "length"),
    [
        ("/v1/predict", "image/jpeg", 20_000_001),
        ("/v1/predict", "multipart/form-data; boundary=x", 2_100_000_000),
        ("/v1/classes", "application/json", 1_000_001),
        ("/v2/models/workspace/infer", "application/json", 64_000_001),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_sent(shared, path, kind, length):
    answer = exchanged(shared.port, head(path, kind, f"Content-Length: {length}"))
    assert answer.startswith("HTTP/1.1 413")
    assert "are allowed" in answer


def test_a_body_without_a_length_is_refused(shared):
    answer = exchanged(shared.port, head("/v1/predict", "image/jpeg", "Transfer-Encoding: chunked"))
    assert answer.startswith("HTTP/1.1 411")


@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\r\nX: " + "x" * 100_000, "hello\r\n\r\n"])
def test_what_is_no_http_is_refused_alike(shared, sent):
    answer = exchanged(shared.port, sent)
    assert answer.startswith("HTTP/1.1 400")
    above, _, body = answer.partition("\r\n\r\n")
    assert "content-security-policy: default-src 'self';" in above
    assert "Invalid HTTP request" in body
    assert '{"error":' in body


def test_a_hundred_files_and_no_more(shared, photo):
    files = [("files", (f"{k}.jpg", photo("red", k, side=8))) for k in range(101)]
    answer = shared.client.post("/v1/predict", files=files)
    assert answer.status_code == 413
    assert "100 files" in answer.json()["error"]
    answer = shared.client.post("/v1/predict", files=files[:100])
    assert len(answer.json()["predictions"]) == 100


def test_one_large_file_among_others_is_refused_alone(shared, photo):
    files = [("files", ("big.jpg", b"\xff" * 20_000_001)), ("files", ("ok.jpg", photo("red")))]
    found = shared.client.post("/v1/predict", files=files).json()["predictions"]
    assert "larger than 20 MB" in found[0]["error"]
    assert found[1]["label"] == "red"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"--y\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=a"),
        ("multipart/form-data; boundary=x", b"--x--\r\n"),
        ("text/plain", b"hello"),
        ("", b"hello"),
        ("image/jpeg", b""),
    ],
)
def test_broken_bodies_are_sentences(shared, kind, body):
    answer = shared.client.post("/v1/predict", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")


def test_the_server_takes_no_addresses(shared):
    """Whatever an OpenAPI field is called, none of them takes a URL to fetch."""
    text = shared.client.get("/openapi.json").text.lower()
    assert '"uri"' not in text
    assert '"url"' not in text
