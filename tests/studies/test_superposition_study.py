"""The study of superposition: its figures from sweeps that are taken up again, what it says of the
paper's claims, and the language models beside them."""

import csv
import re

import pytest
import superposition_study as study
import torch
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
    assert (
        len(rows(tmp_path / "quick.csv")) == 10 and len(rows(tmp_path / "quick_exponents.csv")) == 2
    )
    line = rows(tmp_path / "quick_exponents.csv")[0]
    assert float(line["error_fit"]) > 0 and line["error_seeds"] == "" and line["points"] == "5"
    assert (tmp_path / "quick.png").read_bytes()[:4] == b"\x89PNG" and (
        tmp_path / "quick.pdf"
    ).read_bytes()[:4] == b"%PDF"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()}
    assert len(before) == 20
    assert call(capsys, "quick", "--out", tmp_path, *SHORT)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()} == before

    status, _, err = call(capsys, "quick", "--out", tmp_path, "--steps", 9, "--batch", 32)
    assert status == 2 and "results of another grid: steps 8 (now 9)" in err


@pytest.mark.slow
@pytest.mark.drawn
def test_every_figure_is_drawn_of_a_few_points(tmp_path, capsys, drawn_once):
    few = (
        "--decays",
        -1,
        -0.7778,
        -0.556,
        0.556,
        "--widths",
        8,
        18,
        27,
        *SHORT,
        "--tiny",
        "--out",
        tmp_path,
    )
    for name, more in {
        "fig3": ("--alphas", 1), "fig4": ("--alphas", 1, 1.5),
        "fig5": ("--alphas", 1, 1.5), "fig6": ("--alphas", 1),
    }.items():  # fmt: skip
        words = [word for word in (*few, *more) if name != "fig6" or word != 0.556]
        status, out, err = call(capsys, name, *words)
        assert status == 0 and (tmp_path / f"{name}.png").exists(), err
        assert (
            re.search("^(confirmed|refuted|open): ", out, re.MULTILINE)
            and "tell nothing" not in out
        )
    few = ("--decays", -0.556, "--densities", 0, 1, *SHORT, "--tiny", "--out", tmp_path)
    status, out, _ = call(capsys, "fig7", *few)
    assert (
        status == 0
        and "12 of 12 points" in out
        and "does not depend on the density" in out
        and "m = 27: " in out
    )
    status, out, _ = call(capsys, "fig7", *few, "--widths", 8, 18)
    assert (
        status == 0 and "m = 18: " in out and "\nopen: the exponent" not in out
    )  # a scan at the larger of them
    status, out, _ = call(capsys, "fig5", *few[:2], "--alphas", 1, "--widths", 8, 18, *few[5:])
    assert status == 0 and "open: these points tell nothing of the claims" in out


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
    assert (
        "fig6: a panel is empty. There are no weights of power-a1.0000" in err and "-m8.json" in err
    )


def test_several_figures_are_checked_before_the_first_is_trained(tmp_path, capsys):
    status, out, err = call(capsys, "quick", "fig44", "--out", tmp_path, *SHORT)
    assert (
        status == 2
        and "no figure 'fig44'" in err
        and not list(tmp_path.glob("points/*"))
        and not out
    )
    status, _, err = call(capsys, "quick", "fig4", "--out", tmp_path, "--device", "cpu")
    assert (
        status == 2
        and "quick and fig4 are of different grids" in err
        and not list(tmp_path.glob("points/*"))
    )


@pytest.mark.slow
def test_widths_features_and_seeds_of_ones_own(tmp_path, capsys):
    words = (
        "fig6",
        "--tiny",
        "--alphas",
        1,
        "--decays",
        -1,
        *SHORT,
        "--features",
        90,
        "--out",
        tmp_path,
    )
    status, out, err = call(capsys, *words, "--widths", 7, 33, 50, "--seed", 3)
    assert (
        status == 0
        and "3 of 3 points" in out
        and "n 90 (paper: 1000)" in out
        and "m 7 to 50 (paper: 10" in out
    ), err
    found = rows(tmp_path / "fig6.csv")
    assert [(row["n"], row["m"]) for row in found] == [("90", "7"), ("90", "33"), ("90", "50")]
    status, out, err = call(
        capsys, *words, "--widths", 50, 60, "--seed", 3
    )  # the same folder, one point is there
    assert status == 0 and "m 50 to 60 (paper: 10" in rows(tmp_path / "fig6.csv")[0]["shortened"], (
        err
    )
    assert rows(tmp_path / "fig6.csv")[0]["loss"] == found[2]["loss"]
    status, _, err = call(capsys, *words, "--seed", 4)
    assert status == 2 and "results of another grid: seed 3 (now 4)" in err
    status, out, err = call(
        capsys, *words, "--widths", 1, 2, "--seed", 3
    )  # in one dimension all overlaps are 1
    assert status == 0 and "2 of 2 points" in out, err
    status, _, err = call(capsys, *words, "--widths", 91, "--seed", 3)
    assert status == 2 and "from 1 to 90, got 91" in err


@pytest.mark.slow
@pytest.mark.drawn
def test_figure_1(tmp_path, capsys, drawn_once):
    few = ("fig1", "--widths", 8, 16, 32, "--features", 128, *SHORT, "--out", tmp_path)
    status, out, _ = call(capsys, *few)
    assert status == 0 and "18 of 18 points" in out and out.count("strong superposition, ") == 3
    losses = [f"a,x,{m},{100 / m**0.9 + 2}" for m in (64, 128, 256, 512)]
    (tmp_path / "losses.csv").write_text("\n".join(["family,dataset,m,loss", *losses]))
    status, out, _ = call(capsys, *few, "--losses", tmp_path / "losses.csv")
    assert status == 0 and "\nconfirmed: the losses of language models" in out


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
    assert (
        "\nconfirmed: the losses of language models" in out
        and "paper: 0.91 ± 0.04; here: 0.90 ± 0.00" in out
    )
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


@pytest.mark.parametrize(
    ("words", "said"),
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
