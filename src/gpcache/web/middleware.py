"""The outermost layer: access, size limits, security headers, and metrics.

It decides from the headers of a request, before any of its body is read.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpcache.images.decode import POLICY
from gpcache.web.encoding import RETRY_AFTER
from gpcache.web.service import Service
from gpcache.web.uploads import MAX_FILES

HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:(\d{1,5}))?")
# In a network the server has many addresses. Only a name, not a number, can be made to point here.
NETWORK_HOSTS = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\]|localhost)(:(\d{1,5}))?")
MAX_JSON = 1_000_000
MAX_INFER = 64_000_000
# The files, with their boundaries, headers and fields.
MAX_MULTIPART = MAX_FILES * (POLICY.max_bytes + 10_000)
# Bytes of bodies that may be uploaded at once; they are stored on disk.
MAX_INCOMING = 4_000_000_000

SECURITY_HEADERS = {
    # Pictures that the page creates, such as one before it is sent, are blobs.
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}

# For users who open the page without its token.
TOKEN_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpcache: token</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
<main><h1>gpcache</h1>
<form class="card" method="get" action="/">
<p><label for="token">Token that <code>gpcache serve</code> printed</label></p>
{note}<p class="row"><input id="token" name="token" autocomplete="off" autofocus required>
<button class="primary">Open</button></p>
</form></main>
"""
# The files of that page.
PUBLIC = ("/static/icon.svg", "/static/style.css")
WRONG_TOKEN = '<p role="alert">This is not the token of the running server.</p>'

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class AccessMiddleware:
    """Refuses requests without access, and adds headers to every answer."""

    app: ASGIApp
    service: Service
    token: str
    sharing: bool
    incoming: int = 0  # bytes of the bodies that are being uploaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_completed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._answer(scope, receive, send_completed)
        except Exception:
            if status:
                raise  # a part of the answer is sent: uvicorn closes the connection and logs it
            logger.exception("%s %r failed.", scope["method"], scope["path"])
            failed = _error(500, "Something went wrong: see the log of the server.")
            await failed(scope, receive, send_completed)
        finally:
            route = getattr(scope.get("route"), "path", None)
            seconds = time.perf_counter() - start
            self.service.metrics.request(scope["method"], route, status or 500, seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = int(headers.get("content-length", 0))  # h11 takes nothing but 20 digits
        refusal = (
            self._refuse_busy(scope, headers, length)
            or self._refuse_stranger(scope, headers)
            or self._refuse_size(scope, headers, length)
        )
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self.incoming += length
        try:
            await self.app(scope, receive, send)
        finally:
            self.incoming -= length

    def _refuse_busy(self, scope: Scope, headers: Headers, length: int) -> Response | None:
        """Refuse photos first, because this must be cheap under load."""
        photos = brings_photos(scope["method"], scope["path"], headers, length)
        if photos and (busy := self.service.encoding.busy()) is not None:
            return _error(429, str(busy), {"retry-after": str(RETRY_AFTER)})
        return None

    def _refuse_stranger(self, scope: Scope, headers: Headers) -> Response | None:
        host = (NETWORK_HOSTS if self.sharing else HOSTS).fullmatch(headers.get("host", ""))
        if host is None:
            known = "an address in numbers" if self.sharing else "127.0.0.1 and localhost"
            return _error(403, f"This server answers only to {known}.")
        origin = f"{scope['scheme']}://{host[0]}"
        if headers.get("origin", origin) != origin:
            return _error(403, "A page of another site may not use this server.")
        cookie = f"gpcache-{host[3] or 80}"  # servers on other ports have their own
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        page = path if scope["method"] == "GET" else ""
        if page == "/" and self._is_token(parse_qs(query).get("token", [""])[0]):
            to_page = RedirectResponse("/", status_code=303)
            secure = scope["scheme"] == "https"
            to_page.set_cookie(cookie, self.token, httponly=True, samesite="strict", secure=secure)
            return to_page
        if page in PUBLIC or self._is_token(_given_token(headers, cookie)):
            return None
        if path == "/" and "text/html" in headers.get("accept", ""):
            note = WRONG_TOKEN if "token=" in query else ""
            return HTMLResponse(TOKEN_PAGE.replace("{note}", note), 401)
        return _error(
            401,
            "This needs the token of the running server: open the address that 'gpcache serve' "
            "printed, or send 'Authorization: Bearer TOKEN'.",
            {"www-authenticate": "Bearer"},
        )

    def _refuse_size(self, scope: Scope, headers: Headers, length: int) -> Response | None:
        if "transfer-encoding" in headers:  # it would override a Content-Length
            return _error(411, "Send the length of the body in a header Content-Length.")
        if length > (limit := _limit(scope["path"], headers)):
            sizes = f"The body has {length / 1e6:,.1f} MB, and {limit / 1e6:,.0f} MB are allowed"
            return _error(413, f"{sizes}: send less at once.")
        if self.incoming + length > MAX_INCOMING:
            sentence = "Too much is being uploaded at once: try again in 5 seconds."
            return _error(503, sentence, {"retry-after": "5"})
        return None

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": sentence}, status, headers)


def brings_photos(method: str, path: str, headers: Mapping[str, str], length: int) -> bool:
    """Whether a request has a body of photos, of an allowed size."""
    limit = _limit(path, headers)
    return method == "POST" and limit > MAX_JSON and 0 < length <= limit


def _limit(path: str, headers: Mapping[str, str]) -> int:
    """The largest body of this kind, in bytes."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return MAX_MULTIPART
    if kind.startswith("image/") or kind == "application/octet-stream":
        return POLICY.max_bytes
    return MAX_INFER if path.endswith("/infer") else MAX_JSON


def _given_token(headers: Headers, cookie: str) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    # Parsed here, because one odd cookie of another local server stops Python's parser.
    pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == cookie), "")
