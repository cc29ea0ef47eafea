#!/usr/bin/env python
"""What does a classifier make of images unlike its training's?
``python studies/robustness.py CONFIG WEIGHTS``.

Prints as JSON the accuracy on the test images of the config as they are, with noise and with blur,
and for each folder of images of other things how well they are told from the test images: the area
under the ROC curve (1 is perfect, 0.5 chance), by the largest logit and by the norm of the pooled
features. In a Lorentz network these are the space parts of points, whose norms have the order of
the radii. The methods are those of Hendrycks et al. (ICML 2022) for the logit and of Khrulkov et
al. (CVPR 2020) for the radius.

    python studies/robustness.py configs/hecnn/hecnn-resnet18-small_3e_cifar10.py
        work_dirs/hecnn/epoch_3.pth \\ --outliers data/omniglot/images data/emoji/images
        --cfg-options data_root=data/cifar10
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from hypvision.io.errors import HypvisionError, guard
from hypvision.io.images import open_image

NOISE = 0.1  # deviation of the added noise, where black is 0 and white 1
BLUR = 1.0  # deviation of the Gaussian, pixels


def damaged(images: Tensor, std: Iterable[float]) -> dict[str, Tensor]:
    """Normalised images (B, 3, H, W) as they are, with noise and blurred; ``std`` is that of the
    normalisation."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    width = 2 * round(3 * BLUR) + 1
    return {
        "clean": images,
        "noise": images + noise * NOISE / torch.tensor(list(std)).view(-1, 1, 1),
        "blur": gaussian_blur(images, [width, width], [BLUR, BLUR]),
    }


@torch.no_grad()
def scores(network: Any, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The best class of each image (B,), and how well known the images look, by ``logit`` and
    ``norm``."""
    features = network.forward_features(images)
    logits = network.forward_head(features)
    pooled = network.forward_head(features, pre_logits=True)
    return logits.argmax(1), {"logit": logits.amax(1), "norm": pooled.norm(dim=1)}


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Share of the pairs of a known and an unknown image in which the known one has the larger
    score; ties half."""
    return float(mannwhitneyu(known.numpy(), unknown.numpy()).statistic) / (
        len(known) * len(unknown)
    )


def outliers(folder: str | Path, transform: Any, count: int) -> Tensor:
    """``count`` images, spread evenly over all below the folder."""
    paths = sorted(
        path for path in Path(folder).rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg")
    )
    if not paths:
        raise HypvisionError(
            f"There are no PNG or JPEG images below '{folder}': give a folder that has some."
        )
    picked = [paths[i * len(paths) // count] for i in range(count)] if count < len(paths) else paths
    return torch.stack([transform(open_image(path)) for path in picked])


def measure(
    network: Any,
    loader: Any,
    std: Iterable[float],
    folders: Iterable[str | Path],
    count: int = 2000,
) -> dict:
    """Accuracies in percent and areas under the ROC curve.

    Args:
        network: a timm model in evaluation mode.
        loader: batches ``dict(inputs=..., label=...)`` of the test images.
        std: of the normalisation of the images.
        folders: images of other things.
        count: how many of each folder.
    """
    std = list(std)
    right = {"clean": 0, "noise": 0, "blur": 0}
    total = 0
    known = []
    for batch in loader:
        total += len(batch["label"])
        for kind, images in damaged(batch["inputs"], std).items():
            best, found = scores(network, images)
            right[kind] += int((best == batch["label"]).sum())
            if kind == "clean":
                known.append(found)
    row = {f"top1_{kind}": 100 * number / total for kind, number in right.items()}
    for folder in map(Path, folders):
        images = outliers(folder, loader.dataset.transform, count)
        unknown = [scores(network, part)[1] for part in images.split(250)]
        for way in ("logit", "norm"):
            pair = (torch.cat([part[way] for part in parts]) for parts in (known, unknown))
            row[f"auroc_{way}_{named(folder)}"] = auroc(*pair)
    return row


def named(folder: Path) -> str:
    """A data set's name: its folder, or that above ``images``."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "images" else folder.name


def run(args: Namespace) -> None:
    from mmengine.registry import MODELS
    from mmengine.runner import Runner, load_checkpoint

    import hypvision.tasks  # noqa: F401 - registers the classifier
    from hypvision.engine.config import load_config, parse_options
    from hypvision.tasks.publishing import image_input

    names = [named(Path(folder)) for folder in args.outliers]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise HypvisionError(
            f"--outliers: several folders are called '{twice[0]}'. Give them names of their own."
        )

    config = load_config(args.config, parse_options(args.cfg_options))
    if config.model.type != "ImageClassifier":
        raise HypvisionError(
            f"'{args.config}' trains a {config.model.type}, not an ImageClassifier."
        )
    model = MODELS.build(config.model)
    load_checkpoint(model, args.weights, map_location="cpu", strict=True)
    loader = Runner.build_dataloader(config.test_dataloader)
    std = image_input(config)["std"]
    print(
        json.dumps(
            measure(model.backbone.eval(), loader, std, args.outliers, args.images), indent=1
        )
    )


if __name__ == "__main__":
    parser = ArgumentParser(
        description="Accuracy with noise and blur, and how well images of other things are noticed."
    )
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("weights", metavar="WEIGHTS")
    parser.add_argument(
        "--outliers", nargs="+", default=[], metavar="DIR", help="folders of images of other things"
    )
    parser.add_argument(
        "--images", type=int, default=2000, metavar="N", help="of each folder (default: 2000)"
    )
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the config"
    )
    sys.exit(guard(run, parser.parse_args()))
