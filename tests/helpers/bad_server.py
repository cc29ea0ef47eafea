"""A local HTTP server that misbehaves on request: the first part of a path says how."""

import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietServer(ThreadingHTTPServer):
    """A server whose clients may hang up: a test that reads stderr is about the client, not about
    this thread."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """Serves ``files`` under ``/MODE/NAME``; ``log`` holds ``(method, mode, range header)`` of
    every request, and ``tokens`` ``(mode, authorization)``.

    Modes: ``good``; ``missing`` 404; ``busy`` 503 always; ``busy2`` 503 twice, then good; ``cut``
    closes in the middle, once; ``wrong`` other bytes of the same size; ``longer`` never stops;
    ``slow`` sends in small pieces; ``drip`` sends a byte at a time; ``away`` redirects to ``good``
    of the server ``other``; ``hub`` is the Hugging Face hub with these ``repositories``, whose
    files should have these ``sums``, and it may trickle, too.
    """

    def __init__(self, files):
        self.files = files
        self.log = []
        self.tokens = []
        self.seen = Counter()
        self.other = None
        self.repositories = set()
        self.sums = {}
        self.trickles = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                server.answer(self)

            do_HEAD = do_GET

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def ranges(self, mode):
        """The range headers of the requests in a mode, in their order."""
        return [header for _, m, header in self.log if m == mode]

    def answer(self, request):
        mode, _, name = request.path.lstrip("/").partition("/")
        header = request.headers.get("Range")
        self.log.append((request.command, mode, header))
        self.tokens.append((mode, request.headers.get("Authorization")))
        first = self.seen[mode] == 0
        self.seen[mode] += 1
        if mode in ("missing", "busy") or (mode == "busy2" and self.seen[mode] <= 2):
            return self.reply(request, 404 if mode == "missing" else 503, b"no")
        if mode == "away":
            return self.reply(request, 302, b"", {"Location": f"{self.other.url}/good/{name}"})
        about = {}
        if mode == "hub":  # /USER/REPO/resolve/REVISION/FILE
            repository, _, name = name.partition("/resolve/")
            name = name.partition("/")[2]
            about = {"X-Repo-Commit": "1" * 40, "ETag": f'"{self.sums.get(name, "2" * 40)}"'}
            if repository in self.repositories:
                about["X-Error-Code"] = "EntryNotFound"
        if name not in self.files:
            return self.reply(request, 404, b"no", about)
        data = self.files[name]
        if mode == "wrong":
            data = bytes(len(data))
        start = int(header.removeprefix("bytes=").split("-")[0]) if header is not None else 0
        if start >= len(data) > 0:
            return self.reply(request, 416, b"")
        body = data[start:]
        promised = len(body)
        if mode == "longer":
            promised, body = 10 * len(data), data + bytes(9 * len(data))
        elif mode == "cut" and first:
            body = body[: len(body) // 2]
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(promised))
        for key, value in about.items():
            request.send_header(key, value)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.end_headers()
        if request.command == "HEAD":
            return None
        try:
            if mode == "drip" or (mode == "hub" and self.trickles):
                for _ in range(1000):  # ten seconds
                    request.wfile.write(b"x")
                    time.sleep(0.01)
            elif mode == "slow":
                for i in range(0, len(body), 4096):
                    request.wfile.write(body[i : i + 4096])
                    time.sleep(0.02)
            else:
                request.wfile.write(body)
        except OSError:
            request.close_connection = True  # the client has had enough
        if len(body) < promised:
            request.close_connection = True
        return None

    def reply(self, request, status, body, headers=None):
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
