"""A tiny model and a valid record for it, shared by the tests of the zoo."""

import hashlib

MICRO = dict(
    layers=[1, 1, 1, 1], dims=[8, 16, 24, 32], heads=[2, 2, 2, 2], head_dim=4, img_size=32,
    patch_size=2, fold=[4, 2, 1, 1], prop=[2, 2, 4, 2], pad="minimal", layer_scale=0.5,
)  # fmt: skip
NAME = "hcformer_nano.micro"


def make_item(path, **changes):
    """A valid record, as plain values, for a file."""
    data = path.read_bytes()
    return {
        "name": NAME,
        "task": "classification",
        "model": "hcformer_nano",
        "arguments": dict(MICRO),
        "config": "configs/hcformer/hcformer-nano_cifar10.py",
        "file": {
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "storage": "float32",
            "path": "weights/micro.safetensors",
        },
        "parameters": 1000,
        "input": {
            "size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 1.0,
            "interpolation": "bilinear",
        },
        "classes": ["one", "two", "three"],
        "metrics": [{"name": "top1", "value": 50.0, "data": "none", "measured": "us",
        "command": "hypvision test"}],
        "licence": "Apache-2.0", "date": "2026-01-31", "description": "A network for tests.",
        "intended_use": "Tests.", "data": "None.", "training": "none", "limits": ["Knows nothing."],
        **changes,
    }  # fmt: skip
