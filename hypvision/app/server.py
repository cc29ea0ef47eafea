"""Serving the page: to this machine alone unless told otherwise, without a network."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypvision.app.answers import Answers
from hypvision.app.page import build, gradio
from hypvision.errors import HypvisionError

UPLOAD = 20  # megabytes of a file


@contextmanager
def serving(answers: Answers, host: str = "127.0.0.1", port: int | None = None, upload: int = UPLOAD) -> Iterator[str]:
    """The address of the page, which is served inside the block; uploads and results are removed after it.

    Args:
        answers: what the page calls.
        host: the network address to listen at; the default is reached from this machine alone.
        port: None: the first free one from 7860.
        upload: largest file, in megabytes.

    Raises:
        HypvisionError: Gradio is not installed, or the address is not free.
    """
    gr = gradio()
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(prefix="hypvision-app-") as scratch:
        os.environ["GRADIO_TEMP_DIR"] = scratch
        page = build(answers, scratch)
        try:
            theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
            _, address, _ = page.queue(max_size=16).launch(
                server_name=host, server_port=port, max_file_size=upload * 2**20, share=False, inbrowser=False,
                prevent_thread_lock=True, quiet=True, footer_links=[], run_history=False, enable_monitoring=False,
                ssr_mode=False, pwa=False, mcp_server=False, allowed_paths=[], show_error=False, theme=theme,
            )  # fmt: skip
        except OSError as error:
            raise HypvisionError(
                f"The app cannot listen at {host}:{port or 7860}: {error}. Give another --port."
            ) from error
        try:
            yield address
        finally:
            page.close(verbose=False)
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]
            else:
                os.environ["GRADIO_TEMP_DIR"] = before


def serve(answers: Answers, host: str = "127.0.0.1", port: int | None = None, upload: int = UPLOAD) -> None:
    """Serve the page until the process is interrupted, and print its address; arguments as of :func:`serving`."""
    import threading

    with serving(answers, host, port, upload) as address:
        print(f"The app is at {address} (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
