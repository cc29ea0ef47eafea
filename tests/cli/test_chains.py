"""``hypvision clip chains`` and ``make-chains`` from their arguments to their files."""

import json

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
    words = (
        f"clip make-chains emoji {root / 'chains.csv'} --root {root / 'emoji'} --split test"
    ).split()
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
    words = (
        f"clip chains {folder / 'chains.csv'} --clip emoji-s16:{folder / 'clip.pt'} --device cpu"
    ).split()
    words += (
        f"--tuned {folder / 'tuned.safetensors'} --images {folder / 'emoji/images/noto'}".split()
    )
    assert main([*words, "--show", str(shown), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    report = json.loads((tmp_path / "out/chains.json").read_text())
    before, after = report["models"]["before"], report["models"]["after"]
    assert set(before) == set(after)
    assert {"precision", "recall", "d_corr", "level2_R@1"} <= set(before)
    assert before != after and f"{before['recall']:.4f}  {after['recall']:.4f}" in text
    assert "before  threshold" in text and "after   threshold" in text and "  radius 0." in text
    assert (tmp_path / "out/00_test-0-1.png").is_file() and (tmp_path / "out/radii.png").is_file()


def test_texts_alone_and_the_other_walk(folder, tmp_path, capsys):
    words = (
        f"clip chains {folder / 'chains.csv'} --clip emoji-s16:{folder / 'clip.pt'} "
        f"--out {tmp_path}"
    ).split()
    shown = str(folder / "emoji/images/noto/test-1-2.png")
    assert (
        main(
            [
                *words,
                *f"--show {shown} --traversal meru --candidates {folder / 'chains.csv'}".split(),
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
    words = f"clip chains {folder / 'chains.csv'} --embeddings {tmp_path / 'e.safetensors'}".split()
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "embeddings" in capsys.readouterr().out
    noto, out = folder / "emoji/images/noto", str(tmp_path / "shown")
    assert main([*words, "--out", out, "--show", str(noto / "test-1-2.png")]) == 0
    assert "  radius 0." in capsys.readouterr().out
    assert (tmp_path / "shown/00_test-1-2.png").is_file()
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
    named = (
        f"clip chains {tmp_path / 'twice.csv'} --embeddings {tmp_path / 'twice.safetensors'}"
    ).split()
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
            *f"clip chains {folder / 'chains.csv'} --embeddings".split(),
            str(tmp_path / f"{name}.safetensors"),
        ]
        assert main([*given, "--out", str(tmp_path / "out")]) == 2
        told = capsys.readouterr().err
        assert message in told and f"{name}.safetensors' and '{folder / 'chains.csv'}'" in told


def test_own_captions(tmp_path, capsys):
    (tmp_path / "captions.csv").write_text("image,caption\n1.jpg,a bowl of ramen\n2.jpg,nothing\n")
    (tmp_path / "terms.csv").write_text(
        "word,broader\nramen,dish\npizza,dish\ndish,food\nfruit,food\ndog,animal\n"
    )
    words = (
        f"clip make-chains captions {tmp_path / 'out.csv.gz'} --captions "
        f"{tmp_path / 'captions.csv'}"
    ).split()
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
    weights = torch.load(folder / "clip.pt", weights_only=True)
    weights["text_projection"].fill_(3e38)  # finite, but no embedding is
    torch.save(weights, tmp_path / "large.pt")
    bare = [Chain(("a", "b"), ("c", "d")), Chain(("c", "d"), ("a", "b"))]
    write_chains(tmp_path / "bare.csv", bare)
    chains = folder / "chains.csv"
    for words, mentioned in (
        ([tmp_path / "none.csv"], "There is no table"),
        ([tmp_path / "bare.csv", "--images", folder], "name no images"),
        ([chains, "--tree", "x.json"], "--tree-images"),
        ([chains, "--images", tmp_path], "have no file"),
        ([chains, "--tuned", tmp_path / "none.pth"], "There is no checkpoint"),
        ([chains, "--steps", "0"], "at least 1"),
        ([chains, "--candidates", "x.csv"], "--show"),
        ([chains, "--hyperlex", "x", "--template", "a photo"], "{}"),
        ([chains, "--hyperlex", "x", "--template", "{0} {}"], "{}"),
        ([chains, "--clip", f"emoji-s16:{tmp_path / 'large.pt'}"], "large.pt"),
    ):
        clip = f"clip chains --clip emoji-s16:{folder / 'clip.pt'} --out {tmp_path / 'out'}"
        assert main([*clip.split(), *map(str, words)]) == 2
        assert mentioned in capsys.readouterr().err
