"""How commands say how far they are."""

import sys

from hypvision.inference.progress import progress, stages


def test_steps_have_a_line_each_where_there_is_no_terminal(capsys):
    with stages() as tell:
        tell("One")
        tell("Two")
    said = capsys.readouterr()
    assert said.err == "One ...\nTwo ...\n" and said.out == ""


def test_steps_have_one_live_line_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with stages() as tell:
        tell("One")
        tell("Two")
    said = capsys.readouterr().err
    assert "\rOne ... 00:00" in said and "\rTwo ... 00:00" in said and "\n" not in said


def test_items_have_no_live_bar_in_a_file(monkeypatch, capsys):
    now = iter([0.0, 10.0, 35.0, 36.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    assert list(progress("abc", 3, "image")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "images 2/3, 0.0571 image/s, 18 s left\n"


def test_items_of_an_unknown_number_are_counted(monkeypatch, capsys):
    now = iter([0.0, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    assert list(progress("a", 0, "image")) == ["a"]
    assert capsys.readouterr().err == "images 1, 0.025 image/s\n"
