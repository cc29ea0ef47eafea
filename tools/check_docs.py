#!/usr/bin/env python
"""Check the documentation: links, and the types of every Python example as a type checker sees a
user's file.

``python tools/check_docs.py`` follows the relative links of each page of README, docs and configs,
anchors of headings included; of external links it checks the form alone, so that it needs no
network. Then it writes the blocks ``python`` of each page into one file, every line where the page
has it, and runs mypy over all files.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/*.md", "docs/*/*.md", "configs/*/README.md", "model_zoo/README.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^(```+)([^\n]*)\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+?)[ #]*$", re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\)")
# of MyST: options of cards and figures, and the pages of a toctree
TARGET = re.compile(
    r"^:(?:img-top|link): (\S+)$|^```+\{(?:figure|image|include)\} (\S+)$", re.MULTILINE
)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def module(page: str) -> str:
    """The Python of a page, every line where the page has it."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        first = page[: block.start(1)].count("\n")
        text = block[1].splitlines()
        if any(
            line.startswith(">>> ") for line in text
        ):  # a session: its prompts go, and so does what it prints
            code = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in text]
            wrong = [
                number for number, line in enumerate(text[1:]) if line.startswith("Traceback")
            ]  # shows an error
            text = ["" if number in wrong else line for number, line in enumerate(code)]
        lines[first : first + len(text)] = text
    return "\n".join(lines).rstrip() + "\n"


def pages() -> list[Path]:
    """All pages that people read."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def without_code(page: str) -> str:
    """A page with its blocks of code made blank; what MyST reads as directives stays."""
    return FENCE.sub(
        lambda block: block[0] if block[2].startswith("{") else "\n" * block[0].count("\n"), page
    )


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for heading in HEADING.findall(without_code(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        number = 0
        while (slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if not number else f"{slug}-{number}")
    return found


def targets(page: str) -> list[tuple[int, str]]:
    """What a page links to, with the line of each."""
    blank = re.sub(r"(?<!`)`[^`\n]+`(?![`\]])", lambda code: "x" * len(code[0]), without_code(page))
    found = [(match.start(), match[1]) for match in LINK.finditer(blank)]
    found += [(match.start(), match[1] or match[2]) for match in TARGET.finditer(page)]
    for toctree in TOCTREE.finditer(page):
        entries = [
            line.strip()
            for line in toctree[1].splitlines()
            if line.strip() and not line.startswith(":")
        ]
        found += [(toctree.start(), re.sub(r".*<(.+)>$", r"\1", entry)) for entry in entries]
    return [(page.count("\n", 0, start) + 1, target) for start, target in found]


def broken_links(root: Path, paths: list[Path]) -> list[str]:
    """A sentence for each link that leads nowhere, with the place of the link."""
    errors = []
    for path in paths:
        for line, target in targets(path.read_text(encoding="utf-8")):
            place = f"{path.relative_to(root)}:{line}: "
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                if not re.match(
                    r"(https?://[\w-]+(\.[\w-]+)+(:\d+)?(/\S*)?$|mailto:\S+@\S+$)", target
                ):
                    errors.append(f"{place}'{target}' is no address.")
                continue
            name, _, anchor = target.partition("#")
            there = path if not name else (path.parent / name)
            choices = [
                there,
                there.with_name(f"{there.name}.md"),
            ]  # cards and toctrees leave the suffix out
            file = next((choice for choice in choices if choice.exists()), None)
            if file is None and "*" in name and list(path.parent.glob(f"{name}.md")):
                continue
            if file is None:
                errors.append(f"{place}'{target}' does not exist.")
            elif root not in file.resolve().parents:
                errors.append(f"{place}'{target}' is outside of the repository.")
            elif (
                anchor
                and file.suffix == ".md"
                and anchor not in anchors(file.read_text(encoding="utf-8"))
            ):
                errors.append(f"{place}'{file.name}' has no heading '#{anchor}'.")
    return errors


def main() -> int:
    """0 if all links lead somewhere and mypy finds nothing."""
    lost = broken_links(ROOT, pages())
    print("\n".join(lost) or f"The links of {len(pages())} pages lead somewhere.")
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for page in pages():
            text = page.read_text(encoding="utf-8")
            if BLOCK.search(text):
                name = (
                    page.relative_to(ROOT)
                    .with_suffix("")
                    .as_posix()
                    .replace("/", "_")
                    .replace("-", "_")
                    .lower()
                )
                (Path(folder) / f"{name}.py").write_text(module(text), encoding="utf-8")
                names[f"{name}.py"] = page.relative_to(ROOT).as_posix()
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--allow-redefinition",
        ]
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
        line.replace(
            line.partition(":")[0], names.get(line.partition(":")[0], line.partition(":")[0]), 1
        )
        for line in (found.stdout + found.stderr).splitlines()
        if "hypvision/" not in line.partition(":")[0]  # mypy over the package says those
    )
    print(errors or f"The Python examples of {len(names)} pages have no type errors.")
    return 1 if errors or lost else 0


if __name__ == "__main__":
    sys.exit(main())
