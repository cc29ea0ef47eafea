"""A command that is told to end (SIGTERM, SIGHUP, Ctrl-C) leaves no temporary file behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import pytest
from helpers.bad_server import Server
from helpers.cases import each
from helpers.engine import ROOT

from hypvision.checkpoints.download import download_text
from hypvision.cli import main
from hypvision.io.errors import guard
from hypvision.io.files import replacing, replacing_folder

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
BYTES = bytes(2**20)  # which the server sends in more than five seconds


@pytest.fixture(autouse=True)
def hang_ups_count():
    """Under nohup the signal is ignored, and our commands and their children leave it so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def server():
    server = Server({"a.png": BYTES, "text": BYTES})
    yield server
    server.close()


def ended(work, place, number):
    """Run ``work`` in another process, whose temporary files are in ``place``, until the first one
    is there; send it a signal then, and give its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # of a job in the background
            tempfile.tempdir = str(place)
            os.chdir(place)
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while not any(place.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # Python itself may not know yet what it has made
    found = [path.name for path in place.iterdir()]
    os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found


def writing(manager):
    """A command that is at work inside of a block."""

    def work():
        with manager as temporary:
            if not temporary.is_dir():
                temporary.write_text("half")
            time.sleep(60)

    return lambda: guard(work)


def members(server):
    """Everything that makes temporary files, in the middle of its work."""
    address = f"{server.url}/slow"
    yield "predict", lambda: main(["predict", f"{address}/a.png", "--model", "test_vit"])
    yield "a text", lambda: guard(download_text, f"{address}/text")
    yield "a file", writing(replacing("file.txt"))
    yield "a folder", writing(replacing_folder("folder"))


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_nothing_is_left(tmp_path, server, number):
    for name, work in members(server):
        place = tmp_path / name
        place.mkdir()
        status, found = ended(work, place, number)
        assert found and status == 130, (name, found, status)
        assert list(place.iterdir()) == [], name


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert guard(signal.raise_signal, signal.SIGHUP) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@each("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_says_so_and_gives_the_signal_back(number, capsys):
    before = signal.getsignal(number)
    assert guard(signal.raise_signal, number) == 130
    assert f"Ended by {number.name}" in capsys.readouterr().err
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_the_command_from_a_shell(tmp_path, server):
    line = [sys.executable, "-m", "hypvision.cli", "predict", f"{server.url}/slow/a.png"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*line, "--model", "test_vit"], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("hypvision-*/*/*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Ended by SIGTERM" in said
    assert not list(tmp_path.glob("hypvision-*"))
