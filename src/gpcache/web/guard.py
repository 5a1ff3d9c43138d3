"""Who gets in: host, origin, token, size and room are seen to before anything of a body is read."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpcache.images.decode import POLICY
from gpcache.web.batching import RETRY_AFTER
from gpcache.web.metrics import Metrics
from gpcache.web.uploads import MAX_FILES

HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:(\d{1,5}))?")
MAX_JSON = 1_000_000
MAX_INFER = 64_000_000
# Boundaries, headers and fields around the files.
MAX_MULTIPART = MAX_FILES * (POLICY.max_bytes + 10_000)
# Bodies that may be under way at once, in bytes: they wait on disk.
MAX_INCOMING = 4_000_000_000

# Where connections find Guard.turn_away, in the state that the server hands them.
TURN_AWAY = "turn_away"

logger = logging.getLogger(__name__)

SECURITY = {
    # Pictures that the page itself holds, such as one about to be sent, are blobs.
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI layer around the whole application: whatever happens inside, its answers are ours."""

    def __init__(
        self, app: ASGIApp, *, token: str, metrics: Metrics, busy: Callable[[], str]
    ) -> None:
        self._app = app
        self._token = token
        self._metrics = metrics
        self._busy = busy
        self._incoming = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["state"][TURN_AWAY] = self.turn_away
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def sealed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._answer(scope, receive, sealed)
        except Exception:
            if status:
                raise  # half an answer is out: the server ends the connection, and logs why
            logger.exception("%s %r failed.", scope["method"], scope["path"])
            told = _no(500, "Something went wrong here: the server's log says what.")
            await told(scope, receive, sealed)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - start
            self._metrics.request(scope["method"], route, status or 500, seconds)

    def turn_away(self, data: bytes) -> tuple[bytes, int] | None:
        """The answer to a request that there is no place for, and the size of the request.

        `data` is what has come of it. None where it may go on: there is a place, it brings no
        photos, or it is unusual in some way. It tells no secret, so it asks for no token.
        """
        if not data.startswith(b"POST ") or not (told := self._busy()):
            return None
        if (size := _size(data)) is None:
            return None
        self._metrics.turned_away()
        self._metrics.request("POST", "other", 429, 0.0)
        return _busy_answer(told), size

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = _length(headers)
        refusal = self._refusal(scope, headers, length)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self._incoming += length or 0
        try:
            await self._app(scope, receive, send)
        finally:
            self._incoming -= length or 0

    def _refusal(self, scope: Scope, headers: Headers, length: int | None) -> Response | None:
        host = HOSTS.fullmatch(headers.get("host", ""))
        if host is None:
            return _no(403, "This server answers only to 127.0.0.1 and localhost.")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return _no(403, "A page from elsewhere may not use this server.")
        cookie = f"gpcache-{host[3] or 80}"
        if scope["path"] == "/" and scope["method"] == "GET":
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
            if given is not None and self._is_token(given[0]):
                to_page = RedirectResponse("/", status_code=303)
                to_page.set_cookie(cookie, self._token, httponly=True, samesite="strict")
                return to_page
        if not self._is_token(_token(headers, cookie)):
            answer = _no(
                401,
                "This needs the token of the running server: open the address that "
                "'gpcache serve' printed, or send 'Authorization: Bearer TOKEN'.",
            )
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return self._size_refusal(scope, headers, length)

    def _size_refusal(self, scope: Scope, headers: Headers, length: int | None) -> Response | None:
        if length is None:
            if "transfer-encoding" in headers or "content-length" in headers:
                return _no(411, "Say how long the body is, in a header Content-Length.")
            return None
        limit = _limit(scope["path"], headers.get("content-type", ""))
        if length > limit:
            return _no(
                413,
                f"The body has {length / 1e6:,.1f} MB, and {limit / 1e6:,.0f} MB are taken "
                "here: send less at once.",
            )
        if self._incoming + length > MAX_INCOMING:
            answer = _no(503, "Too much is being uploaded at once: try again in 5 seconds.")
            answer.headers["retry-after"] = "5"
            return answer
        if limit > MAX_JSON and (told := self._busy()):
            # Here, because at too much load it must cost next to nothing to say no.
            self._metrics.turned_away()
            answer = _no(429, told)
            answer.headers["retry-after"] = str(RETRY_AFTER)
            return answer
        return None

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _no(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status)


def _length(headers: Mapping[str, str]) -> int | None:
    given = headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() else None


def _limit(path: str, kind: str) -> int:
    kind = kind.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return MAX_MULTIPART
    if kind.startswith("image/") or kind == "application/octet-stream":
        return POLICY.max_bytes
    return MAX_INFER if path.endswith("/infer") else MAX_JSON


def _size(data: bytes) -> int | None:
    """The size of an everyday request with photos, of which the head is here; else None."""
    head, blank, _ = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    length, path = _length(headers), first.split(" ")[1]
    everyday = (
        first.endswith(" HTTP/1.1")
        and len(headers) == len(lines)
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not {"expect", "transfer-encoding", "upgrade"} & headers.keys()
    )
    if not everyday or length is None:
        return None
    limit = _limit(path.partition("?")[0], headers.get("content-type", ""))
    return len(head) + len(blank) + length if limit > MAX_JSON and length <= limit else None


def _busy_answer(told: str) -> bytes:
    body = json.dumps({"error": told}).encode()
    headers = {
        "date": formatdate(usegmt=True),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "retry-after": str(RETRY_AFTER),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | SECURITY).items())
    return f"HTTP/1.1 429 Too Many Requests\r\n{lines}\r\n".encode() + body


def _token(headers: Headers, cookie: str) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    # By hand, because one odd cookie of another local server ends Python's own parser.
    pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == cookie), "")
