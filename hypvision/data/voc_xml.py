"""Reading of Pascal VOC's annotations: XML files in any encoding that Python knows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypvision.io import HypvisionError, StrPath, explaining
from hypvision.io.files import check_regular

_FIRST = re.compile(rb"""^\s*<\?xml[^>]*?encoding=["']([\w.:-]+)["'][^>]*\?>""")


def read_xml(path: StrPath) -> ElementTree.Element:
    """Return the root element of an XML file. Python's XML parser knows no encoding with several
    bytes a letter but UTF-8 and UTF-16, so files in encodings such as GBK or Shift JIS are decoded
    before they are parsed.

    Raises:
        OSError: the file does not exist.
        HypvisionError: the file is not valid XML, or not in the encoding that its first line names.
    """
    raw = check_regular(path).read_bytes()
    try:
        return ElementTree.fromstring(raw)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        problem: Exception = error
    first = _FIRST.match(raw)
    encoding = first[1].decode() if first else "UTF-8"
    with explaining(
        lambda error: (
            f"The annotation '{path}' is not text in {encoding} ({error}), the encoding that its "
            "first line names (UTF-8 if none). Save it as UTF-8, or name its encoding there: "
            '<?xml version="1.0" encoding="GBK"?>.'
        ),
        UnicodeDecodeError,
        LookupError,
    ):
        text = raw[first.end() if first else 0 :].decode(encoding)
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        raise HypvisionError(
            f"The annotation '{path}' is damaged: it is not valid XML ({problem}). Replace it by "
            "an intact copy."
        ) from problem
