"""The study of superposition: its figures from sweeps that are taken up again, what it says of the
paper's claims, and the language models beside them."""

import csv
import re

import pytest
import superposition_study as study
import torch
from helpers.cases import each
from safetensors.torch import save_file

from hypvision.cli import main as hypvision

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


def call(capsys, *words):
    status = study.main([str(word) for word in words])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return status, said.out, said.err


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def drawn_once(monkeypatch):
    """Figures are drawn as small PNG without a layout, a quarter of the work; test_quick draws one
    as it is."""
    draw = Figure.savefig
    monkeypatch.setattr(Figure, "tight_layout", lambda self: None)

    def small(self, path, **how):
        draw(self, path, **{**how, "dpi": 20}) if path.suffix == ".png" else path.touch()

    monkeypatch.setattr(Figure, "savefig", small)


SHORT = ("--steps", 8, "--batch", 32, "--device", "cpu")


@pytest.mark.drawn
def test_quick(tmp_path, capsys):
    status, out, _ = call(capsys, "quick", "--out", tmp_path, *SHORT)
    assert status == 0 and "10 of 10 points" in out and "shortened: n 200" in out
    assert len(re.findall("^(confirmed|refuted|open): growth", out, re.MULTILINE)) == 1
    assert "\nopen: the loss falls faster" in out  # of models that have learned nothing yet
    assert len(rows(tmp_path / "quick.csv")) == 10
    assert len(rows(tmp_path / "quick_exponents.csv")) == 2
    line = rows(tmp_path / "quick_exponents.csv")[0]
    assert float(line["error_fit"]) > 0 and line["error_seeds"] == "" and line["points"] == "5"
    assert (tmp_path / "quick.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "quick.pdf").read_bytes()[:4] == b"%PDF"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()}
    assert len(before) == 20
    assert call(capsys, "quick", "--out", tmp_path, *SHORT)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()} == before

    status, _, err = call(capsys, "quick", "--out", tmp_path, "--steps", 9, "--batch", 32)
    assert status == 2 and "results of another grid: steps 8 (now 9)" in err


def test_results_whose_weights_are_gone_are_drawn_without_them(tmp_path, capsys):
    words = (
        "fig6",
        "--tiny",
        "--alphas",
        1,
        "--decays",
        -1,
        "--widths",
        4,
        6,
        8,
        *SHORT,
        "--out",
        tmp_path,
    )
    assert call(capsys, *words)[0] == 0
    for path in tmp_path.glob("points/*.pt"):
        path.unlink()
    (tmp_path / "fig6.png").unlink()
    status, out, err = call(capsys, *words)
    assert status == 0 and (tmp_path / "fig6.png").exists() and "1/m" in out
    assert "fig6: a panel is empty. There are no weights of power-a1.0000" in err
    assert "-m8.json" in err


def test_several_figures_are_checked_before_the_first_is_trained(tmp_path, capsys):
    status, out, err = call(capsys, "quick", "fig44", "--out", tmp_path, *SHORT)
    assert status == 2
    assert "no figure 'fig44'" in err
    assert not list(tmp_path.glob("points/*"))
    assert not out
    status, _, err = call(capsys, "quick", "fig4", "--out", tmp_path, "--device", "cpu")
    assert status == 2
    assert "quick and fig4 are of different grids" in err
    assert not list(tmp_path.glob("points/*"))


@pytest.mark.drawn
def test_figure_8(tmp_path, capsys, drawn_once):
    lines = ["model,family,dataset,m,loss"]
    for m in (64, 128, 256, 512):
        for family, data, offset in (("a", "x", 2.0), ("a", "y", 2.5), ("b", "x", 1.5)):
            lines.append(f",{family},{data},{m},{100 / m**0.9 + offset}")
    (tmp_path / "losses.csv").write_text("\n".join(lines))
    status, out, err = call(capsys, "fig8", "--losses", tmp_path / "losses.csv", "--out", tmp_path)
    assert (
        status == 0 and "The overlaps are the paper's" in out and (tmp_path / "fig8.pdf").exists()
    ), err
    assert "\nconfirmed: the losses of language models" in out
    assert "paper: 0.91 ± 0.04; here: 0.90 ± 0.00" in out
    save_file({"lm_head.weight": torch.randn(50, 8)}, tmp_path / "head.safetensors")
    heads = ["scaling", "heads", str(tmp_path / "head.safetensors"), "--out", str(tmp_path)]
    assert hypvision(heads) == 0
    capsys.readouterr()
    status, out, err = call(capsys, "fig8", "--out", tmp_path)
    assert status == 0 and out.count("\nconfirmed: ") == out.count("\nopen: ") == 1, (
        err
    )  # of one width there is no slope
    table = rows(tmp_path / "fig8.csv")
    assert [row["m"] for row in table if row["source"] == "measured"] == ["8"]
    assert sum(row["source"] == "paper" for row in table) == 25
    assert not (tmp_path / "fig8_exponents.csv").exists()


@each(
    "words, said",
    [
        (["fig44"], "There is no figure 'fig44'. Did you mean fig4"),
        (["fig2"], "it is a drawing"),
        (["fig1", "--tiny"], "fig1 has no --tiny version"),
        (["fig4", "--decays", "0.4"], "No point of this figure has decay 0.4"),
        (["fig4", "--decay", "0.4"], "There is no option '--decay'. Did you mean --decays"),
        (["fig8", "--losses", "word.csv"], "line 3: 'm' must be a finite number"),
        # before the training
        (["fig1", "--losses", "word.csv"], "line 3: 'm' must be a finite number"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word.csv").write_text("family,dataset,m,loss\na,b,1,2\na,b,many,2\n")
    status, _, err = call(capsys, *words, "--out", "out", "--device", "cpu")
    assert status == 2 and said in err
