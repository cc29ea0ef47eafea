"""What a server may say, for each way of getting a file: in one piece, in parts, as a text."""

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest
from helpers.bad_server import QuietServer
from helpers.cases import each

from hypvision.checkpoints.download import download, download_text
from hypvision.data.remote import RemoteFile
from hypvision.io.errors import HypvisionError, without_secrets
from hypvision.io.web import SourceError

DATA = bytes(range(256)) * 40
HALF = len(DATA) // 2
OTHER = DATA[::-1]


class Scripted:
    """A server whose answers to GET are functions, one after another, the last one again and
    again; to HEAD it gives the size and the tag of the file."""

    def __init__(self, *answers):
        self.answers = answers
        self.head = 200
        self.ranges = []
        self.conditions = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_HEAD(self):
                outer.say(self, outer.head, dict(ETag='"1"'), b"", len(DATA))

            def do_GET(self):
                number = len(outer.ranges)
                outer.ranges.append(self.headers.get("Range"))
                outer.conditions.append(self.headers.get("If-Range"))
                outer.answers[min(number, len(outer.answers) - 1)](outer, self)

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        work = dict(target=self.http.serve_forever, kwargs=dict(poll_interval=0.02), daemon=True)
        threading.Thread(**work).start()

    def say(self, request, status, fields, body, length=None):
        request.send_response(status)
        for name, value in fields.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        request.wfile.write(body)


def whole(data=DATA, sent=None, **fields):
    return lambda server, request: server.say(
        request, 200, dict(ETag='"1"') | fields, data[:sent], len(data)
    )


def part(start, data=DATA, total=None, **fields):
    about = f"bytes {start}-{len(data) - 1}/{total or len(data)}"
    told = dict(ETag='"1"', Content_Range=about) | fields
    told = {name: value for name, value in told.items() if value}
    return lambda server, request: server.say(request, 206, told, data[start:])


def to(place):
    return lambda server, request: server.say(request, 302, dict(Location=place), b"")


def drip(server, request):
    server.say(request, 200, {}, b"", len(DATA))
    for _ in range(2000):
        request.wfile.write(b"x")
        time.sleep(0.01)


def drip_header(server, request):
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(2000):
        request.wfile.write(b"x")
        time.sleep(0.01)


def by_download(url, folder):
    download(url, folder / "file", None)
    return (folder / "file").read_bytes()


def by_sum(url, folder):
    def verify(path):
        if hashlib.sha256(path.read_bytes()).digest() != hashlib.sha256(DATA).digest():
            raise SourceError("has another sum")

    download(url, folder / "file", verify, len(DATA))
    return (folder / "file").read_bytes()


def by_parts(url, folder):
    with RemoteFile(url).open() as file:
        return file.read()


WAYS = (by_download, by_sum, by_parts)
REFUSED = {
    "another range": [whole(sent=HALF), part(HALF - 100)],
    "a range that is none": [whole(sent=HALF), part(HALF, Content_Range="bytes x")],
    "no range": [whole(sent=HALF), part(HALF, Content_Range="")],
    "another version's part": [whole(sent=HALF), part(HALF, OTHER, ETag='"2"')],
    "another version, whole": [whole(sent=HALF), whole(OTHER, ETag='"2"')],
    "a part without the tag": [whole(sent=HALF), part(HALF, OTHER, ETag="")],
    "a part of a larger file": [whole(sent=HALF), part(HALF, total=len(DATA) + 5)],
    "a part at first": [part(10)],
    "file:": [to("file:///etc/passwd")],
    "ftp:": [to("ftp://127.0.0.1/x")],
    "data:": [to("data:,x")],
    "nowhere": [to("http://[")],
    "no file": [to("")],
    "a drip": [drip],
    "a header that drips": [drip_header],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("HYPVISION_DEADLINE", "0.5")
    monkeypatch.setattr("hypvision.checkpoints.download.WAIT", 0.01)
    monkeypatch.setattr("hypvision.data.remote.WAIT", 0.01)


@pytest.mark.quick("another range", "another version's part", "file:", "a header that drips")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_taken(kind, tmp_path_factory):
    for way in WAYS:
        server = Scripted(*REFUSED[kind])
        begun = time.monotonic()
        with pytest.raises((HypvisionError, SourceError)) as caught:
            way(f"{server.url}/file", tmp_path_factory.mktemp("place"))
        assert time.monotonic() - begun < 60, way
        assert len(str(caught.value)) > 10
        server.http.shutdown()
        server.http.server_close()


JOINED = {
    "by its range": [whole(sent=HALF), part(HALF)],
    "a server without ranges": [whole(sent=HALF), whole()],
    "a server without tags": [whole(sent=HALF, ETag=""), part(HALF, ETag="")],
    "twice": [whole(sent=HALF), part(HALF)],
}


@each("kind", JOINED)
def test_what_is_joined(kind, tmp_path_factory):
    for way in WAYS:
        server = Scripted(*JOINED[kind])
        assert way(f"{server.url}/file", tmp_path_factory.mktemp("place")) == DATA
        assert server.ranges == [None, f"bytes={HALF}-"]
        assert server.conditions[1] == (None if "tags" in kind else '"1"')
        server.http.shutdown()
        server.http.server_close()


def test_bytes_of_an_earlier_call_need_a_sum(tmp_path):
    """Of a file without one nothing tells whether it is still the same."""
    (tmp_path / "file.part").write_bytes(OTHER[:100])
    server = Scripted(whole())
    assert by_download(f"{server.url}/file", tmp_path) == DATA and server.ranges == [None]


@each("status", [403, 405, 501])
def test_an_address_that_is_signed_for_one_method(status):
    server = Scripted(whole())
    server.head = status
    file = RemoteFile(f"{server.url}/file?sig=x")
    assert file.stat().st_size == len(DATA)
    with file.open() as content:
        assert content.read() == DATA


def refuse(status):
    return lambda server, request: server.say(request, status, {}, b"no")


@each("status", [429, 503])
def test_a_busy_server_is_asked_again(status, tmp_path_factory):
    for way in WAYS:
        server = Scripted(refuse(status), whole())
        assert way(f"{server.url}/file", tmp_path_factory.mktemp("place")) == DATA, way
        assert len(server.ranges) == 2


def test_bodies_of_redirects_are_not_read(tmp_path):
    """A client that follows by itself would keep them in memory."""

    def endless(server, request):
        request.send_response(302)
        request.send_header("Location", "/file")
        request.end_headers()
        for _ in range(2000):  # 2 GB, as long as anybody reads
            request.wfile.write(b"x" * 2**20)

    server = Scripted(endless, whole())
    assert by_download(f"{server.url}/away", tmp_path) == DATA
    assert len(server.ranges) == 2


def test_the_hubs_switch_is_for_the_hub(tmp_path, monkeypatch):
    """Clusters set it, and read shards of their own servers."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for way in WAYS:
        server = Scripted(whole())
        assert way(f"{server.url}/file", tmp_path) == DATA
        (tmp_path / "file").unlink(missing_ok=True)


def test_a_text_ends(tmp_path):
    server = Scripted(whole(b"x" * (4 * 2**20 + 1)))
    with pytest.raises(SourceError, match="sends more than"):
        download_text(f"{server.url}/file")


@each("url", ["http://[", "http://example.org:x/a", "http://\0/a", "http:///a"])
def test_what_is_no_address(url, tmp_path):
    for way in WAYS:
        with pytest.raises((HypvisionError, SourceError)):
            way(url, tmp_path)


@each("given, shown", [
    ("https://me:pw@h/a.tar?sig=x&X=y#sha256=ab", "https://h/a.tar#sha256=ab"),
    ("see 'https://h/a?sig=x': 403", "see 'https://h/a': 403"),
    ("s3://k:s@b/a?v=1, then", "s3://b/a?v=1, then"),  # a pattern: s3 has no queries
    ("HTTPS://u@h/?q", "HTTPS://h/"),
    ("what? user@host a/b?c", "what? user@host a/b?c"),
    ('url = "https://me:p\'w@h/a.tar"', 'url = "https://h/a.tar"'),
    ("see 'https://me:p w@h/a'", "see 'https://h/a'"),
    ("https://me:p\"w@s@h/a", "https://h/a"),
    ("('https://h:80', 'a@b')", "('https://h:80', 'a@b')"),
    ("https://me:'pw'@h/a and https://me:12'3@h/b", "https://h/a and https://h/b"),
    ("https://me:p@w x@h/a", "https://h/a"),
    ("https://me:p@w x@h", "https://h"),
    ("https://me:p w@x y@h?sig=1", "https://h"),
    ("https://me:p@w, x@h/a and https://me:p@ w@k/b", "https://h/a and https://k/b"),
    ("https://token@x y@h/a", "https://h/a"),
    ("https://me:p@w'x y@h/a", "https://h/a"),
    ("s3://me:p @ @h/a b@c", "s3://h/a b@c"),
    ("https://me:pw@h/a, not x@k/a", "https://h/a, not x@k/a"),
    ("http://me:pw@proxy:3128: answer from a@b", "http://proxy:3128: answer from a@b"),
    ("'https://me:pw@h', 'a@b'", "'https://h', 'a@b'"),
    ("https://me: pw@h/a", "https://h/a"),
    ("no 'https://me:  pw@h/a': 403", "no 'https://h/a': 403"),
    ("https://me:p/w@h/a", "https://h/a"),
    ("see https://me:p/w/x@h:80/a and https://me:1p/2@k/", "see https://h:80/a and https://k/"),
    ("https://h:80/a@b/c and https://h/@b", "https://h:80/a@b/c and https://h/@b"),
    ("https://[2001:db8::1]/a@b", "https://[2001:db8::1]/a@b"),
    ("oci://registry:tag/image@sha256:abc", "oci://registry:tag/image@sha256:abc"),
    ("https://a.org:8080x/a@b", "https://a.org:8080x/a@b"),
    ("https://proxy:port/name@x: set a port", "https://proxy:port/name@x: set a port"),
    ("https://a.org: me@b.org/x was not found.", "https://a.org: me@b.org/x was not found."),
    ("https://me:p/w@b.org and ftp://me:p/w@localhost", "https://b.org and ftp://localhost"),
    ("https://h: answer from a@b", "https://h: answer from a@b"),
    ("http://proxy:3128: answer from a@b", "http://proxy:3128: answer from a@b"),
])  # fmt: skip
def test_secrets_of_addresses_are_not_shown(given, shown):
    assert without_secrets(given) == shown
    assert str(HypvisionError(given)) == shown
