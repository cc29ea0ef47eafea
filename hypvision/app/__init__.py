"""A page in the browser that shows the models at work, without commands: ``hypvision app``. It
needs Gradio (extra ``app``).

:mod:`~hypvision.app.answers` computes the answer of each tab, :mod:`~hypvision.app.page` lays out
the tabs, and :mod:`~hypvision.app.server` serves them.
"""

from hypvision.app.answers import Answers
from hypvision.app.page import build
from hypvision.app.server import serve

__all__ = ["Answers", "build", "serve"]
