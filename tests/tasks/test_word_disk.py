"""Hierarchies of words and photos, and where they settle."""

import numpy as np
import pytest
import torch
from PIL import Image

from hypvision.cli import main
from hypvision.geometry import Lorentz
from hypvision.inference.sources import find_sources
from hypvision.io.errors import HypvisionError
from hypvision.tasks.closures import SPREAD, closure_ranks, embed_closure
from hypvision.tasks.embedding import Embedder
from hypvision.tasks.word_disk import RIM, group_photos, in_order, read_words, settle

WORDS = "animal > mammal > tiger, animal > mammal > lion, animal > bird > eagle"


def test_words_are_read_in_each_form(tmp_path):
    lines = tmp_path / "words.txt"
    lines.write_text(WORDS.replace(", ", "\n"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("tiger\tmammal\nlion\tmammal\neagle\tbird\nmammal\tanimal\nbird\tanimal\n")
    first, *others = [read_words(str(each)) for each in (WORDS, lines, pairs)]
    assert first.labels == ["animal", "bird", "eagle", "lion", "mammal", "tiger"]
    for other in others:
        assert other.labels == first.labels
        assert np.array_equal(other.closure.pairs, first.closure.pairs)
    with pytest.raises(HypvisionError, match="no name below another"):
        read_words("a >")


def test_the_start_has_the_tree_in_order():
    closure = read_words(WORDS).closure
    start = in_order(closure)
    rows = {name: row for row, name in enumerate(closure.names)}
    leaves = start[[rows["eagle"], rows["lion"], rows["tiger"]]]
    assert torch.allclose(leaves.norm(dim=1), torch.full((3,), SPREAD))
    assert torch.allclose(start[rows["mammal"]], leaves[1:].mean(0))
    assert torch.allclose(start[rows["animal"]], leaves.mean(0), atol=1e-8)


def test_words_settle_in_the_hierarchy():
    hierarchy = read_words(WORDS)
    page = settle(hierarchy, "animals", steps=200)
    radii = np.linalg.norm(page.frames[-1], axis=1)
    assert radii[0] == pytest.approx(0, abs=1e-6)  # the animal
    assert radii.max() == pytest.approx(RIM, abs=1e-3)
    assert np.linalg.norm(page.frames[0], axis=1).max() < 0.1
    closure = hierarchy.closure
    points = embed_closure(closure, steps=200, start=in_order(closure))
    assert closure_ranks(points, Lorentz(1.0), closure)["map"] == 1


def test_photos_are_grouped_by_look(tmp_path):
    colours = {"red": (250, 0, 0), "blue": (0, 0, 250)}
    for name, colour in colours.items():
        (tmp_path / name).mkdir()
        for number in range(4):
            shade = tuple(max(0, part - 5 * number) for part in colour)
            Image.new("RGB", (8, 8), shade).save(tmp_path / name / f"{number}.png")
    embedder = Embedder(
        lambda images: images.mean((2, 3)),
        lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255,
        "cosine",
        "mean colour",
    )
    sources = find_sources(sorted(tmp_path.rglob("*.png")))
    found = group_photos(embedder, sources, tmp_path)
    names = found.closure.names
    parents = {
        names[name]: found.labels[parent] for name, parent in found.closure.parents().tolist()
    }
    for name, parent in parents.items():
        label = found.labels[names.index(name)]
        if "/" in label:  # a photo
            assert label.startswith(parent)
    assert len(found.pictures) == 8 and {"red", "blue"} <= set(found.labels)


def test_command(tmp_path, capsys):
    page = tmp_path / "page.html"
    walk = tmp_path / "walk.gif"
    line = ["disk", WORDS, "--steps", "5", "--out", str(page), "--gif", str(walk)]
    assert main(line) == 0
    assert "6 names" in capsys.readouterr().out
    assert page.is_file() and walk.is_file()
    assert main(["disk", WORDS, "--out", str(tmp_path / "page.png")]) == 2
    assert "must end in .html" in capsys.readouterr().err
