"""The oldest and the newest transformers that the extra ``lm`` allows run the tests of HELM as
their model."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import requires
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
UNREACHABLE = "(?i)connection|name resolution|timed out|max retries|network|proxy"


def allowed() -> str:
    """What the extra says of versions, such as ``>=5.0``."""
    found = {
        match[1]
        for line in requires("hypvision")
        if (match := re.match("transformers *([^;]+?) *;.*lm", line))
    }
    assert len(found) == 1, found
    return found.pop()


def environment(folder: Path, wanted: str) -> Path:
    """The interpreter of an environment with all that this one has, but the wanted version; torch
    is not installed again."""
    venv.create(folder, with_pip=False)
    interpreter = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run(
        [interpreter, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(own, "ours.pth").write_text(sysconfig.get_path("purelib"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        interpreter,
        "install",
        "--quiet",
        "--upgrade",
        wanted,
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and re.search(UNREACHABLE, done.stderr):
        pytest.skip(f"The package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return interpreter


@pytest.mark.slow
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_models_with_the_oldest_and_newest_allowed_versions(end, tmp_path):
    pytest.importorskip("transformers")
    oldest = re.search(r">= *([\d.]+)", allowed())[1]
    wanted = f"transformers=={oldest}" if end == "oldest" else f"transformers{allowed()}"
    interpreter = environment(tmp_path / "environment", wanted)
    paths = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    ask = "import transformers; print(transformers.__version__)"
    version = subprocess.run(
        [interpreter, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert f"{version}.".startswith(f"{oldest}.") is (end == "oldest"), version
    files = ["tests/helm/test_huggingface.py", "tests/tasks/test_language.py"]
    run = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *files]
    environ = os.environ | dict(PYTHONPATH=paths, PYTEST_ADDOPTS="")
    done = subprocess.run(
        run, cwd=TESTS.parent, env=environ, capture_output=True, text=True, check=False
    )
    assert not done.returncode, (
        f"transformers {version}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    )
    assert " passed" in done.stdout
