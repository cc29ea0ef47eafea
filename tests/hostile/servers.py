"""Every way of downloading, from a server that lies, stalls, redirects or never ends.

Every server is at 127.0.0.1 and stops after :data:`SECONDS` and :data:`BYTES`. What arrives is the
right file, or nothing arrives and one sentence says why: in time, in bounded memory, and without
reading a file of this machine or telling a password to another host. A shard and a picture have no
sum: of them one answer may be wrong from its first byte, but two are never joined.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .table import Case, Skipped, shared

GROUP = "servers"
SECONDS, BYTES = 60, 2**31  # of one answer
DEADLINE = 4  # seconds, as HYPVISION_DEADLINE
SECRET = b"the secret of this machine " * 100
PASSWORD = "hunter2"  # also the signature of an address
QUERY = f"X-Amz-Signature={PASSWORD}&sig={PASSWORD}"


class Request(NamedTuple):
    """What a client asked for, and what an answer needs to know."""

    method: str
    path: str
    headers: dict[str, str]
    number: int  # of this request, from 0
    data: bytes  # of the right file
    other: Any  # a second server
    secret: Path

    @property
    def start(self) -> int:
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0])


Answer = Callable[[Request], Iterator[bytes]]


def reply(status: str, body: bytes = b"", length: int | None = None, **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body) if length is None else length}",
        "Connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Answers each connection with the pieces of ``answer``; ``seen`` holds the requests."""

    def __init__(
        self, answer: Answer, data: bytes, secret: Path, other: Any = None, context: Any = None
    ):
        self.answer, self.data, self.secret, self.other, self.context = (
            answer,
            data,
            secret,
            other,
            context,
        )
        self.seen: list[Request] = []
        self.metadata: Answer | None = None  # of a hub that lies about the file
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=20)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(SECONDS)
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            text = b""
            while b"\r\n\r\n" not in text:
                piece = connection.recv(2**16)
                if not piece:
                    return
                text += piece
            first, *lines = text.decode("latin1").split("\r\n")
            fields = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            request = Request(
                *first.split()[:2], headers, len(self.seen), self.data, self.other, self.secret
            )
            self.seen.append(request)
            end, sent = time.monotonic() + SECONDS, 0
            for piece in self.answer(request):
                connection.sendall(piece)
                sent += len(piece)
                if time.monotonic() > end or sent > BYTES:
                    return
        except OSError:
            pass  # the client has had enough
        finally:
            connection.close()


# How a server answers


def good(request: Request) -> Iterator[bytes]:
    body = request.data[request.start :]
    if request.start:
        about = f"bytes {request.start}-{len(request.data) - 1}/{len(request.data)}"
        yield reply("206 Partial Content", body, Content_Range=about)
    else:
        yield reply("200 OK", body)


def wrong_bytes(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", bytes(len(request.data)))


def empty(request: Request) -> Iterator[bytes]:
    yield reply("200 OK")


def web_page(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", b"<html>please log in</html>", Content_Type="text/html")


def moved(place: Callable[[Request], str], status: str = "302 Found") -> Answer:
    def answer(request: Request) -> Iterator[bytes]:
        yield reply(status, Location=place(request))

    return answer


def drip(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", length=len(request.data))
    while True:
        yield b"x"
        time.sleep(0.05)


def slow_header(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        yield b"x"
        time.sleep(0.05)


def silence(request: Request) -> Iterator[bytes]:
    time.sleep(SECONDS)
    yield b""


def status(text: str, **headers: str) -> Answer:
    def answer(request: Request) -> Iterator[bytes]:
        yield reply(text, **headers)

    return answer


def endless_header(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        yield b"x" * 2**16


def endless_headers(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    number = 0
    while True:
        yield b"".join(b"X-%d: y\r\n" % (number + i) for i in range(4096))
        number += 4096


def endless_informational(request: Request) -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 1024


def endless_trailers(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\nx\r\n0\r\n"
    while True:
        yield b"X: y\r\n" * 4096


def endless_body(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    while True:
        yield bytes(2**20)


def endless_chunks(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\nx\r\n" * 4096


def endless_error(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
    while True:
        yield b"y" * 2**20


def too_long(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data + bytes(2**20))


def huge_promise(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data, length=2**62)


def no_number(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + request.data


def negative_length(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data, length=-5)


def digits(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 50000 + b"\r\n\r\n" + request.data


def two_lengths(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data, Content_Length="3")


def short(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data[:100])


def cut(after: Answer) -> Answer:
    """Half of the file at the first request, and then another answer to each further one."""

    def answer(request: Request) -> Iterator[bytes]:
        if request.number == 0:
            half = request.data[: len(request.data) // 2]
            yield reply("200 OK", half, length=len(request.data), ETag='"1"')
        else:
            yield from after(request)

    return answer


def lying_range(shift: int, kind: bytes | None = None) -> Answer:
    """206 with bytes of another place, or other bytes, than the range that was asked for."""

    def answer(request: Request) -> Iterator[bytes]:
        start = max(0, request.start + shift)
        body = request.data[start:] if kind is None else kind * (len(request.data) - start)
        about = f"bytes {start}-{len(request.data) - 1}/{len(request.data)}"
        yield reply("206 Partial Content", body, Content_Range=about)

    return answer


def next_version(request: Request) -> Iterator[bytes]:
    """A whole file of the same size and other bytes, with its own tag."""
    yield reply("200 OK", bytes(len(request.data)), ETag='"2"')


def next_version_part(request: Request) -> Iterator[bytes]:
    start = request.start
    body = bytes(len(request.data) - start)
    about = f"bytes {start}-{len(request.data) - 1}/{len(request.data)}"
    yield reply("206 Partial Content", body, Content_Range=about, ETag='"2"')


def range_of(text: str) -> Answer:
    def answer(request: Request) -> Iterator[bytes]:
        yield reply("206 Partial Content", request.data[request.start :], Content_Range=text)

    return answer


def always_206(request: Request) -> Iterator[bytes]:
    yield reply(
        "206 Partial Content", request.data[10:], Content_Range=f"bytes 10-{len(request.data)}/9999"
    )


def no_progress(request: Request) -> Iterator[bytes]:
    """A byte more at each request, and then the connection breaks."""
    body = request.data[request.start :]
    yield reply("206 Partial Content" if request.start else "200 OK", body[:1], length=len(body))


def _bomb(folder: Path) -> None:
    for layers in (1, 3):
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        body = b"".join(packer.compress(bytes(2**20)) for _ in range(1024)) + packer.flush()
        for _ in range(layers - 1):
            packer = zlib.compressobj(9, zlib.DEFLATED, 31)
            body = packer.compress(body) + packer.flush()
        (folder / f"{layers}.gz").write_bytes(body)


def gzip_bomb(layers: int) -> Answer:
    """A small body that unpacks to 1 GiB, in one or several layers, though no compression was asked
    for."""

    def answer(request: Request) -> Iterator[bytes]:
        body = (shared("bombs", _bomb) / f"{layers}.gz").read_bytes()
        yield reply("200 OK", body, Content_Encoding=", ".join(["gzip"] * layers))

    return answer


def many_encodings(request: Request) -> Iterator[bytes]:
    yield reply("200 OK", request.data, Content_Encoding=", ".join(["gzip"] * 5000))


def no_http(request: Request) -> Iterator[bytes]:
    yield b"\x00\xff\xfe garbage\r\n\r\n" * 100


def closes(request: Request) -> Iterator[bytes]:
    yield b""


def to_secret(request: Request) -> str:
    return f"file://{request.secret}"


def to_itself(request: Request) -> str:
    return f"{request.path}{'&' if '?' in request.path else '?'}{request.number}"


ANSWERS: dict[str, Answer] = {
    "wrong bytes of the right size": wrong_bytes,
    "an empty body": empty,
    "a web page": web_page,
    "a redirect to file://": moved(to_secret),
    "a redirect to FILE://localhost": moved(lambda request: f"FILE://localhost{request.secret}"),
    "a redirect to a path alone": moved(lambda request: f"//{request.secret}"),
    "a redirect to ftp://": moved(lambda request: "ftp://127.0.0.1/x"),
    "a redirect to data:": moved(lambda request: "data:,x"),
    "a redirect to nothing": moved(lambda request: ""),
    "a redirect to another host": moved(lambda request: f"{request.other.url}{request.path}"),
    "a redirect that never ends": moved(to_itself),
    "a redirect of a megabyte": moved(lambda request: "/" + "x" * 2**20),
    "a redirect with a password": moved(lambda request: f"http://me:{PASSWORD}@127.0.0.1:1/x"),
    "bytes that drip": drip,
    "a header that drips": slow_header,
    "silence": silence,
    "429": status("429 Too Many Requests"),
    "429 with Retry-After 1": status("429 Too Many Requests", Retry_After="1"),
    "429 with Retry-After 1e9": status("429 Too Many Requests", Retry_After="1000000000"),
    "429 with Retry-After of 5,000 digits": status("429 Too Many Requests", Retry_After="9" * 5000),
    "429 with a date": status("429 Too Many Requests", Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"),
    "429 with a rate limit": status("429 Too Many Requests", RateLimit='"api";r=0;t=99999999'),
    "503": status("503 Service Unavailable"),
    "503 with Retry-After 1e9": status("503 Service Unavailable", Retry_After="1000000000"),
    "404": status("404 Not Found"),
    "204": status("204 No Content"),
    "304": status("304 Not Modified"),
    "a status that is none": status("999 What"),
    "one header without an end": endless_header,
    "headers without an end": endless_headers,
    "100 Continue without an end": endless_informational,
    "trailers without an end": endless_trailers,
    "a body without an end": endless_body,
    "chunks of a byte without an end": endless_chunks,
    "an error page without an end": endless_error,
    "a body that is too long": too_long,
    "a Content-Length of 2**62": huge_promise,
    "a Content-Length that is no number": no_number,
    "a Content-Length of -5": negative_length,
    "a Content-Length of 50,000 digits": digits,
    "two Content-Lengths": two_lengths,
    "a body that is too short": short,
    "cut, then other bytes": cut(lying_range(0, b"z")),
    "cut, then bytes of another place": cut(lying_range(-1000)),
    "cut, then a range past the end": cut(lying_range(10**6)),
    "cut, then a range that is no number": cut(range_of("bytes x-y/z")),
    "cut, then a range of 5,000 digits": cut(range_of("bytes 0-1/" + "9" * 5000)),
    "cut, then the whole file": cut(lambda request: good(request._replace(headers={}))),
    "cut, then 416": cut(status("416 Range Not Satisfiable")),
    "cut, then a redirect to file://": cut(moved(to_secret)),
    "a part that was not asked for": always_206,
    "cut, then the next version": cut(next_version),
    "cut, then the next version's part": cut(next_version_part),
    "a byte at each request": no_progress,
    "a gzip bomb": gzip_bomb(1),
    "a gzip bomb in three layers": gzip_bomb(3),
    "5,000 encodings": many_encodings,
    "what is no HTTP": no_http,
    "a connection that closes": closes,
}
# Which may give the file, some after a second beginning.
RECOVERS = {
    "a redirect to another host",
    "cut, then the whole file",
    "cut, then bytes of another place",
    "good",
}


# Ways of downloading


def _environment(folder: Path, deadline: float = DEADLINE) -> None:
    from huggingface_hub import constants

    import hypvision.checkpoints.download
    import hypvision.io.web

    for name in (
        "HYPVISION_WEIGHTS",
        "HYPVISION_OFFLINE",
        "HF_HUB_OFFLINE",
        "HYPVISION_INDEX",
        "XDG_CACHE_HOME",
    ):
        os.environ.pop(name, None)
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        os.environ.pop(name, None)
    os.environ.update(
        HYPVISION_HOME=str(folder / "home"), TORCH_HOME=str(folder / "torch"),
        HYPVISION_DEADLINE=str(deadline),
    )  # fmt: skip
    constants.HF_HUB_CACHE = str(folder / "hub")
    constants.HF_HUB_DOWNLOAD_TIMEOUT = constants.HF_HUB_ETAG_TIMEOUT = 1
    hypvision.checkpoints.download.WAIT = 0.01
    hypvision.io.web.UNTOLD = 2**22


def _record(path: Path) -> Any:
    from helpers.zoo import make_item

    from hypvision.checkpoints.index import parse_record

    item = make_item(path)
    return parse_record(
        {**item, "file": {**item["file"], "path": None, "urls": ["file:///nowhere/x.safetensors"]}}
    )


def of_a_mirror(server: Server, file: Path) -> Path:
    from hypvision.checkpoints.sources import resolve

    os.environ["HYPVISION_WEIGHTS"] = server.url.replace("://", f"://me:{PASSWORD}@") + "/m"
    return resolve(_record(file))


def of_an_address(server: Server, file: Path) -> Path:
    from hypvision.checkpoints.sources import fetch

    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return fetch(f"{_secret(server)}/net.safetensors?{QUERY}#sha256={digest}")


def _secret(server: Server) -> str:
    return server.url.replace("://", f"://me:{PASSWORD}@")


def of_a_picture(server: Server, file: Path) -> Path:
    """As ``hypvision predict ADDRESS`` gets it."""
    from hypvision.inference.sources import fetched

    with fetched([f"{_secret(server)}/net.png?{QUERY}"]) as ([found], _):
        (file.parent / "picture.bin").write_bytes(Path(found).read_bytes())
    return file.parent / "picture.bin"


def of_a_shard(server: Server, file: Path) -> Path:
    """As a training reads it, in pieces and with a step back."""
    from hypvision.data.remote import RemoteFile

    answer = server.answer
    counts: dict[str, int] = {}

    def counted(request: Request) -> Iterator[bytes]:
        number = counts.get(request.method, 0)
        counts[request.method] = number + 1
        yield from answer(request._replace(number=number))

    server.answer = counted
    begin = len(server.data) // 4
    with RemoteFile(f"{_secret(server)}/000000.tar?{QUERY}").open() as source:
        first = source.read(begin)
        source.seek(begin // 2)
        content = first[: begin // 2] + source.read()
    (file.parent / "shard.bin").write_bytes(content)
    return file.parent / "shard.bin"


def of_an_index(server: Server, file: Path) -> Path:
    from hypvision.checkpoints.sources import open_release

    return open_release(f"{server.url.replace('://', f'://me:{PASSWORD}@')}/release")


def of_the_hub(server: Server, file: Path) -> Path:
    """The hub says what file it has, and sends it as the case wants."""
    answer = server.answer
    digest = hashlib.sha256(server.data).hexdigest()
    about = dict(X_Repo_Commit="1" * 40, ETag=f'"{digest}"')
    asked = []

    def of_a_hub(request: Request) -> Iterator[bytes]:
        if request.path.startswith(
            "/api/"
        ):  # the hub's client looks for a list of programs that use it
            yield reply("404 Not Found")
        elif request.method == "HEAD":
            yield reply("200 OK", length=len(request.data), **about)
        else:
            asked.append(request)
            yield from answer(request._replace(number=len(asked) - 1))

    server.answer = of_a_hub if server.metadata is None else server.metadata
    import huggingface_hub.file_download
    from huggingface_hub import constants

    from hypvision.checkpoints.sources import fetch_from_hub

    constants.ENDPOINT = server.url
    constants.HUGGINGFACE_CO_URL_TEMPLATE = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE = (
        constants.HUGGINGFACE_CO_URL_TEMPLATE
    )
    return fetch_from_hub("me/net", "model.safetensors")


WAYS: dict[str, Callable[[Server, Path], Any]] = {
    "mirror": of_a_mirror,
    "address": of_an_address,
    "index of a release": of_an_index,
    "hub": of_the_hub,
    "picture": of_a_picture,
    "shard": of_a_shard,
}
WITHOUT_SUM = ("picture", "shard")


def _inputs(folder: Path) -> tuple[Path, Path]:
    """The right file, and a file of this machine that no server may read."""
    import torch

    from hypvision.checkpoints.storage import write_weights

    write_weights({"w": torch.arange(20_000.0)}, folder / "right.safetensors")
    secret = folder / "secret.txt"
    secret.write_bytes(SECRET)
    return folder / "right.safetensors", secret


def _check(
    way: str, name: str, folder: Path, server: Server, file: Path, deadline: float = DEADLINE
) -> str:
    """Download, and look at what came of it."""
    from hypvision.io.errors import HypvisionError

    other = server.other
    begun = time.monotonic()
    try:
        found = WAYS[way](server, file)
        said = "the right file"
    except (HypvisionError, FileNotFoundError) as error:  # of a shard that is not there
        found, said = None, str(error)
        assert isinstance(error, HypvisionError) or way == "shard", said
    seconds = time.monotonic() - begun
    assert seconds < deadline + 6, f"it took {seconds:.1f} s: {said}"
    if isinstance(found, Path):
        right = found.read_bytes() == file.read_bytes()
        mixed = "cut" in name or "part" in name
        assert right or (way in WITHOUT_SUM and not mixed), "it gave another file"
        assert name in RECOVERS or way in WITHOUT_SUM, f"it gave {found}"
        said = said if right else "what the server sent as a whole"
    assert PASSWORD not in said or "with a password" in name, said
    token = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    if other is not None:
        told = [
            request for request in other.seen if token in request.headers.get("authorization", "")
        ]
        assert not told, "another host got the password"
    _look_around(folder, file, way)
    return " ".join(said.split())[-300:]


def _look_around(folder: Path, file: Path, way: str) -> None:
    right = file.read_bytes()
    output = folder.parent / "output"  # of this case, with its log
    told = output.read_text(errors="replace") if output.is_file() else ""
    assert PASSWORD not in told, f"the log has the password: {told[-500:]}"
    for path in folder.rglob("*"):
        assert PASSWORD not in path.name, f"a file is called {path.name}"
        if not path.is_file() or path == file or path.name == "secret.txt":
            continue
        content = path.read_bytes() if path.stat().st_size < 2**24 else b""
        assert SECRET[:200] not in content, f"the secret is in {path.name}"
        complete = path.suffix == ".safetensors"
        assert not complete or content == right, f"wrong bytes in {path.name}"
        assert way == "hub" or "etc" not in path.parts, f"it wrote {path}"
        assert path.stat().st_size < 8 * 2**20, f"{path.name} has {path.stat().st_size} bytes"


def _attack(way: str, name: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        _environment(folder)
        file, secret = _inputs(folder)
        data = file.read_bytes()
        other = Server(good, data, secret)
        if "bomb" in name:
            shared("bombs", _bomb)
        return _check(way, name, folder, Server(ANSWERS[name], data, secret, other), file)

    return run


def _metadata(**headers: str) -> Callable[[Path], str]:
    """A hub whose answer about the file names it so that the file would lie elsewhere."""

    def run(folder: Path) -> str:
        _environment(folder)
        file, secret = _inputs(folder)
        data = file.read_bytes()
        told = {"X_Repo_Commit": "1" * 40, "ETag": '"' + "2" * 40 + '"'} | headers

        def answer(request: Request) -> Iterator[bytes]:
            if request.path.startswith("/api/"):
                yield reply("404 Not Found")
            else:
                yield reply(
                    "200 OK", b"" if request.method == "HEAD" else data, length=len(data), **told
                )

        server = Server(good, data, secret)
        server.metadata = answer
        before = set(folder.rglob("*"))
        said = _check("hub", "good", folder, server, file)
        new = set(folder.rglob("*")) - before
        out = [
            path
            for path in new
            if not path.is_relative_to(folder / "hub") and path != folder / "hub"
        ]
        assert not out, f"it wrote {out}"
        inside = [path for path in new if path.is_file() and "models--me--net" not in path.parts]
        assert not [path for path in inside if path.read_bytes() == data], f"it wrote {inside}"
        return said

    return run


METADATA: dict[str, dict[str, str]] = {
    "no lie": {},
    "an ETag that is a path": dict(ETag='"../../../outside.txt"'),
    "an ETag in the root": dict(ETag='"/tmp/attack-outside.txt"'),
    "an X-Linked-ETag that is a path": dict(X_Linked_ETag='"../../../outside.txt"'),
    "a commit that is a path": dict(X_Repo_Commit="../../../../outside"),
    "a commit in the root": dict(X_Repo_Commit="/tmp/attack-outside"),
    "an ETag of 100 kB": dict(ETag='"' + "e" * 50_000 + '"'),
    "a size of 2**62": dict(X_Linked_Size=str(2**62)),
    "a size that is no number": dict(X_Linked_Size="many"),
    "a size below 0": dict(X_Linked_Size="-7"),
    "a sum of another file": dict(ETag='"' + "3" * 64 + '"'),
    "an error that is none": dict(X_Error_Code="EntryNotFound", X_Error_Message="x" * 9000),
}


def _to_http(folder: Path) -> str:
    """Of an https address whose name has the first digits of its sum, https says who sent the
    file."""
    from hypvision.checkpoints.sources import fetch
    from hypvision.io.errors import HypvisionError

    _environment(folder)
    file, secret = _inputs(folder)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    other = Server(good, file.read_bytes(), secret)
    server = Server(
        moved(lambda request: f"{request.other.url}/x"), b"", secret, other, _certificate(folder)
    )
    try:
        fetch(f"{server.url}/net-{digest[:8]}.safetensors")
    except HypvisionError as error:
        assert server.seen, f"the server was not asked: {error}"
        assert not other.seen, "it asked the server without https"
        return " ".join(str(error).split())[:200]
    raise AssertionError("it took a file from a server without https")


def _certificate(folder: Path) -> ssl.SSLContext:
    """A server's context with a new certificate, which the clients of this process trust."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext "
        "subjectAltName=IP:127.0.0.1"
    )
    try:
        made = subprocess.run(
            [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
            capture_output=True,
        )
    except FileNotFoundError:
        raise Skipped("there is no openssl") from None
    if made.returncode:
        raise Skipped("openssl made no certificate")
    os.environ["SSL_CERT_FILE"] = os.environ["REQUESTS_CA_BUNDLE"] = str(folder / "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _first_of_two(folder: Path) -> str:
    """A mirror that asks for a wait of 30 years must not keep the next mirror from being asked."""
    from hypvision.checkpoints.sources import resolve

    _environment(folder, deadline=30)
    file, secret = _inputs(folder)
    answer = ANSWERS["429 with Retry-After 1e9"]
    first, second = (Server(each, file.read_bytes(), secret) for each in (answer, good))
    os.environ["HYPVISION_WEIGHTS"] = f"{first.url}/m,{second.url}/m"
    begun = time.monotonic()
    found = resolve(_record(file))
    seconds = time.monotonic() - begun
    assert found.read_bytes() == file.read_bytes()
    assert seconds < 15, f"it took {seconds:.1f} s"
    return f"the second mirror gave the file after {seconds:.1f} s"


def cases() -> list[Case]:
    found = [
        Case(GROUP, f"{way}: {name}", _attack(way, name), megabytes=900)
        for way in WAYS
        for name in ANSWERS
    ]
    found += [
        Case(GROUP, f"hub's metadata: {name}", _metadata(**headers))
        for name, headers in METADATA.items()
    ]
    found.append(Case(GROUP, "address: from https to http", _to_http))
    found.append(Case(GROUP, "mirror: the next one is asked", _first_of_two, seconds=40))
    return found
