"""Names, files and folders that are given are checked before a model is loaded: the error is of
these, though the model's weights do not exist, either."""

import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("open_clip")
from hypvision.cli import main

CLIP = ["--clip", "ViT-B-16:none.pt"]
CHAINS = ["clip", "chains", "chains.csv", *CLIP]
EXPLAIN = ["explain", "photo.png", "--texts", "a, b", *CLIP]
EVALUATE = ["clip", "evaluate", "--suite", "uncha", *CLIP]
RADIUS = ["clip", "radius", *CLIP]
SEARCH = ["metric", "search", "photo.png", *CLIP]
WRONG = [
    (["fewshot", "base2new", "--datasets", "dtt", *CLIP], "Did you mean dtd?"),
    (["fewshot", "shots", "--datasets", "caltech101", "dtt", *CLIP], "'dtt'"),
    (["fewshot", "cross", "--source", "imagnet", *CLIP], "'imagnet'"),
    (["fewshot", "dg", "--datasets", "imagenet_b", *CLIP], "'imagenet_b'"),
    (["fewshot", "base2new", "--method", "promptkd", *CLIP], "--teacher"),
    (["fewshot", "base2new", "--method", "maplee", *CLIP], "'maplee'"),
    ([*EVALUATE, "--sets", "cifar11"], "cifar11"),
    ([*EVALUATE, "--data", "none"], "'none'"),
    (["clip", "segment", "photo.png", "--classes", "none.txt", *CLIP], "none.txt"),
    (["clip", "segment", "none.png", "--classes", "a", *CLIP], "none.png"),
    ([*RADIUS, "--classes", "none.txt"], "none.txt"),
    ([*RADIUS, "--images", "none.png"], "none.png"),
    ([*RADIUS, "--adapter", "none.safetensors"], "none.safetensors"),
    ([*CHAINS, "--images", "none"], "'none'"),
    ([*CHAINS, "--template", "a"], "--template"),
    ([*CHAINS, "--hyperlex", "none.txt"], "none.txt"),
    ([*CHAINS, "--tree", "none.json", "--tree-images", "."], "none.json"),
    ([*CHAINS, "--tree", "tree.json", "--tree-images", "none"], "'none'"),
    ([*CHAINS, "--show", "photo.png", "--candidates", "none.csv"], "none.csv"),
    ([*CHAINS, "--tuned", "none.pth"], "none.pth"),
    ([*EXPLAIN, "--to", "none.png"], "none.png"),
    ([*EXPLAIN, "--captions", "none"], "'none'"),
    (["explain", "photo.png", "--gallery", "none", *CLIP], "'none'"),
    ([*SEARCH, "--gallery", "none"], "none"),
    ([*SEARCH, "--gallery", "photo.png", "--save", "found.txt"], "found.txt"),
    (["metric", "embed", "none.png", *CLIP], "none.png"),
    (["predict", "none.png", "--classes", "a", *CLIP], "none.png"),
    (["predict", "photo.png", "--classes", "none.txt", *CLIP], "none.txt"),
    (["summary", *CLIP, "--save", "sizes.txt"], "sizes.txt"),
]


@each("arguments, named", WRONG)
def test_what_is_cheap_is_checked_first(tmp_path, monkeypatch, capsys, arguments, named):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("photo.png")
    (tmp_path / "tree.json").write_text('{"cat": ["animal"]}')
    (tmp_path / "chains.csv").write_text("id,captions\n7,animal=>cat\n8,animal=>dog\n")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "none.pt'" not in said


def test_the_weights_are_told_otherwise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["clip", "radius", "--classes", "a", *CLIP]) == 2
    assert "none.pt'" in capsys.readouterr().err
