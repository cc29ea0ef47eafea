"""The files that the app accepts from a client, which must be uploads, and the sentences that it
shows for errors, without folders of this machine."""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from pathlib import Path

from hypvision.io import HypvisionError, ensure, explain_machine, one_line

NOT_YOURS = (
    "This file was not uploaded here, or was removed, as happens after an hour. Upload it again."
)
UNKNOWN = "The app made a mistake of its own, which its terminal shows. Try another input."
_FOLDERS = re.compile(
    r"file://[^\s'\"]*/|(?<=')/(?:[^'\n]*/)?(?=[^'/\n])|(?<![\w/.'])~?/(?:[^\s'\"/]+/)*(?=[\w.])"
)


def uploads() -> Path:
    """Return Gradio's folder of uploads and results, resolved."""
    return Path(
        os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio"
    ).resolve()


def uploaded(path: str | None) -> str | None:
    """Return the resolved path of a file below :func:`uploads`; None for no path.

    Every path that a client sends is checked here. Gradio itself only checks paths in payloads that
    carry its mark (``meta``), which a client may leave out.

    Raises:
        HypvisionError: the path leads elsewhere or to no file; the message does not say which.
    """
    if not path:
        return None
    try:
        found = Path(path).resolve(strict=True)
        known = found.is_relative_to(uploads()) and found.is_file()
    except (OSError, ValueError, RuntimeError, TypeError):
        known = False
    ensure(known, NOT_YOURS)
    return str(found)


def without_folders(message: str) -> str:
    """Return a message without the folders of this machine; names of files stay.

    >>> without_folders("The image '/home/me/my photos/cat.png' is missing in /mnt/data/a.tar.")
    "The image 'cat.png' is missing in a.tar."
    """
    return _FOLDERS.sub("", message)


def told(error: Exception) -> str:
    """Return the sentence that a client sees for an error. An unexpected error gets a general
    sentence, and its traceback goes to the terminal."""
    message = one_line(error, 2000) if isinstance(error, HypvisionError) else explain_machine(error)
    if message is None:
        traceback.print_exception(error)
        return UNKNOWN
    return without_folders(message)
