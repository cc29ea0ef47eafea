"""Start data loaders' workers as new processes with the extensions of libraries (on Windows and
macOS, and with ``mp_start_method="spawn"``).

A forked worker has everything that the libraries' extensions have changed in this process
(operators of mmcv, its image reader, registries). A new worker process imports only the modules of
the objects that it receives; for mmdet's data sets that is mmdet alone. So the worker must first
import the extensions that are loaded in this process.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from hypvision.io.plugins import PLUGINS


def _import_and_make(modules: list[str], kind: Any) -> Any:
    """Import the modules, then return an object of the class ``kind`` without its state, which is
    unpickled next."""
    for module in modules:
        importlib.import_module(module)
    return kind.__new__(kind)


def worker_context() -> BaseContext | None:
    """Return the multiprocessing context whose new processes import the loaded extensions; None if
    processes are forked."""
    default: Any = multiprocessing.get_context(multiprocessing.get_start_method())
    kind: Any = default.Process
    if default.get_start_method() == "fork":
        return None

    class Process(kind):
        def __reduce__(self) -> Any:
            loaded = {
                module
                for role, module in PLUGINS.items()
                if role.startswith("scope ") and module in sys.modules
            }
            return _import_and_make, (sorted(loaded), kind), vars(self)

    # A copy is changed, since all other code of this process uses multiprocessing's own context.
    context: Any = type(default)()
    context.Process = Process
    return context


def with_extensions(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap mmengine's function that builds data loaders, so that their workers start by
    :func:`worker_context`."""

    def build_dataloader(*args: Any, **kwargs: Any) -> Any:
        loader = build(*args, **kwargs)
        if loader.num_workers and loader.multiprocessing_context is None:
            loader.multiprocessing_context = worker_context()
        return loader

    return build_dataloader
