"""The annotations of Pascal VOC: XML in any encoding that Python knows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypvision.io.errors import HypvisionError
from hypvision.io.files import check_regular
from hypvision.io.types import StrPath

_FIRST = re.compile(rb"""^\s*<\?xml[^>]*?encoding=["']([\w.:-]+)["'][^>]*\?>""")


def read_xml(path: StrPath) -> ElementTree.Element:
    """The root of an XML file. Python's own reader takes no encoding of several bytes a letter but
    UTF-8 and UTF-16, so files in GBK or Shift JIS are decoded before.

    Raises:
        OSError: there is no file.
        HypvisionError: it is not valid, or in another encoding than it says.
    """
    raw = check_regular(path).read_bytes()
    try:
        return ElementTree.fromstring(raw)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        problem: Exception = error
    first = _FIRST.match(raw)
    encoding = first[1].decode() if first else "UTF-8"
    try:
        text = raw[first.end() if first else 0 :].decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise HypvisionError(
            f"The annotation '{path}' is not text in {encoding} ({error}), as its first line says "
            'or leaves unsaid. Save it as UTF-8, or name its encoding there: <?xml version="1.0" '
            'encoding="GBK"?>.'
        ) from error
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        raise HypvisionError(
            f"The annotation '{path}' is damaged: it is not valid XML ({problem})."
        ) from problem
