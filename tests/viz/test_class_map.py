"""Grad-CAM against its closed form where the head is a mean and a linear layer, and its shapes."""

import numpy as np
import pytest
import timm
import torch
from helpers.cases import each
from PIL import Image

import hypvision.models  # noqa: F401 - registers the models
from hypvision.viz.class_map import class_map, draw_class_map


def test_of_a_mean_and_a_linear_head():
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=5).eval()
    x = torch.randn(1, 3, 64, 96)
    heat = class_map(model, x, 3)
    with torch.no_grad():
        features = model.forward_features(x)[0]
        # the gradient of the logit is the same at each place: the weight by the number of places
        expected = (model.fc.weight[3][:, None, None] * features).sum(0).relu()
    assert torch.allclose(heat, expected / expected.max(), atol=1e-5)
    best = int(model(x).argmax())
    assert torch.equal(class_map(model, x), class_map(model, x, best))


TOKEN = dict(class_token=True, global_pool="token")


@each(
    "name, options",
    [
        ("test_vit", {}),
        ("test_convnext", {}),
        ("hcformer_nano", {}),
        ("hecnn_resnet18", {}),
        ("lvit_tiny", dict(depth=2)),
        ("lvit_tiny", dict(depth=2, **TOKEN)),
        ("hexformer_tiny", dict(depth=2)),
        ("hexformer_tiny", dict(depth=2, global_pool="avg")),
        ("himapper", dict(backbone="resnet10t")),
    ],
)
def test_a_map_of_each_kind_of_network(name, options):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).requires_grad_(False).train()
    size = model.pretrained_cfg["input_size"][1]
    heat = class_map(model, torch.randn(1, 3, size, size))
    assert heat.dim() == 2 and heat.min() >= 0 and heat.max() == pytest.approx(1)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_red_where_the_map_is_high():
    heat = torch.tensor([[0.0, 1.0]])
    drawn = np.asarray(draw_class_map(Image.new("RGB", (40, 20), (100, 100, 100)), heat))
    assert drawn[10, 0].tolist() == [100, 100, 100]
    red, green, blue = drawn[10, 39].tolist()
    assert red > 170 and green < 60 and blue < 60
