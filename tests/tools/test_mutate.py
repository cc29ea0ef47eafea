"""``tools/mutate.py`` on a function whose boundary no test looks at."""

import json
import subprocess
import sys
from pathlib import Path

import mutate
import pytest

CODE = '''"""Module with a number: 3."""
def size(x: int = 2) -> str:
    """Below 10 it is small."""
    if x < 0:
        raise ValueError(f"{x + 1} is negative")
    return "small" if x < 10 else "large"

def unused(x):
    return x + x
'''
TESTS = """import pytest
from room.sizes import size

def test_size():
    assert size(1) == size() == "small" and size(11) == "large"
    with pytest.raises(ValueError):
        size(-1)
"""


def test_what_people_read_is_no_mutant(tmp_path):
    (tmp_path / "sizes.py").write_text(CODE)
    names = [name.partition(":")[2] for name, *_ in mutate.mutants(tmp_path)]
    assert (
        "4:7 x < 0 -> x <= 0" in names and "9:11 x + x -> x - x" in names and "2:18 2 -> 3" in names
    )
    assert not any(name.startswith(("1:", "3:", "5:")) for name in names)


@pytest.mark.slow
def test_survivors_are_reported_and_a_second_run_resumes(tmp_path):
    room = tmp_path / "room"
    room.mkdir()
    (room / "sizes.py").write_text(CODE)
    (tmp_path / "test_sizes.py").write_text(TESTS)
    command = [
        sys.executable,
        Path(mutate.__file__).resolve(),
        "room",
        "test_sizes.py",
        "--out",
        "out.jsonl",
    ]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = {
        row["mutant"]: row["found"]
        for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    }
    assert (
        found["room/sizes.py:4:7 x < 0 -> x <= 0"]
        == found["room/sizes.py:6:22 x < 10 -> x <= 10"]
        == "survived"
    )
    assert found["room/sizes.py:9:11 x + x -> x - x"] == "never run"
    assert (
        found["room/sizes.py:4:4 x < 0 -> True"]
        == found["room/sizes.py:4:4 x < 0 -> False"]
        == "killed"
    )
    assert "survived room/sizes.py:4:7 x < 0 -> x <= 0\n" in first
    assert "'killed'" in first.splitlines()[-1]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert again.splitlines()[-1] == first.splitlines()[-1]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(found)
    assert (room / "sizes.py").read_text() == CODE
