"""The precision that a CPU is fast in: measured once, and what follows from it."""

import pytest
import timm
import torch

from hypvision.engine import precision
from hypvision.engine.config import load_config, prepare
from hypvision.engine.precision import Muon, has_fast_bfloat16, slowness_of_bfloat16


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(precision, "slowness_of_bfloat16", lambda: 15.0)


def test_it_is_measured_once():
    slowness_of_bfloat16.cache_clear()
    assert slowness_of_bfloat16() > 0 and slowness_of_bfloat16() == slowness_of_bfloat16()
    assert has_fast_bfloat16() == (slowness_of_bfloat16() <= 2)
    assert slowness_of_bfloat16.cache_info().misses == 1


def step(kind):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(24, 16))
    weight.grad = torch.randn(24, 16)
    kind([weight], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0).step()
    torch.manual_seed(0)
    return torch.randn(24, 16) - weight.detach()


@pytest.mark.parametrize(
    "slowness", [1.6, 15.0]
)  # with vector instructions for bfloat16, and without
def test_muon_orthogonalises_in_float32_where_bfloat16_is_no_faster(monkeypatch, slowness):
    monkeypatch.setattr(precision, "slowness_of_bfloat16", lambda: slowness)
    exact, coarse = step(Muon), step(timm.optim.Muon)
    assert timm.optim.muon.zeropower_via_newtonschulz is precision._orthogonalised
    assert 0 < (exact - coarse).norm() / exact.norm() < 0.02  # bfloat16 has 8 bits
    monkeypatch.setattr(precision, "slowness_of_bfloat16", lambda: 0.5)
    assert torch.equal(step(Muon), coarse)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
def test_amp_is_full_precision_where_bfloat16_is_slow(monkeypatch, slow, caplog, tmp_path):
    config = dict(
        model=dict(type="x"),
        optim_wrapper=dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.1)),
    )
    from mmengine.config import Config

    def kind():
        return prepare(load_config(Config(config)), tmp_path, amp=True).optim_wrapper.type

    assert kind() == "OptimWrapper" and "15 times longer" in caplog.text
    monkeypatch.setattr(precision, "slowness_of_bfloat16", lambda: 1.0)
    assert kind() == "BFloat16OptimWrapper"
