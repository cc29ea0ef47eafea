"""The border of the app: which requests reach Gradio, and which of its files a client can name.

Gradio names an upload by its full path on the server, and accepts such a name from anyone. Behind
:class:`Sessions` a client sees ``/uploads/SIGNATURE/FOLDER/NAME`` instead. The signature is only
valid for one session, which a cookie identifies. So the name of another user's file is useless, and
a path of the server is never a valid name.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from hypvision.io import HypvisionError

from .uploads import NOT_YOURS, UNKNOWN, uploaded, uploads

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LONGEST = 2**20  # largest request in bytes that is not an upload
_API = "/gradio_api/"
_FILE = "/gradio_api/file="
# Only the routes of Gradio that the page uses: some others fetch addresses, or save and show the
# states of sessions.
_ASSETS = r"/(static|assets|svelte)/.*|/favicon\.ico"
_READ = rf"/|/config/?|/manifest\.json|/robots\.txt|(/gradio_api)?/theme\.css|{_ASSETS}|{_FILE}.*|"
_READ += (
    rf"{_API}(info/?|app_id/?|login_check/?|startup-events|queue/data|upload_progress|"
    r"heartbeat/[^/]*)"
)
ROUTES = {
    "GET": _READ,
    "HEAD": rf"/|{_FILE}.*",
    "POST": rf"{_API}(upload|queue/join|cancel|reset/?)",
}
_HANDLE = re.compile(r"/uploads/([0-9a-f]{32})/(\w+)/([^/]+)")
_OWN = ("session_hash", "upload_id")  # a client chooses these, and two clients may choose the same
_COOKIE = re.compile(rb"(?:^|; ?)hypvision=([0-9a-f]{64})(?:;|$)")


class _RefusedError(Exception):
    """The refusal of a request: a status of HTTP and a sentence."""


class Sessions:
    """ASGI middleware for the page, see the module; the folder of uploads is that of
    ``GRADIO_TEMP_DIR`` when the app starts."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self._app = app
        self._key = secrets.token_bytes(32)
        self._folder = str(uploads())
        places = "|".join(re.escape(place) for place in (self._folder, quote(self._folder)))
        # Names of Gradio's files contain none of the excluded characters.
        self._paths = re.compile(rf'(?:{places})(?:/(\w+)/([^"\\<>\r\n]+))?')

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        cookie = _COOKIE.search(dict(scope["headers"]).get(b"cookie", b""))
        session = cookie[1].decode() if cookie else secrets.token_hex(32)
        started = False
        is_file = re.match(rf"{_ASSETS}|{_FILE}", scope["path"]) is not None

        async def tell(message: Message) -> None:
            nonlocal started, is_file
            if message["type"] == "http.response.start":
                started = True
                is_file = is_file and message["status"] < 400
                headers = [
                    pair for pair in message["headers"] if is_file or pair[0] != b"content-length"
                ]
                if not cookie:
                    headers.append(
                        (
                            b"set-cookie",
                            f"hypvision={session}; Path=/; HttpOnly; SameSite=Lax".encode(),
                        )
                    )
                message = {**message, "headers": headers}
            elif not is_file:
                message = {**message, "body": self._outward(session, message.get("body", b""))}
            await send(message)

        try:
            scope, receive = await self._inward(session, scope, receive)
            await self._app(scope, receive, tell)
        except Exception as error:
            body = b""
            # Gradio ends the stream of an unknown session with an exception.
            if not started:
                if not isinstance(error, _RefusedError):
                    traceback.print_exception(error)
                    error = _RefusedError(500, UNKNOWN)
                status, sentence = error.args
                body = json.dumps(dict(detail=sentence, error=sentence)).encode()
                headers = [(b"content-type", b"application/json")]
                await tell({"type": "http.response.start", "status": status, "headers": headers})
            await tell({"type": "http.response.body", "body": body})

    def _sign(self, session: str, *words: str) -> str:
        text = "\0".join((session, *words)).encode("utf-8", "surrogateescape")
        return hmac.new(self._key, text, "sha256").hexdigest()[:32]

    async def _inward(
        self, session: str, scope: Message, receive: Receive
    ) -> tuple[Message, Receive]:
        """Return a request in which the server's names replace the client's."""
        path = scope["path"]
        if not re.fullmatch(ROUTES.get(scope["method"], ""), path, re.DOTALL):
            raise _RefusedError(404, "There is nothing at this address. Use the page of the app.")
        kept = [
            pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] in _OWN
        ]
        query = urlencode([(name, self._sign(session, value)) for name, value in kept]).encode()
        if path.startswith(_FILE):
            path = _FILE + self._file(session, path.removeprefix(_FILE))
        elif path.startswith(f"{_API}heartbeat/"):
            path = f"{_API}heartbeat/{self._sign(session, path.rpartition('/')[2])}"
        scope = {**scope, "path": path, "raw_path": quote(path).encode(), "query_string": query}
        if scope["method"] != "POST" or path.endswith("/upload"):
            return scope, receive
        body = [await self._body(session, receive)]
        length = (b"content-length", str(len(body[0])).encode())
        scope["headers"] = [
            *(pair for pair in scope["headers"] if pair[0] != b"content-length"),
            length,
        ]

        async def replay() -> Message:
            return {"type": "http.request", "body": body.pop()} if body else await receive()

        return scope, replay

    async def _body(self, session: str, receive: Receive) -> bytes:
        body = b""
        more = True
        while more and len(body) <= LONGEST:
            message = await receive()
            body = body + message.get("body", b"")
            more = message.get("more_body", False)
        if more or len(body) > LONGEST:
            raise _RefusedError(
                413, f"A request may have at most {LONGEST:,} bytes. Give less text."
            )
        try:
            content = self._with_files(session, json.loads(body))
        except (ValueError, RecursionError) as error:
            raise _RefusedError(400, "The request is not JSON. Use the page of the app.") from error
        if isinstance(content, dict) and isinstance(content.get("session_hash"), str):
            content["session_hash"] = self._sign(session, content["session_hash"])
        return json.dumps(content).encode()

    def _with_files(self, session: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._with_files(session, item) for item in value]
        if not isinstance(value, dict):
            return value
        value = {name: self._with_files(session, item) for name, item in value.items()}
        if value.get("path") is not None:
            value["path"] = self._file(session, value["path"])
            value.pop("url", None)
        return value

    def _file(self, session: str, handle: Any) -> str:
        """Return the path of a file that the session may name; refuse other files."""
        found = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
        if found is None or not hmac.compare_digest(
            found[1], self._sign(session, found[2], _plain(found[3]))
        ):
            raise _RefusedError(403, NOT_YOURS)
        try:
            return str(uploaded(os.path.join(self._folder, found[2], found[3])))
        except HypvisionError as error:
            raise _RefusedError(403, str(error)) from error

    def _outward(self, session: str, body: bytes) -> bytes:
        """Return a response in which the client's names replace the server's, and a general
        sentence replaces an error without a message."""

        def handle(found: re.Match[str]) -> str:
            folder, name = found.groups()
            return (
                f"/uploads/{self._sign(session, folder, _plain(name))}/{folder}/{name}"
                if name
                else ""
            )

        text = self._paths.sub(handle, body.decode("utf-8", "surrogateescape"))
        text = text.replace('"error":null', f'"error":{json.dumps(UNKNOWN)}')
        return text.encode("utf-8", "surrogateescape")


def _plain(name: str) -> str:
    """Return a name without any of the escapes of addresses."""
    shorter = unquote(name)
    return name if shorter == name else _plain(shorter)
