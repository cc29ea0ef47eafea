"""``tools/compare_versions.py``: the lock is read for this Python, and only what differs is
printed."""

import sys

import compare_versions
from packaging.utils import canonicalize_name

LOCK = """\
# a comment
--only-binary :none:
numpy==1.0 ; python_full_version < '3' and sys_platform == 'linux' \\
    --hash=sha256:00 \\
    --hash=sha256:11
numpy==2.0 ; python_full_version >= '3' \\
    --hash=sha256:22
mpmath==1.4.1 \\
    --hash=sha256:33
timm==1.0 \\
    --hash=sha256:44
"""


def test_only_what_differs_is_printed(tmp_path, monkeypatch, capsys):
    lock = tmp_path / "dev.txt"
    lock.write_text(LOCK)
    monkeypatch.setattr(compare_versions, "LOCK", lock)
    here = {"numpy": "2.1", "timm": "1.0", "new": "3", "pip": "4", "hypvision": "5"}
    monkeypatch.setattr(compare_versions, "installed", lambda: here)
    compare_versions.main()
    python, _, *rows, others = capsys.readouterr().out.splitlines()
    assert sys.version.split()[0] in python
    assert [row.split() for row in rows] == [
        ["mpmath", "1.4.1", "-"],
        ["new", "-", "3"],
        ["numpy", "2.0", "2.1"],
    ]
    assert " 1 " in others


def test_names_are_written_as_in_the_lock():
    assert {"torch", "typing-extensions", "huggingface-hub"} <= compare_versions.installed().keys()
    assert all(name == canonicalize_name(name) for name in compare_versions.pinned())
