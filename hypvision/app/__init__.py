"""A page in the browser that shows the models at work, without commands: ``hypvision app``. It
needs Gradio (extra ``app``).

:mod:`~hypvision.app.answers` computes the answer of each tab, :mod:`~hypvision.app.page` lays out
the tabs, and :mod:`~hypvision.app.server` serves them.
"""

from .answers import Answers
from .page import build
from .server import serve

__all__ = ["Answers", "build", "serve"]
