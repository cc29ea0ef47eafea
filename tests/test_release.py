"""What a release says of itself: one version everywhere, and a workflow whose commands exist."""

import re
from pathlib import Path

import yaml

from hypvision.version import __version__

ROOT = Path(__file__).parents[1]


def test_one_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == __version__
    assert len(changelog.splitlines()) <= 60


def test_the_workflow_runs_what_there_is():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"make lint", "make test"} <= set(commands)
    for command in commands:
        words = command.split()
        assert words[0] != "make" or words[1] in targets
        assert all((ROOT / word).is_dir() for word in words if word.startswith("tests/"))
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert jobs["linux"]["strategy"]["matrix"]["python"] == classifiers
