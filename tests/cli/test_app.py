"""``hypvision app``: what it says where Gradio is missing, and that it ends well."""

import os
import signal
import subprocess
import sys

import pytest

from hypvision.cli import main


def test_without_gradio_a_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app"]) == 2
    said = capsys.readouterr().err
    assert "needs the package 'gradio'" in said and "'.[app]'" in said


@pytest.mark.slow
def test_it_serves_until_it_is_ended_and_leaves_nothing(tmp_path):
    pytest.importorskip("gradio")
    line = [sys.executable, "-m", "hypvision.cli", "app", "--device", "cpu"]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        said = process.stdout.readline()
        assert said.startswith("The app is at http://127.0.0.1:") and list(tmp_path.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("hypvision-app")]
