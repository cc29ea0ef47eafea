"""Distillation: its loss by hand, what the teacher is shown, and that nothing of it is trained or kept."""

import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from hypvision.errors import HypvisionError

TEACHER = "hcformer_nano.shapes"  # 16 classes, 64 pixels


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
    try:
        import distillation
    finally:
        del sys.path[0]
    return distillation


def student(tool, classes=16, **options):
    torch.manual_seed(0)
    return tool.DistilledClassifier(dict(model_name="resnet10t", num_classes=classes), teacher=TEACHER, **options)


def test_the_loss_is_the_divergence_of_both(tool):
    model, (logits, taught) = student(tool, temperature=3.0), torch.randn(2, 5, 16).double()
    p, q = (np.exp(x.numpy() / 3) / np.exp(x.numpy() / 3).sum(1, keepdims=True) for x in (taught, logits))
    assert float(model.distillation_loss(logits, taught)) == pytest.approx(
        9 * (p * np.log(p / q)).sum(1).mean(), rel=1e-5
    )
    assert float(model.distillation_loss(taught, taught + 7)) == pytest.approx(0, abs=1e-6)


def test_the_teacher_sees_the_images_as_it_learned_to(tool):
    mean, std = (0.2, 0.3, 0.4), (0.1, 0.2, 0.5)
    model, pixels = student(tool, mean=mean, std=std), torch.rand(3, 3, 64, 64)
    teacher = timm.create_model(TEACHER, pretrained=True).eval()

    def normalised(mean, std):
        return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]

    cfg = teacher.pretrained_cfg
    expected = teacher(normalised(cfg["mean"], cfg["std"])).detach()
    assert (model.teach(normalised(mean, std)) - expected).abs().max() < 1e-3
    assert model.teach(torch.rand(2, 3, 48, 80)).shape == (2, 16)  # in the teacher's size, whatever the student's


def test_a_step_trains_the_student_towards_the_teacher_alone(tool):
    model = student(tool)
    assert all(name.startswith("backbone.") for name in model.state_dict())
    optimizer, images = torch.optim.SGD(model.parameters(), 0.05), torch.randn(8, 3, 64, 64)
    before = [model.teach(images), model.train()(images, torch.zeros(8).long(), mode="loss")["loss"]]
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(images, None, mode="loss")["loss"]  # labels are not used
        loss.backward()
        optimizer.step()
    assert loss.detach() < 0.9 * before[1].detach()
    assert torch.equal(model.teach(images), before[0]) and not model._teacher[0].training
    assert model.eval()(images, mode="predict")[0]["scores"].shape == (16,)
    with pytest.raises(HypvisionError, match="has 16 classes and the student 5"):
        student(tool, classes=5)
