"""mmengine's first import when another process is just writing yapf's cache."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mmengine")

IMPORT = "import hypvision.engine.mmengine_import as f; f.require_mmengine(); import mmengine; print(mmengine.__name__)"


def run(folder, code=IMPORT, **kwargs):
    environment = dict(os.environ, XDG_CACHE_HOME=str(folder), HOME=str(folder), LOCALAPPDATA=str(folder))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder as yapf leaves it."""
    folder = tmp_path_factory.mktemp("cache")
    assert run(folder, "import yapf").wait() == 0
    files = sorted(folder.rglob("*.pickle"))
    assert files, "yapf keeps no grammar there any more: first_import is not needed"
    return folder, files


def test_waits_for_a_file_that_is_being_written(cache, tmp_path):
    folder, files = cache
    whole = {file: file.read_bytes() for file in files}
    for file in files:
        file.write_bytes(b"")
    # yapf, which mmengine imports, stops at once
    process = run(folder, "import yapf")
    assert "EOFError" in process.communicate()[1]
    # With the wait: the files are completed once the process has met a torn one.
    code = (
        "import time, pathlib\n"
        "def sleep(seconds, sleep=time.sleep):\n"
        f"    pathlib.Path({str(tmp_path / 'met')!r}).touch()\n"
        "    sleep(seconds)\n"
        "time.sleep = sleep\n" + IMPORT.replace("; ", "\n")
    )
    process = run(folder, code)
    while not (tmp_path / "met").exists() and process.poll() is None:
        time.sleep(0.01)
    for file, content in whole.items():
        part = Path(f"{file}.part")
        part.write_bytes(content)
        part.replace(file)
    out, error = process.communicate()
    assert (tmp_path / "met").exists()
    assert process.returncode == 0 and out.strip() == "mmengine", error


def test_a_file_that_stays_torn_is_named(cache):
    folder, files = cache
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:100])
    error = run(folder, "import hypvision.openmmlab").communicate()[1]
    files[0].write_bytes(whole)
    assert "HypvisionError" in error and "rm -r ~/.cache/YAPF" in error
