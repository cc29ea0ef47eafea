"""One small network of every family in timm's registry, for tests that all of them must pass."""

from typing import Any, NamedTuple

import timm
import torch
from torch import nn

import hypvision.models  # noqa: F401 - registers them


class Family(NamedTuple):
    """A network: timm's name, its arguments, the side of its images."""

    model: str
    arguments: dict[str, Any]
    side: int

    def create(self, **changes: Any) -> nn.Module:
        """The network in eval mode, with weights that no other has."""
        model = timm.create_model(
            self.model, **{"num_classes": 7, **self.arguments, **changes}
        ).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
        return model

    def images(self, count: int = 2) -> torch.Tensor:
        """Images for it (count, 3, side, side)."""
        return torch.randn(
            count, 3, self.side, self.side, generator=torch.Generator().manual_seed(2)
        )


_HCFORMER = dict(
    layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4, img_size=32,
    patch_size=2, fold=(4, 2, 1, 1), prop=(2, 2, 4, 2), pad="minimal",
)  # fmt: skip
_RESNET = dict(layers=(1, 1, 1, 1), widths=(8, 16, 24, 32))
_HIMAPPER = dict(leaves=8, levels=3, eval_noise="mean")
FAMILIES = {
    "hcformer": Family("hcformer_nano", _HCFORMER, 32),
    "hcformer-tag": Family("hcformer_nano.cifar10", {}, 32),
    "hcnn": Family("hcnn_resnet18", _RESNET, 32),
    "hcnn-plus": Family("hcnn_resnet18", dict(_RESNET, plus=True), 32),
    "hecnn": Family("hecnn_resnet18", _RESNET, 32),
    "hecnn-core": Family("hecnn_resnet50", dict(_RESNET, stem="imagenet"), 64),
    "lvit": Family(
        "lvit_tiny", dict(img_size=32, patch_size=8, embed_dim=12, depth=2, num_heads=2), 32
    ),
    "hexformer": Family(
        "hexformer_tiny",
        dict(img_size=32, patch_size=8, embed_dim=12, depth=2, num_heads=2, hidden_dim=16),
        32,
    ),
    "himapper-cnn": Family(
        "himapper", dict(backbone="resnet10t", channels=(8, 16, 16, 32), **_HIMAPPER), 64
    ),
    "himapper-vit": Family("himapper", dict(backbone="test_vit", **_HIMAPPER), 160),
    "himapper-official": Family(
        "himapper_deit_tiny_patch16_224", dict(depth=2, preset="official", eval_noise="mean"), 224
    ),
}


def swin_mask(side: int, window: int, shift: int) -> torch.Tensor:
    """The mask (windows, N, N) that old Swins store: -100 between pixels of a window of the shifted
    map that lie on two sides of its seam."""

    def region(place: int) -> int:
        return (place >= side - window) + (place >= side - shift)

    windows = []
    for top in range(0, side, window):
        for left in range(0, side, window):
            regions = torch.tensor(
                [
                    [3 * region(top + row) + region(left + column) for column in range(window)]
                    for row in range(window)
                ]
            ).flatten()
            windows.append(torch.where(regions[:, None] == regions, 0.0, -100.0))
    return torch.stack(windows)
