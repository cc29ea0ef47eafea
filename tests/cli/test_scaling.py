"""``hypvision scaling``: figures from sweeps that are taken up again, and the heads and losses of
language models."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hypvision.cli import main

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


def call(capsys, *words):
    status = main(["scaling", *map(str, words)])
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
    status, out, _ = call(capsys, "run", "quick", "--out", tmp_path, *SHORT)
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
    assert call(capsys, "run", "quick", "--out", tmp_path, *SHORT)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()} == before

    status, _, err = call(capsys, "run", "quick", "--out", tmp_path, "--steps", 9, "--batch", 32)
    assert status == 2 and "results of another grid: steps 8 (now 9)" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [("--jobs", 2), ("--submit", "local", "--jobs", 2)], ids=["processes", "submitit"]
)
def test_processes_and_submitit_give_the_same(tmp_path, capsys, way):
    if "--submit" in way:
        pytest.importorskip("submitit")
    for name, more in (("one", ()), ("many", way)):
        status, out, err = call(capsys, "run", "quick", "--out", tmp_path / name, *SHORT, *more)
        assert status == 0 and "10 of 10 points" in out, err
    for one, other in zip(
        rows(tmp_path / "one" / "quick.csv"), rows(tmp_path / "many" / "quick.csv")
    ):
        assert float(one["loss"]) == pytest.approx(float(other["loss"]), rel=1e-4)
    assert (tmp_path / "many" / "jobs").exists() == ("--submit" in way)


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
        status, out, err = call(capsys, "run", name, *words)
        assert status == 0 and (tmp_path / f"{name}.png").exists(), err
        assert (
            re.search("^(confirmed|refuted|open): ", out, re.MULTILINE)
            and "tell nothing" not in out
        )
    few = ("--decays", -0.556, "--densities", 0, 1, *SHORT, "--tiny", "--out", tmp_path)
    status, out, _ = call(capsys, "run", "fig7", *few)
    assert (
        status == 0
        and "12 of 12 points" in out
        and "does not depend on the density" in out
        and "m = 27: " in out
    )
    status, out, _ = call(capsys, "run", "fig7", *few, "--widths", 8, 18)
    assert (
        status == 0 and "m = 18: " in out and "\nopen: the exponent" not in out
    )  # a scan at the larger of them
    status, out, _ = call(
        capsys, "run", "fig5", *few[:2], "--alphas", 1, "--widths", 8, 18, *few[5:]
    )
    assert status == 0 and "open: these points tell nothing of the claims" in out


def test_results_whose_weights_are_gone_are_drawn_without_them(tmp_path, capsys):
    words = (
        "run",
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
    assert "fig6: a panel is empty. The weights of power-a1.0000" in err and "-m8.json" in err


def test_several_figures_are_checked_before_the_first_is_trained(tmp_path, capsys):
    status, out, err = call(capsys, "run", "quick", "fig44", "--out", tmp_path, *SHORT)
    assert (
        status == 2
        and "no figure 'fig44'" in err
        and not list(tmp_path.glob("points/*"))
        and not out
    )
    status, _, err = call(capsys, "run", "quick", "fig4", "--out", tmp_path, "--device", "cpu")
    assert (
        status == 2
        and "quick and fig4 are of different grids" in err
        and not list(tmp_path.glob("points/*"))
    )
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("")
    status, _, err = call(
        capsys, "fit", tmp_path / "a" / "x.csv", tmp_path / "b" / "x.csv", "--out", tmp_path
    )
    assert status == 2 and "There are 2 files 'x'" in err


@pytest.mark.slow
def test_widths_features_and_seeds_of_ones_own(tmp_path, capsys):
    words = (
        "run",
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
    few = ("run", "fig1", "--widths", 8, 16, 32, "--features", 128, *SHORT, "--out", tmp_path)
    status, out, _ = call(capsys, *few)
    assert status == 0 and "18 of 18 points" in out and out.count("strong superposition, ") == 3
    losses = [f"a,x,{m},{100 / m**0.9 + 2}" for m in (64, 128, 256, 512)]
    (tmp_path / "losses.csv").write_text("\n".join(["family,dataset,m,loss", *losses]))
    status, out, _ = call(capsys, *few, "--losses", tmp_path / "losses.csv")
    assert status == 0 and "\nconfirmed: the losses of language models" in out


def test_submitted_cells_carry_the_device_that_was_asked_for(tmp_path, capsys, monkeypatch):
    from hypvision.cli import scaling
    from hypvision.cli.submit import Outcome

    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        scaling, "run_cells", lambda cells, **options: seen.extend(cells) or Outcome({}, {}, [])
    )
    words = ("run", "quick", "--device", "cuda", "--out", tmp_path)
    assert call(capsys, *words, "--submit", "slurm")[0] == 0
    assert {cell.arguments[-1] for cell in seen} == {"cuda"} and len(
        seen
    ) == 1  # all widths in one cell
    status, _, err = call(capsys, *words)
    assert status == 2 and "PyTorch finds no GPU here" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fig44"], "There is no figure 'fig44'. Did you mean fig4"),
        (["run", "fig2"], "it is a drawing"),
        (["rnu", "fig4"], "no command 'rnu'. Did you mean run?"),
        (["run", "fig1", "--tiny"], "fig1 has no --tiny version"),
        (["run", "fig4", "--decays", "0.4"], "No point of this figure has decay 0.4"),
        (["run", "quick", "--submit-options", "timeout_min=3"], "only with --submit"),
        (["heads", "no_such"], "There is no checkpoint 'no_such'"),
        (["tokens", "a.txt"], "Add --tokenizer tokenizer.json"),
        (["tokens", "a.npy"], "is not a NumPy array"),
        (["tokens", "real.npy"], "float64 numbers; token ids must be integers"),
        (["tokens", "few.npy"], "3 different tokens are too few"),
        (["fit", "a.txt"], "missing family, dataset, m, loss"),
        (["fit", "latin.csv"], "cannot be read as CSV"),
        (["fit", "no_such.csv"], "There is no table 'no_such.csv'"),
        (["run", "fig8", "--losses", "word.csv"], "line 3: 'm' must be a finite number"),
        (
            ["run", "fig1", "--losses", "word.csv"],
            "line 3: 'm' must be a finite number",
        ),  # before the training
        (["fit", "same.csv"], "all the same, so they have no exponent"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "a.txt").write_text("hello\nworld\n")
    (tmp_path / "a.npy").write_text("hello")
    (tmp_path / "latin.csv").write_bytes(b"famille\ncaf\xe9\n")
    (tmp_path / "word.csv").write_text("family,dataset,m,loss\na,b,1,2\na,b,many,2\n")
    same = [f"a,b,{m},2" for m in (64, 128, 256, 512)]
    (tmp_path / "same.csv").write_text("\n".join(["family,dataset,m,loss", *same]))
    np.save(tmp_path / "real.npy", np.ones(3))
    np.save(tmp_path / "few.npy", np.arange(3))
    status, _, err = call(capsys, *words, "--out", "out")
    assert status == 2 and said in err


def test_heads_in_every_kind_of_checkpoint(tmp_path, capsys):
    head = torch.randn(50, 8)
    expected = None
    (tmp_path / "sharded").mkdir()
    save_file({"lm_head.weight": head}, tmp_path / "sharded" / "two.safetensors")
    table = {
        "weight_map": {
            "lm_head.weight": "two.safetensors",
            "model.embed_tokens.weight": "one.safetensors",
        }
    }
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps(table))
    (tmp_path / "bin").mkdir()
    torch.save(
        {"transformer.wte.weight": head, "transformer.h.0": torch.zeros(3)},
        tmp_path / "bin" / "pytorch_model.bin",
    )
    save_file({"odd.name": head}, tmp_path / "odd.safetensors")
    out = tmp_path / "out"
    for source, more in (
        ("sharded", ()),
        ("bin", ()),
        ("odd.safetensors", ("--tensor", "odd.name")),
    ):
        status, said, err = call(capsys, "heads", tmp_path / source, *more, "--out", out)
        assert status == 0 and "50 tokens in 8 dimensions" in said, err
    found = rows(out / "heads.csv")
    assert [row["tensor"] for row in found] == [
        "lm_head.weight",
        "transformer.wte.weight",
        "odd.name",
    ]
    unit = torch.nn.functional.normalize(head.double(), dim=1)
    expected = (unit @ unit.T)[torch.triu_indices(50, 50, 1).unbind()].square().mean().item()
    assert [float(row["overlap_mean"]) for row in found] == pytest.approx([expected] * 3, rel=1e-5)

    (tmp_path / "some.csv").write_text(
        f"family,model,head,m\nmine,{tmp_path / 'sharded'},lm_head.weight,8\n"
    )
    status, said, err = call(capsys, "heads", tmp_path / "some.csv", "--out", tmp_path / "c")
    assert status == 0 and said.count("50 tokens in 8 dimensions") == 1, err

    status, said, err = call(
        capsys, "heads", tmp_path / "odd.safetensors", tmp_path / "bin", "--out", tmp_path / "b"
    )
    assert (
        status == 2 and "Name the tensor with --tensor" in err and "50 tokens" in said
    )  # the other was measured
    table["weight_map"]["lm_head.weight"] = "../two.safetensors"
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps(table))
    status, _, err = call(capsys, "heads", tmp_path / "sharded", "--out", tmp_path / "b")
    assert status == 2 and "must be the name of a file below this folder" in err


def test_every_tensor_of_a_model_counts_towards_the_peak(tmp_path, capsys, monkeypatch):
    from hypvision.cli import scaling

    save_file({"a": torch.randn(50, 8), "b": torch.randn(40, 6)}, tmp_path / "two.safetensors")
    out = tmp_path / "out"
    for tensor, said in (("a", "50 tokens in 8"), ("b", "40 tokens in 6"), ("a", "50 tokens in 8")):
        status, text, err = call(
            capsys, "heads", tmp_path / "two.safetensors", "--tensor", tensor, "--out", out
        )
        assert status == 0 and said in text, err
    assert "of an earlier call, in" in text  # the third
    assert [(row["tensor"], row["m"]) for row in rows(out / "heads.csv")] == [
        ("a", "8"),
        ("b", "6"),
    ]
    status, _, err = call(capsys, "heads", tmp_path / "two.safetensors", "--out", out)
    assert status == 2 and "Name the tensor" in err  # neither of them is the head

    measure = scaling.measure_head

    def stopped(source, tensor):
        if source.endswith("three.safetensors"):
            raise KeyboardInterrupt
        return measure(source, tensor)

    monkeypatch.setattr(scaling, "measure_head", stopped)
    save_file({"lm_head.weight": torch.randn(30, 4)}, tmp_path / "one.safetensors")
    call(
        capsys, "heads", tmp_path / "one.safetensors", tmp_path / "three.safetensors", "--out", out
    )
    assert [row["m"] for row in rows(out / "heads.csv")] == ["8", "6", "4"]


def test_every_tensor_has_its_own_row(tmp_path, capsys):
    """One tensor's numbers are not another's: not of an earlier call, nor of one table."""
    net, out, embedding = (
        tmp_path / "net.safetensors",
        tmp_path / "out",
        "model.embed_tokens.weight",
    )
    save_file({"lm_head.weight": torch.randn(50, 8), embedding: torch.randn(40, 6)}, net)
    status, said, err = call(capsys, "heads", net, "--tensor", embedding, "--out", out)
    assert status == 0 and f"{embedding}: 40 tokens in 6" in said, err
    status, said, err = call(capsys, "heads", net, "--out", out)
    assert status == 0 and "lm_head.weight: 50 tokens in 8" in said and "40 tokens" not in said, err
    assert [row["asked"] for row in rows(out / "heads.csv")] == [embedding, "a usual name"]

    both = [f"A,{net},{tensor},8" for tensor in ("lm_head.weight", embedding)]
    (tmp_path / "both.csv").write_text("\n".join(["family,model,head,m", *both]))
    status, said, err = call(capsys, "heads", tmp_path / "both.csv", "--out", tmp_path / "new")
    assert status == 0 and "50 tokens" in said and "40 tokens" in said and "earlier" not in said, (
        err
    )
    assert [row["m"] for row in rows(tmp_path / "new" / "heads.csv")] == ["8", "6"]

    # Earlier versions did not write what was asked for: only a tensor that is asked for is known to
    # be the right one.
    text = (out / "heads.csv").read_text()
    (out / "heads.csv").write_text("\n".join(line.rpartition(",")[0] for line in text.splitlines()))
    for more, again in (((), False), ((), True), (("--tensor", embedding), True)):
        status, said, err = call(capsys, "heads", net, *more, "--out", out)
        assert status == 0 and ("of an earlier call" in said) == again, err
    assert len(rows(out / "heads.csv")) == 2


@pytest.mark.drawn
def test_tokens_fit_and_figure_8(tmp_path, capsys, drawn_once):
    ids = np.repeat(np.arange(200), [max(1, 20000 // (k + 1)) for k in range(200)])
    np.save(tmp_path / "ids.npy", ids)
    status, out, _ = call(capsys, "tokens", tmp_path / "ids.npy", "--out", tmp_path)
    assert status == 0 and f"{len(ids)} tokens, 200 different" in out
    assert float(out.split("rank^-")[1]) == pytest.approx(1, abs=0.02)
    assert rows(tmp_path / "ids_tokens.csv")[0] == {
        "rank": "1",
        "token": "0",
        "frequency": str(20000 / len(ids)),
    }

    lines = ["model,family,dataset,m,loss"]
    for m in (64, 128, 256, 512):
        for family, data, offset in (("a", "x", 2.0), ("a", "y", 2.5), ("b", "x", 1.5)):
            lines.append(f",{family},{data},{m},{100 / m**0.9 + offset}")
    lines.append(f"openai-community/gpt2,,x,,{100 / 768**0.9 + 1}")
    (tmp_path / "losses.csv").write_text("\n".join(lines))
    status, out, err = call(capsys, "fit", tmp_path / "losses.csv", "--out", tmp_path)
    assert (
        status == 0 and "13 losses, L = 100 / m^0.9000 + B" in out and "B of GPT-2/x: 1.000" in out
    ), err
    assert (
        "0.0000 by the paper's formula, 0.0000 with the offsets free (as SciPy's curve_fit)" in out
    )
    assert (
        len(rows(tmp_path / "losses_fit.csv")) == 4
        and "free_error" in rows(tmp_path / "losses_fit.csv")[0]
    )
    status, out, err = call(
        capsys, "run", "fig8", "--losses", tmp_path / "losses.csv", "--out", tmp_path
    )
    assert (
        status == 0 and "The overlaps are the paper's" in out and (tmp_path / "fig8.pdf").exists()
    ), err
    assert (
        "\nconfirmed: the losses of language models" in out
        and "paper: 0.91 ± 0.04; here: 0.90 ± 0.00" in out
    )
    save_file({"lm_head.weight": torch.randn(50, 8)}, tmp_path / "head.safetensors")
    assert call(capsys, "heads", tmp_path / "head.safetensors", "--out", tmp_path)[0] == 0
    status, out, err = call(capsys, "run", "fig8", "--out", tmp_path)
    assert status == 0 and out.count("\nconfirmed: ") == out.count("\nopen: ") == 1, (
        err
    )  # of one width there is no slope
    table = rows(tmp_path / "fig8.csv")
    assert [row["m"] for row in table if row["source"] == "measured"] == ["8"]
    assert sum(row["source"] == "paper" for row in table) == 25


def test_text_needs_a_tokenizer(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel(
        {word: i for i, word in enumerate("abcdefghijkl")}, unk_token="a"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(
        "\n".join(" ".join(c * 1 for c in "abcdefghijkl"[: k % 12 + 1]) for k in range(60))
    )
    words = (
        "tokens",
        tmp_path / "text.txt",
        "--tokenizer",
        tmp_path / "tokenizer.json",
        "--out",
        tmp_path,
    )
    status, out, err = call(capsys, *words)
    assert status == 0 and "390 tokens, 12 different" in out, err
