"""A report as files, and as one HTML page that contains all of them and refers to no other file or
address."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from hypvision.io import StrPath, Values
from hypvision.io.files import csv_text, write_text

from .sheet import save_image

_ROWS = 100  # largest number of table rows on the page
# The Content-Security-Policy forbids a browser to load anything, whatever a class name contains.
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }}
h1 {{ font-size: 1.5em }} h2 {{ font-size: 1.2em; margin-top: 2em; border-top: 1px solid #ddd; padding-top: 1em }}
img {{ max-width: 100% }} div.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 14px }}
th, td {{ padding: 2px 12px 2px 0; text-align: left; border-bottom: 1px solid #eee }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums }}
</style></head><body>
"""  # noqa: E501


@dataclass(frozen=True)
class Part:
    """A section of a report, with its text, picture and table."""

    title: str  # heading of the section
    name: str = ""  # name of its files without their ending; "": it has no files
    text: str = ""  # paragraph below the heading
    picture: Image.Image | None = None  # written as NAME.png, or NAME.jpg if it is a ``photo``
    # Rows of values, of which the first has the names of the columns; written as NAME.csv.
    table: Sequence[Sequence[Any]] = ()
    photo: bool = False  # whether the picture contains photos
    shown: bool = True  # whether the page shows the table, too; the file always has it


def write_report(folder: StrPath, title: str, facts: Values, parts: Sequence[Part]) -> Path:
    """Write the pictures and tables of all parts into a folder, and ``report.html``, which shows a
    table of ``facts`` and then the parts in their order. Returns the path of ``report.html``.
    """
    lines = [_HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>"]
    lines.append(_html_table([("", ""), *facts.items()], head=False))
    for part in parts:
        lines.append(f"<h2>{escape(part.title)}</h2>")
        lines += [f"<p>{escape(part.text)}</p>"] if part.text else []
        if part.picture is not None:
            kind = ("jpg", "jpeg") if part.photo else ("png", "png")
            content = save_image(part.picture, Path(folder, f"{part.name}.{kind[0]}")).read_bytes()
            source = f"data:image/{kind[1]};base64,{base64.b64encode(content).decode('ascii')}"
            lines.append(f'<img alt="{escape(part.title)}" src="{source}">')
        if part.table:
            lines += _write_table(part, folder)
    path = Path(folder, "report.html")
    write_text(path, "\n".join([*lines, "</body></html>\n"]))
    return path


def _write_table(part: Part, folder: StrPath) -> list[str]:
    """Write the table of a part, if the part has a name, and return the lines of HTML that show
    it."""
    lines = [_html_table(part.table)] if part.shown else []
    if part.name:
        write_text(Path(folder, f"{part.name}.csv"), csv_text(part.table))
        if not part.shown or len(part.table) > _ROWS + 1:
            which = "All" if part.shown else "The"
            lines.append(f"<p>{which} numbers are in {escape(part.name)}.csv.</p>")
    return lines


def _html_table(table: Sequence[Sequence[Any]], head: bool = True) -> str:
    rows = []
    numbers = [
        all(isinstance(value, (int, float)) for value in column) for column in zip(*table[1:])
    ]
    for place, row in enumerate(table[: _ROWS + 1]):
        if place == 0 and not head:
            continue
        kind = "th" if place == 0 else "td"
        cells = []
        for i, value in enumerate(row):
            is_number = i < len(numbers) and numbers[i]
            attribute = " class=number" if is_number else ""
            cells.append(f"<{kind}{attribute}>{escape(_shown(value))}</{kind}>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
