"""Every family that takes a depth refuses one that would take hours to build, at once."""

import pytest
import timm
from helpers.cases import each

import hypvision.models  # noqa: F401 - registers them
from hypvision.helm.config import preset
from hypvision.io.errors import ArgumentError
from hypvision.models.timm_models import create_model

MANY = 10**6
FAMILIES = {
    "hcformer": lambda: timm.create_model("hcformer_nano", layers=(1, MANY, 1, 1)),
    "hcnn": lambda: timm.create_model("hcnn_resnet18", layers=(1, MANY, 1, 1)),
    "hecnn": lambda: timm.create_model("hecnn_resnet18", layers=(1, MANY, 1, 1)),
    "himapper": lambda: timm.create_model("himapper_deit_tiny_patch16_224", depth=MANY),
    "timm": lambda: create_model("vit_tiny_patch16_224", depth=MANY),
    "timm, stages": lambda: create_model("swin_tiny_patch4_window7_224", depths=[2, 2, MANY, 2]),
    "helm": lambda: preset("helm_d_tiny", n_layers=MANY),
}


@pytest.mark.timeout(30)
@each("family", FAMILIES)
def test_a_million_layers(family):
    with pytest.raises(ArgumentError, match=r"(layers|depths?) must be .*1000.*000000"):
        FAMILIES[family]()
