"""Convert official checkpoints to hypvision's state dicts, and back: ``hypvision zoo convert --from
NAME IN OUT``.

A converter is a pair of functions of state dicts, ``NAME_from_official`` and ``NAME_to_official``,
with a function ``NAME_variant`` that says which model the converted weights belong to. They are
defined beside the models; :func:`convert_file` applies them to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from hypvision.checkpoints.match import check_finite
from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.sources import fetch
from hypvision.checkpoints.storage import write_tensors
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip import hyperbolic_checkpoint as official_clip
from hypvision.clip.hugging_face import (
    clip_variant,
    from_hugging_face,
    is_hugging_face,
    to_hugging_face,
)
from hypvision.clip.prompting import official as few_shot
from hypvision.clip.segmentation import official as segmenter
from hypvision.helm import checkpoint as helm
from hypvision.helm.config import preset
from hypvision.io import HypvisionError, Plain, StrPath, Values, one_of, refuse
from hypvision.io.files import check_output, protecting, replacing
from hypvision.models import hcformer_checkpoint as hcformer
from hypvision.models import himapper_checkpoint as himapper
from hypvision.models import lorentz_resnet_checkpoint as hyperboliccv


class Converter(NamedTuple):
    """The functions by which the checkpoints of one family of models are converted.

    Attributes:
        title: name of the family for messages.
        is_official: function that says whether a state dict has the official names.
        from_official, to_official: functions that return a state dict with the other names.
        variant: function that returns for a state dict with hypvision's names the name of its
            model, and the arguments to create it with.
        arguments: function that returns further arguments of the model from the official state
            dict.
        options, back_options: names of arguments of ``variant`` and of ``to_official`` that no
            state dict determines, so the user gives them.
        as_saved: function that returns, for a state dict and an epoch, the content that the
            official code saves; None: the official code saves the state dict alone.
        read, files: functions for a model that the official code spreads over several files.
            ``read`` returns the content of all files from the path of one; ``files`` returns the
            files to write, from a state dict and such a path. None: the model has one file.
    """

    title: str
    is_official: Callable[[Weights], bool]
    from_official: Callable[[Weights], StateDict]
    to_official: Callable[..., StateDict]
    variant: Callable[..., tuple[str, Plain]]
    arguments: Callable[[Weights], Plain] = lambda state_dict: {}
    options: tuple[str, ...] = ()
    back_options: tuple[str, ...] = ()
    as_saved: Callable[[Weights, int], Plain] | None = None
    read: Callable[[Path], Values] = read_file
    files: Callable[[Weights, Path], dict[Path, Any]] | None = None


def _family(title: str, module: ModuleType, name: str, **rest: Any) -> Converter:
    """Return the converter of a module that defines the functions named above for ``name``."""
    names = (
        f"is_official_{name}",
        f"{name}_from_official",
        f"{name}_to_official",
        f"{name}_variant",
    )
    return Converter(title, *(getattr(module, each) for each in names), **rest)


# For each name on the command line its converter.
CONVERTERS = {
    "hcformer": _family(
        "HCFormer", hcformer, "hcformer", arguments=hcformer.hcformer_arguments,
        back_options=("curvature",)
    ),
    "helm": _family("HELM language model", helm, "helm", arguments=helm.helm_arguments),
    "himapper": _family("Hi-Mapper", himapper, "himapper", options=("backbone",)),
    "hyperboliccv": _family("HyperbolicCV ResNet", hyperboliccv, "hyperboliccv",
    back_options=("curvature",)),
    "hyperclip": Converter(
        "HyperCLIP segmenter", segmenter.is_official_hyperclip, segmenter.segmenter_from_official,
        segmenter.hyperclip_to_official, segmenter.segmenter_variant,
    ),
    "catseg": Converter(
        "CAT-Seg segmenter", segmenter.is_official_catseg, segmenter.segmenter_from_official,
        segmenter.catseg_to_official, segmenter.segmenter_variant,
    ),
    **{
        name: Converter(
            f"few-shot method {name}", partial(few_shot.is_official, name),
            partial(few_shot.from_official, name), partial(few_shot.to_official, name),
            partial(few_shot.variant, name), as_saved=few_shot.as_saved,
            read=few_shot.read_cache if name == "tip-adapter" else read_file,
            files=few_shot.cache_files if name == "tip-adapter" else None,
        )
        for name in few_shot.FEW_SHOT
    },
    "meru": Converter(
        "MERU, HyCoCLIP, UNCHA, PHyCLIP, ATMG or CLIP baseline", official_clip.is_official,
        official_clip.from_official,
        official_clip.to_official, official_clip.variant, read=official_clip.read_official,
        as_saved=official_clip.as_official,
    ),
    "hf-clip": Converter("open_clip CLIP", is_hugging_face, from_hugging_face, to_hugging_face,
    clip_variant),
}  # fmt: skip


_UNSAID = {
    "coop": "Where the class name stands is not in the checkpoint: position='end', unless it was "
    "trained otherwise.",
    "clip-adapter": "How much of the feature is adapted is not in the checkpoint: ratio=0.2, "
    "unless trained otherwise.",
    "tip-adapter": (
        "alpha and beta are not in the official files, but in the official code's config "
        "(init_alpha, init_beta): add them to the arguments."
    ),
}


class Conversion(NamedTuple):
    """The result of :func:`convert_file`.

    Attributes:
        path: the file that was written.
        model: name of the model that the file belongs to.
        arguments: arguments to create this model with.
    """

    path: Path
    model: str
    arguments: Plain

    def usage(self) -> str:
        """Return a line of Python, or for a segmenter a command, that uses the file."""
        if self.model.startswith(("hyperclip-", "catseg-")):
            return (
                f"hypvision test configs/hyperclip/{self.model}_4xb1-80k_coco-stuff164k.py "
                f"{self.path}"
            )
        if self.model.startswith("helm_"):
            context = (
                f", max_seq_len={self.arguments['max_seq_len']}"
                if "max_seq_len" in self.arguments
                else ""
            )
            return (
                f'hypvision.helm.huggingface.HelmForCausalLM.from_official("{self.path}"{context})'
            )
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        if self.model in few_shot.FEW_SHOT:
            return (
                f'load_learned(build_host(create_clip(...), "{self.model}"{arguments}), '
                f'"{self.path}")'
            )
        if self.model.startswith(("ViT-", "meru-", "clip-vit-", "uncha-", "phyclip-")):
            return f'hypvision.clip.models.create_clip("{self.model}", "{self.path}"{arguments})'
        return f'timm.create_model("{self.model}"{arguments}, checkpoint_path="{self.path}")'

    def note(self, to_official: bool = False) -> str:
        """Return sentences on settings that the user must know because the checkpoint does not
        contain them; empty for most models."""
        if to_official:
            told = (
                "Set init_alpha: {alpha:g} and init_beta: {beta:g} in the official config: these "
                "files cannot hold them."
            )
            return (
                told.format(**self.arguments) if {"alpha", "beta"} <= self.arguments.keys() else ""
            )
        if self.model in _UNSAID:
            return _UNSAID[self.model]
        if self.model.startswith("helm_"):
            options = helm.untold(preset(self.model, **self.arguments))
            given = ", ".join(
                f"{name}={value!r}" for name, value in options.items() if name not in self.arguments
            )
            return (
                f"Not in the checkpoint, so these published values are assumed: {given}. If the "
                "model was trained otherwise, give from_official() what differs. save_pretrained() "
                "then writes a folder for all of transformers."
            )
        if not self.model.startswith("hecnn_"):
            return ""
        return (
            "The radius at which a hybrid clips its features is not in the checkpoint. As "
            "published it is clip=1.0 (the default) for CIFAR, clip=4.0 for Tiny-ImageNet: add "
            "that to the arguments."
        )


def convert_file(
    family: str,
    source: StrPath,
    target: StrPath,
    to_official: bool = False,
    curvature: float | None = None,
    backbone: str | None = None,
) -> Conversion:
    """Convert a checkpoint file from the official names to hypvision's, or back.

    Args:
        family: a key of :data:`CONVERTERS`.
        source: ``.safetensors``, or ``.pth`` (``.pt``, ...) as PyTorch writes it, a folder that
            transformers wrote, or another name of a checkpoint
            (:func:`hypvision.checkpoints.sources.fetch`). The weights may be the whole content, or
            lie under ``state_dict`` or ``model``. No code in the file is run.
        target: path of the result, ``.safetensors``, ``.pth`` or ``.pt``; it appears complete or
            not at all.
        to_official: convert from hypvision's names to the official ones.
        curvature: curvature of an HCFormer or Lorentz ResNet that gets official names, if it is
            neither 1 nor learned.
        backbone: timm's name of a Hi-Mapper's backbone, if the shapes of the weights do not
            determine it.

    Returns:
        The file, the name of its model and the arguments to create the model with.
    """
    one_of(CONVERTERS, family=family)
    converter = CONVERTERS[family]
    target = Path(target).expanduser()
    options = dict(curvature=curvature, backbone=backbone)
    given = {name: value for name, value in options.items() if value is not None}
    useful = converter.back_options if to_official else converter.options
    useless = next((name for name in given if name not in useful), "")
    refuse(
        (useless, f"--{useless} has no use here: {_USES.get(useless)}."),
        (
            target.suffix not in (".safetensors", ".pth", ".pt"),
            f"The output '{target}' must end in .safetensors or .pth. Rename it.",
        ),
    )
    path = fetch(source)
    with protecting(path):
        check_output(target)
    checkpoint = converter.read(path)
    weights = network_weights(checkpoint)
    check_finite(weights, source)
    if converter.is_official(weights) == to_official:
        raise HypvisionError(_of_another_kind(source, converter, weights, to_official))
    if not to_official:
        converted = converter.from_official(weights)
        model, arguments = converter.variant(converted, **given)
        arguments = {**arguments, **converter.arguments(weights)}
        _write(_contiguous(converted), target)
        return Conversion(target, model, arguments)
    converted = converter.to_official(weights, **given)
    conversion = Conversion(target, *_published_variant(converter, converted))
    written = _contiguous(converted)
    if converter.files is not None:
        for file, content in converter.files(written, target).items():
            _write(content, file)
        return conversion
    if converter.as_saved is not None and target.suffix != ".safetensors":
        written = converter.as_saved(written, _epoch(checkpoint))
    _write(written, target)
    return conversion


def _contiguous(weights: Values) -> Plain:
    return {name: value.contiguous() for name, value in weights.items()}


def _epoch(checkpoint: Values) -> int:
    meta = checkpoint.get("meta")
    epoch = meta.get("epoch") if isinstance(meta, Mapping) else None
    return epoch if isinstance(epoch, int) else 0


def _of_another_kind(source: StrPath, converter: Converter, weights: Values, official: bool) -> str:
    """Return the message for weights that already have the names of the target, or belong to
    another family."""
    expected = f"{'hypvision' if official else 'official'} {converter.title}"
    hint = " It has official names already." if official else ""
    own = any(".mixer." in name or name.startswith("mapper.") for name in weights)
    if own and not official:
        hint = " It has hypvision's names already: leave it as it is, or add --to-official."
    return (
        f"'{source}' is not a checkpoint of an {expected}: it has entries such as "
        f"{', '.join(list(weights)[:3]) or 'none'}.{hint}"
    )


def _published_variant(converter: Converter, official: Any) -> tuple[str, Plain]:
    try:
        return converter.variant(converter.from_official(official))
    # The sizes are not published ones, but the names of the weights are the same.
    except HypvisionError:
        return f"{converter.title} of its own sizes", {}


_USES = {
    "curvature": "it is for HCFormers and Lorentz ResNets that get official names (--to-official)",
    "backbone": "it is for official Hi-Mappers (--from himapper)",
}


def _write(weights: Any, path: Path) -> None:
    if path.suffix == ".safetensors":
        write_tensors(weights, path)
        return
    with replacing(path) as temporary:
        torch.save(weights, temporary)
