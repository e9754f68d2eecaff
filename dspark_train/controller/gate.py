"""Who may speak to the API, and what every answer says to the browser. Nothing but the page's own files is for all.

The page's files hold no secret: the link that its owner opens carries the token behind "#", which browsers do not send.
"""

from __future__ import annotations

import hmac
import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PREFIX = "/page/"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
REFUSAL = json.dumps({"detail": "missing or wrong token"}).encode()


class Gate:
    """Answers 401, always the same, to whoever does not show the token, before anything else is looked at."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; websockets and anything else are not served."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            with_headers = _adding_headers(send)
            if self._may_pass(scope):
                await self._app(scope, receive, with_headers)
            else:
                await _refuse(with_headers)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and (path == "/" or path.startswith(OPEN_PREFIX)):
            return True
        shown = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(shown.encode("latin-1", "replace"), self._wanted)


def _adding_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    headers.append((b"content-length", str(len(REFUSAL)).encode()))
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
