"""What holds for batch norms of every geometry: freezing, chunks, single images, and running
statistics that are measured anew."""

import copy
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader, TensorDataset

from hypvision import compat
from hypvision import nn as hnn
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.engine.run import drop_single_image
from hypvision.geometry import Lorentz, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.nn.batch_statistics import HyperbolicBatchNorm
from hypvision.openmmlab.backbone import TimmBackbone
from hypvision.tasks import ImageClassifier
from hypvision.tasks.contrastive import CLIPContrast

SPACE = Lorentz(0.7)
BALL = PoincareBall(0.7)
NORMS = [
    nn.BatchNorm1d(3),
    nn.BatchNorm2d(3),
    hnn.LorentzBatchNorm1d(3, SPACE),
    hnn.LorentzBatchNorm2d(3, SPACE),
    compat.GyroLorentzBatchNorm1d(3, SPACE),
    compat.GyroLorentzBatchNorm2d(3, SPACE),
    compat.PoincareBatchNorm1d(3, BALL),
    compat.PoincareBatchNorm2d(3, BALL),
]
NETWORK = dict(model_name="hecnn_resnet18", num_classes=3, widths=(8, 8, 8, 8))


def name_of(layer):
    return type(layer).__name__


def norms_of(model):
    return {name: part for name, part in model.named_modules() if hnn.is_batch_norm(part)}


def test_every_batch_norm_of_the_package_is_listed():
    for room in (hnn, compat):
        for name in room.__all__:
            if "BatchNorm" in name:
                assert name in {name_of(norm) for norm in NORMS}
    assert all(map(hnn.is_batch_norm, NORMS))
    assert not hnn.is_batch_norm(hnn.LorentzLayerNorm(3))


def test_a_hyperbolic_network_has_both_kinds():
    found = norms_of(ImageClassifier(NETWORK)).values()
    assert {isinstance(part, HyperbolicBatchNorm) for part in found} == {True, False}


def test_frozen_norms_keep_their_statistics():
    frozen = ImageClassifier(NETWORK, freeze_bn=True).train()
    before = {name: part.running_var.clone() for name, part in norms_of(frozen).items()}
    images = torch.randint(0, 256, (4, 3, 32, 32)).float()
    frozen(images, torch.tensor([0, 1, 2, 0]), mode="loss")
    for name, part in norms_of(frozen).items():
        assert not part.training and torch.equal(part.running_var, before[name]), name
    half = ImageClassifier(NETWORK, frozen=("stem.*", "stages.0.*")).train()
    first = {name: "stem" in name or "stages.0." in name for name in norms_of(half)}
    assert {part.training for name, part in norms_of(half).items() if first[name]} == {False}
    assert all(part.training for name, part in norms_of(half).items() if not first[name])


def test_norm_eval_of_a_backbone():
    backbone = TimmBackbone("hecnn_resnet18", norm_eval=True, widths=(8, 8, 8, 8)).train()
    assert not any(part.training for part in norms_of(backbone).values())


def test_chunks_are_refused():
    for norm in NORMS:
        bundle: CLIPBundle = create_clip("emoji-t8")
        bundle.model.visual.head = copy.deepcopy(norm)
        with pytest.raises(HypvisionError, match="batch norms"):
            CLIPContrast(bundle, classes=["dog", "cat"], chunk=2)


def test_batches_of_one_image_are_told():
    for norm in NORMS:
        loop = type("Loop", (), dict(dataloader=DataLoader(TensorDataset(torch.zeros(1, 3)), 1)))
        with pytest.MonkeyPatch.context() as patch:
            told = Mock()
            patch.setattr("hypvision.engine.run._logger.warning", told)
            drop_single_image(loop, nn.Sequential(copy.deepcopy(norm)).train())
        assert told.called, name_of(norm)


def batches(norm):
    """Three batches of points near the origin of a layer's space, of growing size."""
    torch.manual_seed(0)
    shape = (16, 3) if "1d" in name_of(norm) else (4, 3, 2, 2)
    return [0.1 * number * torch.randn(shape) for number in (1, 2, 3)]


def test_statistics_are_measured_anew_as_means():
    for norm in NORMS:
        model = nn.Sequential(copy.deepcopy(norm)).eval()
        model[0].running_var.fill_(9)
        hnn.update_bn([(batch, "label") for batch in batches(norm)], model)
        variances = []
        for batch in batches(norm):
            alone = copy.deepcopy(norm).train()
            alone.momentum = 1.0
            alone(batch)
            variances.append(alone.running_var.clone())
        torch.testing.assert_close(model[0].running_var, torch.stack(variances).mean(0))
        assert model[0].momentum == norm.momentum and not model[0].training, name_of(norm)


def test_torchs_function_and_ours_agree_on_its_own_norms():
    pair = [nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))]
    pair.append(copy.deepcopy(pair[0]))
    images = [torch.randn(4, 3, 5, 5) for _ in range(3)]
    swa_utils.update_bn(images, pair[0])
    hnn.update_bn(images, pair[1])
    for key, value in pair[0].state_dict().items():
        torch.testing.assert_close(pair[1].state_dict()[key], value)
    assert pair[1].training


def test_the_running_mean_of_points_is_their_centroid():
    """Of batches with one cluster each, the mean measured anew is the centroid of theirs, up to
    the curvature between them."""
    norm = hnn.LorentzBatchNorm1d(3, SPACE, dtype=torch.float64)
    torch.manual_seed(0)
    means = SPACE.expmap0(0.3 * torch.randn(4, 3, dtype=torch.float64))
    data = [mean[1:].expand(5, 3) for mean in means]
    hnn.update_bn(data, norm)
    centroid = SPACE.centroid(means)
    torch.testing.assert_close(SPACE.expmap0(norm.running_mean), centroid, rtol=0, atol=5e-3)
    assert SPACE.dist(means, centroid).min() > 0.1


def test_modes_and_momenta_come_back_after_an_error():
    norm = hnn.LorentzBatchNorm2d(3, SPACE).eval()
    with pytest.raises(HypvisionError):
        hnn.update_bn([torch.zeros(2, 4, 2, 2)], norm)
    assert norm.momentum == 0.1 and not norm.training
