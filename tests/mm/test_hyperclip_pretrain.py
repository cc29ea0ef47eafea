"""Pre-training of the small CLIP: its data, its loss written out pair by pair, and the file that is shipped."""

import math

import pytest
import torch

pytest.importorskip("open_clip")

from hypvision.clip.models import create_clip
from hypvision.data.shapes import TAXONOMY
from hypvision.errors import HypvisionError
from hypvision.mm.openvocab_pretrain import CaptionContrast, ShapeCaptions, ZeroShotAccuracy, release


def test_data_are_repeatable_and_captions_true():
    data = ShapeCaptions(length=60)
    again = ShapeCaptions(length=60)
    for i in (0, 1, 58, 59):
        assert torch.equal(data[i]["inputs"], again[i]["inputs"]) and data[i]["caption"] == again[i]["caption"]
    single = [data[i] for i in range(0, 60, 2)]
    assert all(item["inputs"].shape == (3, 64, 64) and item["inputs"].dtype == torch.uint8 for item in single)
    named = [item for item in single if any(shape in item["caption"].split() for shape in TAXONOMY.classes["shape"])]
    assert len(named) > 15
    assert all(TAXONOMY.classes["shape"][item["label"]] in item["caption"].split() for item in named)
    assert all(data[i]["label"] == -1 for i in range(1, 60, 2))


def test_loss_pair_by_pair():
    model = CaptionContrast(dict(name="shapes-s8")).eval()
    inputs = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    captions = ["a disk", "a red ring", "a disk", "a house"]
    with torch.no_grad():
        found = model(inputs, captions, mode="loss")
        images = model(inputs, captions)
        text = model.clip.encode_text(model.tokenizer(["a disk", "a house", "a red ring"]), normalize=True)
        logits = (float(model.clip.logit_scale.exp()) * images @ text.T).tolist()
    number = [0, 2, 0, 1]

    def log_share(values, i):
        return values[i] - math.log(sum(math.exp(v) for v in values))

    of_image = -sum(log_share(row, n) for row, n in zip(logits, number)) / 4
    columns = [[row[t] for row in logits] for t in range(3)]
    of_text = -((log_share(columns[0], 0) + log_share(columns[0], 2)) / 2 + log_share(columns[1], 3)
                + log_share(columns[2], 1)) / 3  # fmt: skip
    assert float(found["loss_image"]) == pytest.approx(of_image / 2, rel=1e-4)
    assert float(found["loss_text"]) == pytest.approx(of_text / 2, rel=1e-4)


def test_it_learns():
    model = CaptionContrast(dict(name="shapes-s8")).train()
    data = ShapeCaptions(length=8)
    batch = [data[i] for i in range(8)]
    inputs, captions = torch.stack([item["inputs"] for item in batch]), [item["caption"] for item in batch]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        loss = sum(model(inputs, captions, mode="loss").values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_metric():
    metric = ZeroShotAccuracy()
    metric.process({}, [dict(scores=torch.tensor([0.1, 0.9]), label=1), dict(scores=torch.tensor([0.9, 0.1]), label=1)])
    assert metric.evaluate(2) == dict(top1=50.0)
    with pytest.raises(HypvisionError, match="needs single objects"):
        metric.process({}, [dict(scores=torch.ones(2), label=-1)])


def test_released_file(tmp_path):
    model = CaptionContrast(dict(name="shapes-s8"))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / "a.pth")
    path = release(tmp_path / "a.pth", tmp_path / "clip.safetensors", samples=200)
    assert path.stat().st_size < 5e6
    bundle = create_clip("shapes-s8", path)
    sentences = ["A photo of a grey ground in the scene"]
    with torch.no_grad():
        a = bundle.model.encode_text(bundle.tokenizer(sentences), normalize=True)
        b = model.clip.eval().encode_text(model.tokenizer(sentences), normalize=True)
    assert (a - b).abs().max() < 5e-3  # float16
    torch.save(dict(state_dict={"x": torch.ones(1)}), tmp_path / "b.pth")
    with pytest.raises(HypvisionError, match="not a checkpoint of CaptionContrast"):
        release(tmp_path / "b.pth", tmp_path / "b.safetensors")
