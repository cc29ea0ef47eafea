"""mmengine's first import when another process is just writing yapf's cache."""

import importlib
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mmengine")
from helpers.processes import forked

import hypvision.engine.mmengine_import as first_import


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder as yapf leaves it, and a function that imports a module as a process with this
    folder does."""
    folder = tmp_path_factory.mktemp("cache")

    def imports(name, sleep=None):
        def work():
            os.environ.update(
                XDG_CACHE_HOME=str(folder), HOME=str(folder), LOCALAPPDATA=str(folder)
            )
            for loaded in list(sys.modules):
                if loaded.startswith(
                    ("yapf", "mmengine", "hypvision.openmmlab", "hypvision.engine")
                ):
                    del sys.modules[loaded]
            if sleep is not None:
                first_import.time.sleep = sleep
            first_import.require_mmengine() if name == "mmengine" else importlib.import_module(name)

        return forked(work)

    assert imports("yapf").returncode == 0
    files = sorted(folder.rglob("*.pickle"))
    assert files, "yapf keeps no grammar there any more: first_import is not needed"
    return imports, files


def test_waits_for_a_file_that_is_being_written(cache):
    imports, files = cache
    whole = {file: file.read_bytes() for file in files}
    for file in files:
        file.write_bytes(b"")
    assert "EOFError" in imports("yapf").output  # which mmengine imports

    def sleep(seconds):
        """Meanwhile the files are completed."""
        print("met one after", seconds)
        for file, content in whole.items():
            part = Path(f"{file}.part")
            part.write_bytes(content)
            part.replace(file)

    done = imports("mmengine", sleep)
    assert done.returncode == 0 and done.output.count("met one after 0.1") == 1, done.output


def test_a_file_that_stays_torn_is_named(cache):
    imports, files = cache
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:100])
    done = imports("hypvision.openmmlab", lambda seconds: print(f"waits {seconds}"))
    files[0].write_bytes(whole)
    assert "HypvisionError" in done.output and "rm -r ~/.cache/YAPF" in done.output
    assert done.output.count("waits") == 5
