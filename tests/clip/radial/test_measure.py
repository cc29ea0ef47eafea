"""HyperLex, retrieval and measurements of files, against hand-made cases; mistakes with the names
of what is wrong."""

from unittest import mock

import pytest
import torch
from helpers.cases import each
from PIL import Image
from safetensors.torch import save_file

pytest.importorskip("open_clip")
pytest.importorskip("scipy")

from hypvision.clip.models import create_clip
from hypvision.clip.radial.measure import (
    embed_images,
    measure_chains,
    measure_clip,
    measure_hyperlex,
    measure_tree,
    read_embeddings,
)
from hypvision.clip.radial.retrieval import (
    LabelTree,
    hyperlex_correlation,
    level_accuracy,
    read_hyperlex,
    read_tree,
    recall_at,
    tree_recall,
)
from hypvision.clip.spaces import Hyperboloid, Sphere
from hypvision.data.chains import find_image_files
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError

HYPERLEX = """WORD1 WORD2 POS TYPE AVG_SCORE AVG_SCORE_0_10 STD SCORES..
cat animal N hyp-1 6.0 10 0 6 6
dog animal N hyp-1 5.5 9 0 5 6
animal cat N r-hyp-1 1.0 1 0 1 1
run move V hyp-1 4.0 6 0 4 4
move run V r-hyp-1 0.5 0 0 0 1
eat move V no-rel 0.2 0 0 0 0
"""


@pytest.fixture(scope="module")
def clip():
    return create_clip("emoji-s16")


def test_hyperlex(tmp_path, clip):
    (tmp_path / "h.txt").write_text(HYPERLEX)
    pairs = read_hyperlex(tmp_path / "h.txt")
    assert pairs[0] == ("cat", "animal", "N", 6.0) and len(pairs) == 6
    # On a line away from the root: the general word first, so the angle at it is 0 towards the
    # specific one, else pi.
    place = dict(
        animal=[1.0, 0],
        cat=[2.0, 0.2],
        dog=[2.0, 0.4],
        move=[0, 1.0],
        run=[0.3, 2.0],
        eat=[1.0, 0.1],
    )
    words = {word: row for row, word in enumerate(place)}
    found = hyperlex_correlation(
        pairs, words, torch.tensor(list(place.values())), Sphere(torch.zeros(2))
    )
    assert (
        found["rho_all"] == pytest.approx(5 / 7, abs=1e-3)
        and found["rho_V"] == pytest.approx(0.5)
        and found["rho_N"] == pytest.approx(1.0)
    )
    assert set(found) == {"rho_all", "rho_N", "rho_V", "rho_radius"}
    measured = measure_hyperlex(
        clip, tmp_path / "h.txt", Sphere(torch.ones(128) / 128**0.5), "a {}"
    )
    assert all(-1 <= value <= 1 for value in measured.values())


def test_files_that_are_not_hyperlex(tmp_path):
    for text in ("header\n", "header\na b N\n", "header\na b N t x\n"):
        (tmp_path / "h.txt").write_text(text)
        with pytest.raises(HypvisionError, match="h.txt"):
            read_hyperlex(tmp_path / "h.txt")
    with pytest.raises(HypvisionError, match="There is no"):
        read_hyperlex(tmp_path / "none.txt")


def test_recall_over_a_tree():
    # Names: 0 animal, 1 cat, 2 dog, 3 vehicle, 4 car. The first image finds cat and animal, the
    # second car alone.
    similarity = torch.tensor([[0.8, 0.9, 0.1, 0.0, 0.2], [0.7, 0.1, 0.5, 0.0, 0.9]])
    found = tree_recall(similarity, [0, 2], [[1, 0], [2, 0], [4, 3]], ks=(1, 2, 5))
    assert found == {"tree_R@1": 0.5, "tree_R@2": 0.75, "tree_R@5": 1.0}


def test_recall_and_levels():
    similarity = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.3, 0.8]])
    assert recall_at(similarity, torch.tensor([[0, 0, 1], [0, 0, 1]]).bool(), (1, 2, 9)) == {
        1: 0.5,
        2: 1.0,
        9: 1.0,
    }
    chains = [("animal", "cat"), ("animal", "dog"), ("food", "pie")]
    # The first image has one chain, the second has two; texts: animal cat animal dog food pie.
    similarity = torch.tensor([[0.5, 0.3, 0.5, 0.4, 0.1, 0.0], [0.2, 0.0, 0.2, 0.1, 0.6, 0.9]])
    found = level_accuracy(chains, [0, 1, 1], similarity, ks=(1, 2))
    assert found == {"level1_R@1": 1.0, "level1_R@2": 1.0, "level2_R@1": 0.5, "level2_R@2": 1.0,
                     "text_to_image_R@1": pytest.approx(2 / 3),
                     "text_to_image_R@2": 1.0}  # fmt: skip


CHAINS, IMAGES = [("a", "b c", "d"), ("a", "e", "f"), ("a", "e", "g")], ["x/1.jpg", "2", "2"]


def test_embeddings_of_any_model(tmp_path):
    texts, images = torch.randn(3, 3, 5), torch.randn(2, 5)
    save_file(dict(texts=texts, images=images, root=torch.zeros(5)), tmp_path / "a.safetensors")
    found, images, space = read_embeddings(tmp_path / "a.safetensors")
    measured = measure_chains(CHAINS, IMAGES, found, images, space, 7)
    assert len(measured.metrics.precision) == 2 and -1 <= measured.values["d_corr"] <= 1
    assert measure_chains(CHAINS, IMAGES, found, None, space).values == {
        "d_corr": measured.values["d_corr"]
    }
    save_file(dict(texts=texts.half(), root=torch.zeros(5)), tmp_path / "b.safetensors")
    assert read_embeddings(tmp_path / "b.safetensors")[0].dtype == torch.float32
    save_file(
        dict(texts=texts.half(), images=torch.ones(2, 5).double(), root=torch.zeros(5)),
        tmp_path / "d.safetensors",
    )
    assert {x.dtype for x in read_embeddings(tmp_path / "d.safetensors")[:2]} == {torch.float64}
    save_file(dict(texts=texts), tmp_path / "c.safetensors")
    with pytest.raises(HypvisionError, match=r"has texts \(3, 3, 5\). Expected: texts"):
        read_embeddings(tmp_path / "c.safetensors")


def test_embeddings_of_a_hyperboloid(tmp_path):
    """Two chains on rays of the hyperboloid and their images further out: all in order, all
    found."""
    rays = torch.eye(4)[:2, None] * torch.tensor([0.5, 1.0, 1.5])[:, None]  # (2, 3, 4)
    texts, images = lorentz.expmap0(rays, 0.5), lorentz.expmap0(2 * torch.eye(4)[:2], 0.5)
    save_file(dict(texts=texts, images=images, c=torch.tensor(0.5)), tmp_path / "a.safetensors")
    found, seen, space = read_embeddings(tmp_path / "a.safetensors")
    assert isinstance(space, Hyperboloid) and space.c == 0.5
    values = measure_chains(
        [("a", "b", "c"), ("d", "e", "f")], ["1", "2"], found, seen, space
    ).values
    assert values["d_corr"] == 1 and values["recall"] == 1 and values["level3_R@1"] == 1
    apart = measure_chains(
        [("a", "b", "c"), ("d", "e", "f")], ["1", "2"], found.flip(1), seen, space
    ).values
    assert apart["d_corr"] == -1


@each(
    "changes, message",
    [
        (dict(root=torch.zeros(4)), r"root \(4,\).* of the same d"),
        (dict(images=torch.ones(2, 4), root=torch.zeros(5)), r"images \(2, 4\)"),
        (dict(c=torch.tensor(0.5)), "texts of .* are not points of a hyperboloid with c = .*0.5"),
        (dict(c=torch.tensor(-1.0)), "Expected: c > 0"),
        (dict(c=torch.ones(2)), "Expected: c > 0"),
        (dict(images=torch.ones(5), c=torch.ones(1)), r"images \(5,\)"),
    ],
)
def test_files_of_embeddings_that_do_not_fit(tmp_path, changes, message):
    save_file(dict(texts=torch.ones(3, 3, 5), **changes), tmp_path / "a.safetensors")
    with pytest.raises(HypvisionError, match=message):
        read_embeddings(tmp_path / "a.safetensors")


def test_mistakes_in_embeddings_are_told():
    texts, images, space = torch.randn(3, 3, 5), torch.randn(2, 5), Sphere(torch.zeros(5))
    broken = texts.clone()
    broken[1, 2, 0] = float("nan")
    with pytest.raises(HypvisionError, match=r"'f' \(row 2, level 3\) is not finite"):
        measure_chains(CHAINS, IMAGES, broken, images, space)
    with pytest.raises(HypvisionError, match=r"'f' \(row 7, level 3\)"):
        measure_chains(CHAINS, IMAGES, broken, images, space, rows=[3, 7, 8])
    with pytest.raises(HypvisionError, match=r"image '2' \(row 2 of images\) is not finite"):
        measure_chains(CHAINS, IMAGES, texts, torch.stack([images[0], broken[1, 2]]), space)
    with pytest.raises(HypvisionError, match="the image in row 3 has no chain"):
        measure_chains(CHAINS, IMAGES, texts, torch.randn(3, 5), space)
    with pytest.raises(HypvisionError, match="the chain in row 2 has no image"):
        measure_chains(CHAINS, IMAGES, texts, images[:1], space)
    with pytest.raises(HypvisionError, match="3 chains of 2 texts"):
        measure_chains(CHAINS, IMAGES, texts[:, :2], images, space)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(("1.jpg", "2.png")):
        Image.new("RGB", (80, 64 + 40 * number), (90 * number, 60, 0)).save(tmp_path / name)
    return tmp_path


def test_pictures_are_found_and_embedded(folder, clip):
    files = find_image_files(IMAGES, folder)
    assert files == {"x/1.jpg": folder / "1.jpg", "2": folder / "2.png"}
    every = embed_images(clip, list(files.values()))
    assert torch.allclose(every.norm(dim=-1), torch.ones(2)) and every.shape == (2, 128)
    assert torch.allclose(embed_images(clip, [files["2"]])[0], every[1], atol=1e-5)
    measured = measure_clip(clip, CHAINS, IMAGES, files)
    assert measured.texts.shape == (3, 3, 128) and torch.equal(
        measured.texts[0, 0], measured.texts[2, 0]
    )
    assert len(measured.metrics.predicted) == 2
    with pytest.raises(
        HypvisionError, match="1 of 3 images .* the first is 'http://y/3.jpg' of row 4"
    ):
        find_image_files([*IMAGES, "http://y/3.jpg"], folder)
    with pytest.raises(HypvisionError, match="the first is '1.5' of row 1"):  # not the image of 1
        find_image_files(["1.5"], folder)
    with pytest.raises(HypvisionError, match="no folder of images"):
        find_image_files(IMAGES, folder / "none")


def test_tree_of_class_folders(folder, clip):
    (folder / "tree/cat").mkdir(parents=True)
    (folder / "1.jpg").rename(folder / "tree/cat/1.jpg")
    found, count = measure_tree(clip, folder / "tree", LabelTree({"cat": ["animal"]}, {}))
    assert found["tree_R@5"] == 1.0 and count == 1
    wide = LabelTree({"cat": ["animal"], **{f"thing {i}": ["object"] for i in range(40)}}, {})
    with mock.patch(
        "hypvision.clip.radial.measure.tree_recall",
        lambda similarity, labels, lineage: similarity.shape,
    ):
        assert measure_tree(clip, folder / "tree", wide)[0] == (
            1,
            43,
        )  # classes without a folder are candidates, too
    with pytest.raises(HypvisionError, match="lacks the class 'cat'"):
        measure_tree(clip, folder / "tree", LabelTree({"dog": ["animal"]}, {}))
    with pytest.raises(HypvisionError, match="no images in class folders"):
        measure_tree(clip, folder / "none", LabelTree({}, {}))


def test_trees_of_json_and_of_breeds(folder, tmp_path, clip):
    (tmp_path / "tree.json").write_text('{"cat": ["animal"]}')
    assert read_tree(tmp_path / "tree.json") == ({"cat": ["animal"]}, {})
    breeds = tmp_path / "breeds"
    breeds.mkdir()
    (breeds / "class_hierarchy.txt").write_text("n1 n2\nn2 dummy1\ndummy1 n3\nn1 n4\nn4 n3\n")
    (breeds / "node_names.txt").write_text(
        "n1\tentity\nn2\tfeline, felid\ndummy1\tfeline\nn3\ttabby, queen\nn4\tpet\n"
    )
    tree = read_tree(breeds)
    assert tree.ancestors["n3"] == ["dummy1", "n4", "n2", "n1"] and tree.ancestors["n1"] == []
    assert tree.names["n2"] == tree.names["dummy1"] == "feline" and tree.names["n3"] == "tabby"
    (folder / "images/n3").mkdir(parents=True)
    (folder / "1.jpg").rename(folder / "images/n3/1.jpg")
    found, _ = measure_tree(clip, folder / "images", tree)
    assert found == {
        "tree_R@1": 0.25,
        "tree_R@5": 1.0,
    }  # tabby, feline, pet, entity: the dummy is no name of its own


@each(
    "name, text, message",
    [
        (
            "class_hierarchy.txt",
            "n1 n2\nn3\n",
            "Line 2 of .*class_hierarchy.txt' is 'n3'. Expected: PARENT CHILD",
        ),
        ("node_names.txt", "n1 entity\n", "Line 1 of .*node_names.txt"),
        ("tree.json", "[1]", "A tree is a dict of lists"),
        ("tree.json", "{", "cannot be read"),
    ],
)
def test_mistakes_in_trees(tmp_path, name, text, message):
    (tmp_path / "class_hierarchy.txt").write_text("n1 n2\n")
    (tmp_path / name).write_text(text)
    with pytest.raises(HypvisionError, match=message):
        read_tree(tmp_path / name if name.endswith("json") else tmp_path)
    with pytest.raises(HypvisionError, match="There is no file"):
        read_tree(tmp_path / "none.json")
