"""A local HTTP server that misbehaves on request: the first part of a path says how."""

import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves ``files`` under ``/MODE/NAME``; ``log`` holds ``(method, mode, range header)`` of every request, and
    ``tokens`` ``(mode, authorization)``.

    Modes: ``good``; ``missing`` 404; ``busy`` 503 always; ``busy2`` 503 twice, then good; ``cut`` closes in the middle,
    once; ``wrong`` other bytes of the same size; ``longer`` never stops; ``shorter`` has half of the file, and says so;
    ``page`` a web page; ``norange`` knows no ranges, and is cut once; ``rewinding`` knows no ranges, and is cut always;
    ``moved`` redirects to ``good``; ``slow`` sends in small pieces; ``hub`` has the paths of the Hugging Face hub;
    ``drip`` sends a byte at a time, ``heads`` header lines without end; ``away`` redirects to ``good`` of the server
    ``other``, ``file`` to a file of this machine.
    """

    def __init__(self, files):
        self.files = files
        self.log = []
        self.tokens = []
        self.seen = Counter()
        self.other = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                server.answer(self)

            do_HEAD = do_GET

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

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
        if mode == "moved":
            return self.reply(request, 302, b"", {"Location": f"{self.url}/good/{name}"})
        if mode == "away":
            return self.reply(request, 302, b"", {"Location": f"{self.other.url}/good/{name}"})
        if mode == "file":
            return self.reply(request, 302, b"", {"Location": "file:///etc/hostname"})
        if mode == "heads":
            return self.drip(request, b"HTTP/1.1 200 OK\r\n", b"X-Line: y\r\n")
        if mode == "page":
            return self.reply(request, 200, b"<!DOCTYPE html><title>Log in</title>")
        if mode == "hub":  # /USER/REPO/resolve/REVISION/FILE
            name = name.split("/resolve/")[-1].partition("/")[2]
        if name not in self.files:
            return self.reply(request, 404, b"no")
        data = self.files[name]
        if mode == "wrong":
            data = bytes(len(data))
        elif mode == "shorter":
            data = data[: len(data) // 2]
        ranges = header is not None and mode not in ("norange", "rewinding")
        start = int(header.removeprefix("bytes=").split("-")[0]) if ranges else 0
        if start >= len(data) > 0:
            return self.reply(request, 416, b"")
        body = data[start:]
        promised = len(body)
        if mode == "longer":
            promised, body = 10 * len(data), data + bytes(9 * len(data))
        elif (mode in ("cut", "norange") and first) or mode == "rewinding":
            body = body[: len(body) // 2]
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(promised))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.end_headers()
        try:
            if mode == "drip":
                self.drip(request, b"", b"x")
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

    def drip(self, request, start, piece):
        """Send a start, and then small pieces for as long as somebody takes them (ten seconds at most)."""
        request.close_connection = True
        try:
            request.wfile.write(start)
            for _ in range(1000):
                request.wfile.write(piece)
                time.sleep(0.01)
        except OSError:
            pass

    def reply(self, request, status, body, headers=None):
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
