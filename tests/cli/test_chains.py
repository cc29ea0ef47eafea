"""``hypvision clip chains`` and ``make-chains`` from their arguments to their files."""

import json
import shutil

import pytest
import torch
from helpers.emoji import make_emoji
from safetensors.torch import save_file

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")

from hypvision.cli import main
from hypvision.clip.models import create_clip
from hypvision.clip.radial.weights import save_tower
from hypvision.data.chains import Chain, emoji_chains, read_chains, write_chains


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Emoji with their chains, a CLIP and a tuned text tower of it."""
    root = tmp_path_factory.mktemp("chains")
    make_emoji(root / "emoji", styles=("noto",))
    words = [
        "clip",
        "make-chains",
        "emoji",
        str(root / "chains.csv"),
        "--root",
        str(root / "emoji"),
        "--split",
        "test",
    ]
    assert main(words) == 0
    torch.manual_seed(0)
    clip = create_clip("emoji-s16")
    torch.save(clip.model.state_dict(), root / "clip.pt")
    with torch.no_grad():
        clip.model.text_projection.add_(0.05 * torch.randn_like(clip.model.text_projection))
    save_tower(clip.model, root / "tuned.safetensors")
    return root


def test_before_and_after(folder, tmp_path, capsys):
    shown = folder / "emoji/images/noto/test-0-1.png"
    words = [
        "clip",
        "chains",
        str(folder / "chains.csv"),
        "--clip",
        f"emoji-s16:{folder / 'clip.pt'}",
        "--device",
        "cpu",
    ]
    words += [
        "--tuned",
        str(folder / "tuned.safetensors"),
        "--images",
        str(folder / "emoji/images/noto"),
    ]
    assert main([*words, "--show", str(shown), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    report = json.loads((tmp_path / "out/chains.json").read_text())
    before, after = report["models"]["before"], report["models"]["after"]
    assert set(before) == set(after) and {"precision", "recall", "d_corr", "level2_R@1"} <= set(
        before
    )
    assert before != after and f"{before['recall']:.4f}  {after['recall']:.4f}" in text
    assert "before  threshold" in text and "after   threshold" in text and "  radius 0." in text
    assert (tmp_path / "out/00_test-0-1.png").is_file() and (tmp_path / "out/radii.png").is_file()


def test_texts_alone_and_the_other_walk(folder, tmp_path, capsys):
    words = [
        "clip",
        "chains",
        str(folder / "chains.csv"),
        "--clip",
        f"emoji-s16:{folder / 'clip.pt'}",
        "--out",
        str(tmp_path),
    ]
    shown = str(folder / "emoji/images/noto/test-1-2.png")
    assert (
        main(
            [
                *words,
                "--show",
                shown,
                "--traversal",
                "meru",
                "--candidates",
                str(folder / "chains.csv"),
            ]
        )
        == 0
    )
    assert set(json.loads((tmp_path / "chains.json").read_text())["models"]["model"]) == {"d_corr"}
    assert "threshold" in capsys.readouterr().out


def test_embeddings_of_a_file(folder, tmp_path, capsys):
    n = len(read_chains(folder / "chains.csv"))
    root = torch.nn.functional.normalize(torch.ones(6), dim=0)
    tensors = dict(texts=torch.randn(n, 4, 6) / 9 + 0.2, images=torch.randn(n, 6), root=root)
    save_file(tensors, tmp_path / "e.safetensors")
    words = [
        "clip",
        "chains",
        str(folder / "chains.csv"),
        "--embeddings",
        str(tmp_path / "e.safetensors"),
    ]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "embeddings" in capsys.readouterr().out
    noto, out = folder / "emoji/images/noto", str(tmp_path / "shown")
    assert main([*words, "--out", out, "--show", str(noto / "test-1-2.png")]) == 0
    assert (
        "  radius 0." in capsys.readouterr().out and (tmp_path / "shown/00_test-1-2.png").is_file()
    )
    assert main([*words, "--out", out, "--show", str(noto / "train-1-2.png")]) == 2
    assert f"train-1-2.png' has no chain in '{folder / 'chains.csv'}'" in capsys.readouterr().err
    (tmp_path / "twice.csv").write_text(
        "captions,image_url\na => b,http://x/val/1.jpg\nc => d,http://x/train/1.jpg\n"
    )
    save_file(
        dict(texts=torch.ones(2, 2, 6), images=torch.ones(2, 6), root=root),
        tmp_path / "twice.safetensors",
    )
    (tmp_path / "1.jpg").write_bytes((noto / "test-1-2.png").read_bytes())
    named = [
        "clip",
        "chains",
        str(tmp_path / "twice.csv"),
        "--embeddings",
        str(tmp_path / "twice.safetensors"),
    ]
    assert main([*named, "--out", out, "--show", str(tmp_path / "1.jpg")]) == 2
    assert "may mean http://x/val/1.jpg or http://x/train/1.jpg" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "out"), "--images", str(folder)]) == 2
    assert "--images has no effect with --embeddings" in capsys.readouterr().err
    for name, key, message in (
        ("more", dict(images=torch.randn(n + 1, 6)), f"the image in row {n + 1} has no chain"),
        (
            "nan",
            dict(texts=tensors["texts"].index_fill(0, torch.tensor([1]), torch.nan)),
            "(row 2, level 1) is not",
        ),
    ):
        save_file(tensors | key, tmp_path / f"{name}.safetensors")
        given = [
            "clip",
            "chains",
            str(folder / "chains.csv"),
            "--embeddings",
            str(tmp_path / f"{name}.safetensors"),
        ]
        assert main([*given, "--out", str(tmp_path / "out")]) == 2
        told = capsys.readouterr().err
        assert message in told and f"{name}.safetensors' and '{folder / 'chains.csv'}'" in told


@pytest.mark.slow
def test_hyperlex_and_a_tree(folder, tmp_path, capsys):
    """A tree of classes alone: its R@1 is zero-shot recognition, and follows the template."""
    lines = [
        "WORD1 WORD2 POS TYPE AVG_SCORE",
        "cat animal N h 6",
        "animal cat N h 1",
        "dog animal N h 5",
    ]
    (tmp_path / "hyperlex.txt").write_text("\n".join(lines))
    tree = {"mammal": [], "bird": [], "fruit": []}
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    for name in tree:
        (tmp_path / "images" / name).mkdir(parents=True)
        shutil.copy(folder / "emoji/images/noto/test-0-1.png", tmp_path / "images" / name)
    words = [
        "clip",
        "chains",
        str(folder / "chains.csv"),
        "--clip",
        f"emoji-s16:{folder / 'clip.pt'}",
    ]
    words += ["--hyperlex", str(tmp_path / "hyperlex.txt"), "--tree", str(tmp_path / "tree.json")]
    words += ["--tree-images", str(tmp_path / "images")]
    found = []
    for template in ("{}", "a photo of a {}."):
        assert main([*words, "--template", template, "--out", str(tmp_path / "out")]) == 0
        found.append(json.loads((tmp_path / "out/chains.json").read_text())["models"]["model"])
        assert found[-1]["tree_R@1"] == pytest.approx(1 / 3)  # one image in all three classes
    assert found[0]["d_corr"] == found[1]["d_corr"] and -1 <= found[1]["rho_all"] <= 1
    (tmp_path / "images/bird/broken.png").write_bytes(b"no image")
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "1 of 5 images are left out." in capsys.readouterr().err


def test_own_captions(tmp_path, capsys):
    (tmp_path / "captions.csv").write_text("image,caption\n1.jpg,a bowl of ramen\n2.jpg,nothing\n")
    (tmp_path / "terms.csv").write_text(
        "word,broader\nramen,dish\npizza,dish\ndish,food\nfruit,food\ndog,animal\n"
    )
    words = [
        "clip",
        "make-chains",
        "captions",
        str(tmp_path / "out.csv.gz"),
        "--captions",
        str(tmp_path / "captions.csv"),
    ]
    assert main([*words, "--terms", str(tmp_path / "terms.csv")]) == 0
    assert "1 of 2 captions have a chain" in capsys.readouterr().out
    (chain,) = read_chains(tmp_path / "out.csv.gz")
    assert chain.texts == ("food", "dish", "ramen", "a bowl of ramen") and chain.image == "1.jpg"
    assert main(words) == 2 and "needs --captions FILE and --terms" in capsys.readouterr().err
    emoji = make_emoji(tmp_path / "emoji")
    line = ["clip", "make-chains", "emoji", str(tmp_path / "emoji.csv"), "--root", str(emoji)]
    assert main(line) == 0
    assert read_chains(tmp_path / "emoji.csv") == emoji_chains(emoji, "train")


def test_mistakes_are_told(folder, tmp_path, capsys):
    clip = ["--clip", f"emoji-s16:{folder / 'clip.pt'}", "--out", str(tmp_path / "out")]
    weights = torch.load(folder / "clip.pt", weights_only=True)
    weights["text_projection"].fill_(3e38)  # finite, but no embedding is
    torch.save(weights, tmp_path / "large.pt")
    write_chains(
        tmp_path / "bare.csv", [Chain(("a", "b"), ("c", "d")), Chain(("c", "d"), ("a", "b"))]
    )
    for words, message in (
        ([str(tmp_path / "none.csv"), *clip], "There is no table"),
        ([str(tmp_path / "bare.csv"), *clip, "--images", str(folder)], "name no images"),
        ([str(folder / "chains.csv"), *clip, "--tree", "x.json"], "only with --tree-images"),
        (
            [str(folder / "chains.csv"), *clip, "--images", str(tmp_path)],
            "images of the chains have no file",
        ),
        (
            [str(folder / "chains.csv"), *clip, "--tuned", str(tmp_path / "none.pth")],
            "There is no checkpoint",
        ),
        ([str(folder / "chains.csv"), *clip, "--steps", "0"], "at least 1"),
        ([str(folder / "chains.csv"), *clip, "--candidates", "x.csv"], "only with --show"),
        (
            [str(folder / "chains.csv"), *clip, "--hyperlex", "x", "--template", "a photo"],
            "must contain {} once",
        ),
        (
            [str(folder / "chains.csv"), *clip, "--hyperlex", "x", "--template", "{0} {}"],
            "must contain {} once",
        ),
        (
            [str(folder / "chains.csv"), *clip, "--clip", f"emoji-s16:{tmp_path / 'large.pt'}"],
            f"large.pt' and '{folder / 'chains.csv'}': The embedding of",
        ),
    ):
        assert main(["clip", "chains", *words]) == 2
        assert message in capsys.readouterr().err
