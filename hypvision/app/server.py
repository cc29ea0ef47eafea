"""Serves the page: by default only to this machine, and without a connection to the network."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypvision.io import explaining

from .answers import Answers
from .page import STYLE, build, gradio
from .sessions import Sessions
from .worker import SECONDS, Worker

UPLOAD = 20  # largest upload in megabytes
WAITING = 16  # number of requests that may wait while another one is computed
HERE = ("127.0.0.1", "localhost")


@contextmanager
def serving(
    answers: Answers,
    host: str = HERE[0],
    port: int | None = None,
    upload: int = UPLOAD,
    seconds: float = SECONDS,
) -> Iterator[str]:
    """Serve the page inside the block and yield its address; then remove uploads and results.

    Args:
        answers: the functions that the page calls.
        host: network address to listen at; the default can only be reached from this machine.
        port: port to listen at; None: the first free one from 7860.
        upload: largest file to upload, in megabytes.
        seconds: longest time for a request; one that takes longer is ended.
    """
    gr = gradio()
    # System fonts, so that the page loads none from the network.
    fonts = dict(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    theme = gr.themes.Default(**fonts)
    # Gradio requests its own server at start, which a proxy would not reach.
    local = ",".join(
        filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), *HERE, host))
    )
    with (
        tempfile.TemporaryDirectory(prefix="hypvision-app-") as scratch,
        patch.dict(
            os.environ, GRADIO_TEMP_DIR=str(Path(scratch).resolve()), NO_PROXY=local, no_proxy=local
        ),
        closing(Worker(answers, seconds)) as worker,
    ):
        page = build(worker, Path(scratch, "examples"))
        with explaining(
            lambda error: (
                f"The app cannot listen at {host}:{port or 7860}: the port is taken, or the "
                "address does not belong to this machine. Give another --port or --host."
            ),
            OSError,
        ):
            _, address, _ = page.queue(max_size=WAITING).launch(
                server_name=host, server_port=port, max_file_size=upload * 2**20, allowed_paths=[],
                share=False, prevent_thread_lock=True, quiet=True, show_error=False, theme=theme,
                css=STYLE, footer_links=[], run_history=False, enable_monitoring=False,
                ssr_mode=False, pwa=False, mcp_server=False,
                app_kwargs=dict(middleware=[(Sessions, (), {})]),
            )  # fmt: skip
        try:
            yield address
        finally:
            page.close(verbose=False)


def serve(answers: Answers, **options: Any) -> None:
    """Print the address of the page and serve it until the process is interrupted; ``options`` go
    to :func:`serving`."""
    with serving(answers, **options) as address, suppress(KeyboardInterrupt):
        print(f"The app is at {address} (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
