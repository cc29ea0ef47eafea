"""Downloads from a server that misbehaves: what arrives is right, or nothing arrives and the
message helps."""

import base64
import hashlib
import multiprocessing
import os
import pickle
import re
import tempfile
import time
from pathlib import Path

import pytest
import torch
from helpers.bad_server import Server

import hypvision.checkpoints.download
import hypvision.checkpoints.sources
from hypvision.checkpoints.download import locked
from hypvision.checkpoints.index import parse_record
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.sources import cache_folder, fetch_first, first_path, resolve
from hypvision.checkpoints.sources import fetch as fetch_source
from hypvision.io.errors import HypvisionError


def fetch(record, server, monkeypatch, *modes):
    monkeypatch.setenv("HYPVISION_WEIGHTS", ",".join(f"{server.url}/{mode}" for mode in modes))
    return resolve(record)


def in_cache():
    folder = cache_folder()
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("mode", ["busy2", "cut"])
def test_what_recovers_arrives(record, server, micro, monkeypatch, mode):
    path = fetch(record, server, monkeypatch, mode)
    assert path == cache_folder() / record.filename
    assert path.read_bytes() == micro[1].read_bytes()
    assert in_cache() == [record.filename]
    requests = len(server.log)
    assert resolve(record) == path and len(server.log) == requests  # the second time from the cache
    if mode == "cut":
        half = micro[1].stat().st_size // 2
        first, second = server.ranges("cut")
        assert (
            first is None and half - 2**16 < int(second.removeprefix("bytes=").rstrip("-")) <= half
        )


@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_a_damaged_part_of_another_run_is_thrown_away(record, server, micro, monkeypatch, times):
    """What a part's right bytes are good for, the killed process below shows."""
    data = micro[1].read_bytes()
    cache_folder().mkdir(parents=True)
    (cache_folder() / f"{record.filename}.part").write_bytes(bytes(int(times * len(data))))
    assert fetch(record, server, monkeypatch, "good").read_bytes() == data
    assert server.ranges("good")[-1] is None  # from the beginning


@pytest.mark.parametrize(
    ("mode", "message", "requests"),
    [
        ("missing", "answers 404 .no such file", 1),
        ("busy", "answers 503", 5),
        ("wrong", "sha256 begins with", 1),
        ("longer", "sends more than", 1),
    ],
)
def test_a_source_that_fails_for_good_is_explained_and_the_next_mirror_is_tried(
    record, server, micro, monkeypatch, mode, message, requests
):
    with pytest.raises(HypvisionError, match=message) as caught:
        fetch(record, server, monkeypatch, mode)
    text = str(caught.value)
    assert f"'{server.url}/{mode}/{record.filename}': " in text and record.name in text
    assert "HYPVISION_WEIGHTS" in text and record.filename in text  # what to do
    assert len(server.ranges(mode)) == requests
    assert not any(name.endswith(".safetensors") for name in in_cache())
    assert fetch(record, server, monkeypatch, mode, "good").read_bytes() == micro[1].read_bytes()


def test_a_password_is_sent_and_not_shown(record, server, micro, monkeypatch, caplog):
    """It stands in the address of the mirror, which messages and logs repeat."""
    base = server.url.replace("http://", "http://me:se%3Acret@")
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{base}/missing,{base}/cut,{base}/good")
    assert resolve(record).read_bytes() == micro[1].read_bytes()
    sent = "Basic " + base64.b64encode(b"me:se:cret").decode()
    assert {token for _, token in server.tokens} == {sent}
    resolve(record).unlink()
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{base}/missing")
    with pytest.raises(HypvisionError) as caught:
        resolve(record)
    assert "404" in str(caught.value) and "404" in caplog.text
    assert "cret" not in str(caught.value) + caplog.text


def test_a_download_ends_at_its_deadline(record, server, micro, monkeypatch):
    monkeypatch.setenv("HYPVISION_DEADLINE", "0.5")
    begun = time.monotonic()
    with pytest.raises(HypvisionError, match=r"time that it may take is over \(HYPVISION_DEADLINE"):
        fetch(record, server, monkeypatch, "drip")
    assert time.monotonic() - begun < 5
    monkeypatch.delenv("HYPVISION_DEADLINE")
    assert (
        hypvision.checkpoints.download.deadline(10**6)
        == 600
        < hypvision.checkpoints.download.deadline(10**9)
    )
    assert (
        fetch(record, server, monkeypatch, "good").read_bytes() == micro[1].read_bytes()
    )  # after wrong bytes too


def test_a_redirect_takes_no_password_along(record, server, micro, monkeypatch):
    server.other = Server({record.filename: micro[1].read_bytes()})
    try:
        monkeypatch.setenv(
            "HYPVISION_WEIGHTS", server.url.replace("http://", "http://me:secret@") + "/away"
        )
        assert resolve(record).read_bytes() == micro[1].read_bytes()
        assert server.tokens[-1][1] is not None and server.other.tokens == [("good", None)]
    finally:
        server.other.close()


def test_waiting_for_a_lock_ends(tmp_path, monkeypatch, caplog):
    """The holder is another process, as a lock within one would be the same one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def hold():
        with locked(tmp_path / "x.lock", "held"):
            there.send("locked")
            there.recv()

    process = context.Process(target=hold)
    process.start()
    assert here.poll(60) and here.recv() == "locked"
    monkeypatch.setattr(hypvision.checkpoints.download, "LOCK_WAIT", 0.2)
    wanted = pytest.raises(
        HypvisionError,
        match=rf"Waited .* the lock '.*x.lock': process {process.pid} on .* .the work.",
    )
    with wanted, locked(tmp_path / "x.lock", "the work"):
        pass
    here.send("done")
    process.join()
    with locked(tmp_path / "x.lock", "the work"):
        pass
    assert f"the lock '{tmp_path / 'x.lock'}': process {process.pid} on" in caplog.text


@pytest.mark.parametrize(
    ("data", "message"), [(pickle.dumps({"a": 1}), "pickle"), (b"<html>", "web page")]
)
def test_other_formats_are_refused_even_with_the_right_sum(
    item, tmp_path, monkeypatch, data, message
):
    """A record whose sum is that of a pickle must not make anybody open the pickle."""
    from helpers.zoo import make_item

    (tmp_path / "evil").write_bytes(data)
    made = make_item(tmp_path / "evil")
    made["file"] = {**made["file"], "path": None, "urls": ["file:///nowhere"]}
    record = parse_record(made)
    server = Server({record.filename: data})
    try:
        with pytest.raises(HypvisionError, match=message):
            fetch(record, server, monkeypatch, "good")
    finally:
        server.close()
    assert in_cache() == []
    with pytest.raises(HypvisionError, match=message):
        read_weights(tmp_path / "evil")


def test_a_disk_that_fills_up(record, server, monkeypatch):
    def write(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hypvision.checkpoints.download, "ask", write)
    with pytest.raises(HypvisionError, match="disk is full"):
        fetch(record, server, monkeypatch, "good")


def start(record):
    """A process of its own that downloads the record and sends where it lies, or the error."""

    def work():
        try:
            pipe.send(str(resolve(record)))
        except BaseException as error:
            pipe.send(repr(error))

    # Forked: starting Python and torch anew would take most of the time of the tests.
    context = multiprocessing.get_context("fork")
    here, pipe = context.Pipe()
    process = context.Process(target=work)
    process.start()
    return process, here


def test_kill_in_the_middle_then_go_on(record, server, micro, monkeypatch):
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/slow")
    process, _ = start(record)
    part = cache_folder() / f"{record.filename}.part"
    deadline = time.time() + 60
    while not (part.exists() and part.stat().st_size > 0):
        assert process.is_alive() and time.time() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    left = part.stat().st_size
    assert 0 < left < micro[1].stat().st_size and not (cache_folder() / record.filename).exists()
    path = fetch(record, server, monkeypatch, "good")  # the lock of the killed process is free
    assert path.read_bytes() == micro[1].read_bytes()
    assert server.ranges("good") == [f"bytes={left}-"]


def test_two_processes_download_once(record, server, micro, monkeypatch):
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/slow")
    processes = [start(record) for _ in range(3)]
    found = {pipe.recv() for _, pipe in processes if pipe.poll(60)}
    for process, _ in processes:
        process.join()
    assert found == {str(cache_folder() / record.filename)}
    assert (cache_folder() / record.filename).read_bytes() == micro[1].read_bytes()
    assert len(server.log) == 1


@pytest.mark.parametrize("there", [True, False])
def test_read_only_cache(record, server, micro, home, there, monkeypatch):
    """What is in it is used; what is not is an error that says what to do."""
    (home / "weights").mkdir(parents=True)
    if there:
        (home / "weights" / record.filename).write_bytes(micro[1].read_bytes())
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good")

    def forbid(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    # A folder without write permission does not stop root, as whom containers run tests.
    monkeypatch.setattr(hypvision.checkpoints.sources.Path, "mkdir", forbid)
    if there:
        assert resolve(record) == home / "weights" / record.filename
    else:
        with pytest.raises(
            HypvisionError, match=f"HYPVISION_HOME.*hypvision zoo get {record.name}"
        ):
            resolve(record)


@pytest.fixture
def public_home(monkeypatch):
    """A cache in a folder that other users may enter, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="hypvision-test-") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("HYPVISION_HOME", f"{folder}/home")
        yield Path(folder) / "home"


def as_nobody(work):
    """Runs a function in a process of another user, for whom the permissions of folders count; its
    text or error."""
    context = multiprocessing.get_context("fork")
    here, pipe = context.Pipe()

    def run():
        os.setgid(65534)
        os.setuid(65534)
        try:
            pipe.send(str(work()))
        except BaseException as error:
            pipe.send(repr(error))

    process = context.Process(target=run)
    process.start()
    assert here.poll(60)
    said = here.recv()
    process.join()
    return said


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user"
)
def test_a_cache_that_users_share(record, server, micro, public_home, monkeypatch):
    """The lock that one user made must not shut out the next."""
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good")
    home = public_home
    for folder in (home, home / "weights", home / "locks"):
        folder.mkdir()
        folder.chmod(0o777)
    path = resolve(record)
    path.unlink()
    assert as_nobody(lambda: resolve(record)) == str(path)
    assert path.read_bytes() == micro[1].read_bytes()


def test_offline_uses_no_network_but_everything_else(record, server, micro, tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    with pytest.raises(HypvisionError, match="HYPVISION_OFFLINE"):
        fetch(record, server, monkeypatch, "good")
    assert server.log == []
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / record.filename).write_bytes(micro[1].read_bytes())
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good {tmp_path / 'mirror'}")
    assert resolve(record) == tmp_path / "mirror" / record.filename


def test_a_damaged_file_in_the_cache_is_replaced(record, server, micro, monkeypatch):
    path = fetch(record, server, monkeypatch, "good")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert resolve(record).read_bytes() == micro[1].read_bytes()
    assert len(server.log) == 2


def test_links_in_a_shared_cache_lead_nowhere(record, server, home, tmp_path, monkeypatch):
    """Who shares the cache could name any file of ours."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    part = cache_folder() / f"{record.filename}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to(victim)
    with pytest.raises(HypvisionError, match="is a link, which is never replaced"):
        fetch(record, server, monkeypatch, "good")
    assert victim.read_text() == "untouched"


def test_a_file_without_a_published_sum_keeps_that_of_its_first_download(
    server, record, monkeypatch, tmp_path, caplog
):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    address, data = f"{server.url}/good/{record.filename}", server.files[record.filename]
    digest = hashlib.sha256(data).hexdigest()
    path = fetch_first(address)
    assert path.read_bytes() == data and f"{address}#sha256={digest}" in caplog.text
    requests = len(server.log)
    assert fetch_first(address) == path and len(server.log) == requests  # from the cache
    path.unlink()
    server.files[record.filename] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(HypvisionError, match="sha256 begins with"):
        fetch_first(address)
    assert not path.exists()
    server.files[record.filename] = data
    assert fetch_first(address).read_bytes() == data
    with pytest.raises(
        HypvisionError, match="sha256 begins with"
    ):  # where a sum is given it counts, from the start
        fetch_source(f"{address}#sha256={'0' * 64}")


def test_files_of_one_name_from_two_addresses_are_not_taken_for_each_other(
    server, record, monkeypatch, tmp_path
):
    """HyCoCLIP's and Meta's files have the same names, and no sums are published."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    other, address = (
        f"{server.url}/good/{record.filename}",
        f"{server.url}/second/{record.filename}",
    )
    others, data = server.files[record.filename], b"of the second address"
    plain = fetch_source(f"{other}#sha256={hashlib.sha256(others).hexdigest()}")
    server.files[record.filename] = data
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    with pytest.raises(
        HypvisionError, match="copy the file to '(.+)' .there is a '.+': rename it"
    ) as raised:
        fetch_first(address)
    hinted = Path(re.search("copy the file to '([^']+)'", str(raised.value))[1])
    hinted.write_bytes(data)
    assert fetch_first(address).read_bytes() == data  # by hand, at the place that the message names
    hinted.unlink()
    monkeypatch.delenv("HYPVISION_OFFLINE")
    assert fetch_first(address) == first_path(address) == hinted
    assert hinted.read_bytes() == data and plain.read_bytes() == others
    hinted.replace(plain)  # where earlier versions kept it; the sum says that it is the right one
    assert first_path(address) == plain == fetch_first(address)
    assert first_path(other) != plain
