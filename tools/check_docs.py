#!/usr/bin/env python
"""Check the types of every Python example of the documentation, as a type checker sees a user's file.

``python tools/check_docs.py`` writes the blocks ``python`` of each page of README, docs and configs into one file,
every line where the page has it, and runs mypy over all files.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/*.md", "docs/studies/*.md", "configs/*/README.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def module(page: str) -> str:
    """The Python of a page, every line where the page has it."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        first = page[: block.start(1)].count("\n")
        text = block[1].splitlines()
        if any(line.startswith(">>> ") for line in text):  # a session: its prompts go, and so does what it prints
            code = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in text]
            wrong = [number for number, line in enumerate(text[1:]) if line.startswith("Traceback")]  # shows an error
            text = ["" if number in wrong else line for number, line in enumerate(code)]
        lines[first : first + len(text)] = text
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """The exit status of mypy."""
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
            text = page.read_text(encoding="utf-8")
            if BLOCK.search(text):
                name = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "_").replace("-", "_").lower()
                (Path(folder) / f"{name}.py").write_text(module(text), encoding="utf-8")
                names[f"{name}.py"] = page.relative_to(ROOT).as_posix()
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--allow-redefinition"]
        command += ["--disable-error-code", "var-annotated"]  # `_base_ = []` of configs
        found = subprocess.run(
            [*command, "--no-error-summary", *names],
            cwd=folder,
            env={**os.environ, "MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")},
            text=True,
            capture_output=True,
            check=False,
        )
    errors = "\n".join(
        line.replace(line.partition(":")[0], names.get(line.partition(":")[0], line.partition(":")[0]), 1)
        for line in (found.stdout + found.stderr).splitlines()
        if "hypvision/" not in line.partition(":")[0]  # mypy over the package says those
    )
    print(errors or f"The Python examples of {len(names)} pages have no type errors.")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
