"""Everything that the goldens take from hypvision, in one place: when names move, this file follows
and no other.

Each function imports what it needs when it is called, so that a name that has moved fails its own
cases alone.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

# Arguments of the adapter's configuration whose names may change.
OFFICIAL_CLASS_TOKEN = dict(official_dense_only=True)

# Image models


def create_model(name: str, **arguments: Any) -> nn.Module:
    import timm

    import hypvision  # noqa: F401 - registers the models in timm

    return timm.create_model(name, **arguments)


def registered_models() -> list[str]:
    """timm's names of the package's models."""
    import timm

    import hypvision  # noqa: F401

    return [
        name
        for name in timm.list_models()
        if timm.model_entrypoint(name).__module__.startswith("hypvision.")
    ]


def tree_noise(model: nn.Module) -> list[Tensor]:
    """Random numbers of the right shapes for ``forward_with_hierarchy(noise=...)``."""
    return model.mapper.tree.draw_noise(one_by_one=True)


def named_manifold_parameters(module: nn.Module):
    from hypvision.geometry import named_manifold_parameters

    return named_manifold_parameters(module)


def manifolds():
    from hypvision.geometry import Euclidean, Lorentz, PoincareBall

    return Lorentz, PoincareBall, Euclidean


# Layers, losses, optimisers


def layers() -> Any:
    """A namespace of all layers."""
    from hypvision import compat, nn

    return SimpleNamespace(
        **{name: getattr(package, name) for package in (compat, nn) for name in package.__all__}
    )


def losses() -> dict[str, Any]:
    """Losses and what belongs to them, by name."""
    from hypvision import losses
    from hypvision.clip.radius import hyperbolic_radius, radius_penalty
    from hypvision.clip.segmentation.segmenter import segmentation_loss
    from hypvision.losses import graph

    names = {name: getattr(losses, name) for name in losses.__all__}
    names |= {name: value for name, value in vars(graph).items() if not name.startswith("_")}
    return names | dict(
        hyperbolic_radius=hyperbolic_radius,
        radius_penalty=radius_penalty,
        segmentation_loss=segmentation_loss,
    )


def optimisers() -> dict[str, Any]:
    from hypvision.optim import RiemannianAdam, RiemannianSGD

    return dict(adam=RiemannianAdam, sgd=RiemannianSGD)


# CLIP


def inject_adapter(model: nn.Module, **options: Any) -> nn.Module:
    from hypvision.clip import adapters

    return adapters.inject(model, **options)


def adapter_weights(model: nn.Module) -> list[nn.Parameter]:
    """Text tower, then vision tower; block by block; query, key, value."""
    from hypvision.clip import adapters

    return adapters.trainable_parameters(model)


def is_adapted(model: nn.Module) -> bool:
    from hypvision.clip import adapters

    return adapters.is_injected(model)


def merge_adapter(model: nn.Module) -> nn.Module:
    from hypvision.clip import adapters

    return adapters.merge(model)


def save_adapter(model: nn.Module, path: Path) -> Path:
    from hypvision.clip import adapters

    return adapters.save(model, path)


def load_adapter(model: nn.Module, path: Path) -> nn.Module:
    from hypvision.clip import adapters

    return adapters.load(model, path)


def former_names(text: str) -> str:
    """Names of an adapter file as they were when the goldens were frozen."""
    text = re.sub(r"hyperclip\.([qkv])\b", r"hyperbolic_attn.adapter_attn_\1.weights", text)
    return "format hyperclip" if text == "adapter format" else text


def encode_text(model: nn.Module, tokens: Tensor, **options: Any) -> Tensor:
    from hypvision.clip import towers

    return towers.encode_text(model, tokens, **options)


def encode_dense(model: nn.Module, images: Tensor, **options: Any) -> Any:
    from hypvision.clip import towers

    return towers.encode_dense(model, images, **options)


def map_rows(x: Tensor, blocks: Tensor, c: float, mobius: bool = True) -> Tensor:
    from hypvision.clip.adapters.hyperclip import layer

    return layer.map_rows(x, blocks, c, mobius)


def aggregation_head(**options: Any) -> nn.Module:
    from hypvision.clip.segmentation.catseg import CATSegHead

    return CATSegHead(**options)


def segmenter(clip: nn.Module, **options: Any) -> nn.Module:
    from hypvision.clip.segmentation.segmenter import OpenVocabSegmenter

    return OpenVocabSegmenter(clip, **options)


# Models of mmseg and mmdet


def timm_backbone(name: str, levels: tuple[int, ...], **options: Any) -> nn.Module:
    from hypvision.openmmlab import TimmBackbone

    return TimmBackbone(name, levels, **options)


def mmseg_segmentor(**options: Any) -> nn.Module:
    from hypvision.openmmlab.open_vocabulary.segmentation import HyperCLIPSegmentor

    return HyperCLIPSegmentor(**options)


def model_of_config(name: str) -> nn.Module:
    """The model of a config of the drawn shapes, with an untrained CLIP."""
    from hypvision.engine.config import load_config

    config = load_config(Path(__file__).parents[1] / "helpers/shapes/configs" / name)
    from mmdet.registry import MODELS

    return MODELS.build(config.model)


# Tasks of the engine


def engine_model(**config: Any) -> nn.Module:
    """A model of the engine's registry."""
    from mmengine.registry import MODELS

    import hypvision.openmmlab
    import hypvision.tasks.metric_learning  # noqa: F401

    return MODELS.build(config)


# Trained weights and official checkpoints


def zoo_records() -> list[Any]:
    from hypvision.zoo import builtin_index

    return list(builtin_index())


def load_from_zoo(name: str) -> nn.Module:
    import hypvision

    return hypvision.load(name)


def converter(family: str) -> Any:
    """Has ``from_official``, ``to_official`` and ``variant``, functions of state dicts."""
    from hypvision.zoo.convert import CONVERTERS

    return CONVERTERS[family]
