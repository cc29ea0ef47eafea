"""``hypvision scaling``: sweeps that are taken up again, and the heads and losses of language
models."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cases import each
from safetensors.torch import save_file

import hypvision.cli.scaling
from hypvision.cli import main

pytest.importorskip("matplotlib")


def call(capsys, *words):
    status = main(["scaling", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return status, said.out, said.err


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


SHORT = ("--steps", 8, "--batch", 32, "--device", "cpu")


@pytest.mark.drawn
def test_a_sweep_of_ones_own(tmp_path, capsys):
    words = ("run", "--out", tmp_path, *SHORT)
    status, out, err = call(capsys, *words)
    assert status == 0 and "10 of 10 points" in out and out.count("loss ~ m^-") == 2, err
    found = rows(tmp_path / "sweep.csv")
    assert len(found) == 10 and {row["n"] for row in found} == {"200"}
    assert {row["decay"] for row in found} == {"-1.0", "0.3333"} and found[0]["shortened"] == ""
    line = rows(tmp_path / "sweep_exponents.csv")[0]
    assert float(line["error_fit"]) > 0 and line["error_seeds"] == "" and line["points"] == "5"
    assert (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "sweep.pdf").read_bytes()[:4] == b"%PDF"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()}
    assert len(before) == 20

    status, out, err = call(capsys, *words, "--decays", 0.1, 0.100001, "--widths", 4, 6)
    assert status == 0 and "2 of 2 points" in out and "at least three widths" in out, err
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "points").iterdir()}
    assert len(after) == 24 and before.items() <= after.items()
    status, _, err = call(capsys, *words, "--features", 90)
    assert status == 2 and "results of another grid: n 200 (now 90)" in err
    own = ("--distribution", "linear", "--replicates", 2, "--seed", 3, "--widths", 4, 5, 6)
    status, out, err = call(capsys, *words[:2], tmp_path / "own", *SHORT, *own)
    assert status == 0 and "12 of 12 points" in out and "linear frequencies" in out, err


def test_files_of_one_name_want_folders_of_their_own(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("")
    status, _, err = call(
        capsys, "fit", tmp_path / "a" / "x.csv", tmp_path / "b" / "x.csv", "--out", tmp_path
    )
    assert status == 2 and "There are 2 files 'x'" in err


def test_submitted_cells_carry_the_device_that_was_asked_for(tmp_path, capsys, monkeypatch):
    from hypvision.cli import scaling
    from hypvision.cli.submit import Outcome

    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        scaling, "run_cells", lambda cells, **options: seen.extend(cells) or Outcome({}, {}, [])
    )
    words = ("run", "--device", "cuda", "--out", tmp_path)
    assert call(capsys, *words, "--submit", "slurm")[0] == 0
    assert {cell.arguments[-1] for cell in seen} == {"cuda"}
    assert len(seen) == 1  # all widths in one cell
    status, _, err = call(capsys, *words)
    assert status == 2 and "PyTorch finds no GPU here" in err


@each(
    "words, said",
    [
        (["rnu"], "no command 'rnu'. Did you mean run?"),
        (["run", "--submit-options", "timeout_min=3"], "only with --submit"),
        (["run", "--widths", "201"], "the width 201 must be an integer from 1 to 200"),
        (["run", "--densities", "1.5"], "the density 1.5 must be"),
        (["heads", "no_such"], "There is no checkpoint 'no_such'"),
        (["tokens", "a.txt"], "Add --tokenizer tokenizer.json"),
        (["tokens", "a.npy"], "is not a NumPy array"),
        (["tokens", "real.npy"], "float64 numbers, but token ids must be integers"),
        (["tokens", "few.npy"], "3 different tokens are too few"),
        (["fit", "a.txt"], "none is called family or dataset or m or loss"),
        (["fit", "latin.csv"], "cannot be read as CSV"),
        (["fit", "no_such.csv"], "There is no table 'no_such.csv'"),
        (["fit", "word.csv"], "line 3: 'm' must be a finite number"),
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


def test_a_head_that_another_call_measures_meanwhile_stays(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    for name in ("mine", "other"):
        save_file({"lm_head.weight": torch.randn(50, 8)}, tmp_path / f"{name}.safetensors")
    real = hypvision.cli.scaling.measure_head

    def measure(*subject):
        if "mine" in subject[0]:
            assert call(capsys, "heads", tmp_path / "other.safetensors", "--out", out)[0] == 0
        return real(*subject)

    monkeypatch.setattr(hypvision.cli.scaling, "measure_head", measure)
    assert call(capsys, "heads", tmp_path / "mine.safetensors", "--out", out)[0] == 0
    assert [Path(row["model"]).stem for row in rows(out / "heads.csv")] == ["other", "mine"]


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


def test_tokens_and_fit(tmp_path, capsys):
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
    assert len(rows(tmp_path / "losses_fit.csv")) == 4
    assert "free_error" in rows(tmp_path / "losses_fit.csv")[0]


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
