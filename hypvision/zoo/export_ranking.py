"""Export a CLIP as a folder that needs no PyTorch: both towers in ONNX, their tokenizer, the
numbers for the ranking, and a file for numpy that ranks and walks (:mod:`hypvision.zoo.rank`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.measure import rooted
from hypvision.clip.spaces import Lifted, Sphere
from hypvision.clip.towers import logit_scale_of
from hypvision.data.classes import TEMPLATES
from hypvision.data.preprocessing import preprocessing_of
from hypvision.io import HypvisionError, Plain, StrPath, require
from hypvision.io.files import check_new_folder, replacing_folder

from .export import ExportReport, export_network
from .export_clip import TOWERS, clip_tower

# The pattern by which CLIP cuts a text into words, before it merges pairs of their bytes.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def export_ranking(
    clip: CLIPBundle,
    folder: StrPath,
    tell: Callable[[str], None] = lambda _: None,
    half: bool = False,
) -> dict[str, ExportReport]:
    """Write ``image.onnx``, ``text.onnx``, ``tokenizer.json``, ``clip.json`` and ``rank.py`` into a
    new or empty folder.

    Args:
        clip: the CLIP, on the CPU.
        folder, tell, half: as ``path``, ``tell`` and ``half`` of
            :func:`~hypvision.zoo.export.export_network`.

    Returns:
        For each tower its comparison with PyTorch.

    Raises:
        HypvisionError: the folder is not empty; the CLIP has another tokenizer than OpenAI's; its
            images are neither squares cut from the centre nor squeezed; or an error of
            :func:`~hypvision.zoo.export.export_network`.
    """
    folder = check_new_folder(folder)
    tokenizer = tokenizer_of(clip)
    towers = {part: clip_tower(clip, part) for part in TOWERS}
    about = _about(clip, towers)
    reports = {}
    with replacing_folder(folder) as temporary:
        for part, (network, shape, described) in towers.items():
            tell(f"The {part} tower")
            path = temporary / f"{part}.onnx"
            reports[part] = export_network(
                network, shape, "onnx", path, False, "points", tell, described, half
            )
        tokenizer.save(str(temporary / "tokenizer.json"))
        text = json.dumps(about, indent=1, ensure_ascii=False)
        (temporary / "clip.json").write_text(text + "\n", encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name("rank.py"), temporary / "rank.py")
    return reports


def _about(clip: CLIPBundle, towers: Plain) -> Plain:
    """Return the content of ``clip.json``."""
    view = preprocessing_of(clip.model)
    height, width = view.size
    if view.resize_mode == "longest" or (view.resize_mode == "shortest" and height != width):
        raise HypvisionError(
            f"The images of this CLIP are {height}x{width} in the mode '{view.resize_mode}', but "
            "the exported rank.py only cuts squares or squeezes images. Export the towers one by "
            "one: --part image."
        )
    _, input_size, about = towers["image"]
    _, (context,), _ = towers["text"]
    about = about | dict(
        input_size=input_size,
        context=context,
        ends=getattr(clip.tokenizer, "ends", True),
        logit_scale=logit_scale_of(clip.model).exp().item(),
        templates=clip.templates or TEMPLATES["catseg"],
        classes=clip.words,
    )
    space = rooted(clip)
    if isinstance(space, Sphere):
        return about | dict(root=space.root.tolist())
    assert isinstance(space, Lifted)
    scales = {part: torch.as_tensor(scale).tolist() for part, scale in space.scales.items()}
    return about | dict(min_radius=space.min_radius, scales=scales)


def tokenizer_of(clip: CLIPBundle) -> Any:
    """Return CLIP's tokenizer as one of the library tokenizers, which gives the same tokens."""
    from open_clip import SimpleTokenizer

    own = clip.tokenizer
    if not isinstance(own, SimpleTokenizer):
        raise HypvisionError(
            "This CLIP has another tokenizer than OpenAI's, which rank.py does not read. Export "
            "the towers one by one: --part text."
        )
    library = require("tokenizers", "export")
    split = library.pre_tokenizers.Split(library.Regex(_WORDS), "removed", invert=True)
    normalizers = library.normalizers
    parts = [normalizers.NFC(), normalizers.Lowercase()]
    bytes_of = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model = library.models.BPE(own.encoder, [*own.bpe_ranks], end_of_word_suffix="</w>")
    found = library.Tokenizer(model)
    found.normalizer = normalizers.Sequence(parts)
    found.pre_tokenizer = library.pre_tokenizers.Sequence([split, bytes_of])
    start, end = (own.decoder[number] for number in own.all_special_ids)
    found.add_special_tokens([start, end])
    found.post_processor = library.processors.TemplateProcessing(
        single=f"{start} $A {end}",
        special_tokens=[(start, own.sot_token_id), (end, own.eot_token_id)],
    )
    return found
