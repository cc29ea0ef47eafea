"""The contrastive losses computed in parts, in chunks and by two processes: numbers and gradients
are those of the whole batch at once."""

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from helpers.clip_models import bundle_of, tiny
from helpers.processes import run_in_two

from hypvision.io.errors import HypvisionError
from hypvision.tasks import contrastive
from hypvision.tasks.contrastive import CLIPContrast

KINDS = {
    "clip": dict(geometry="sphere"),
    "meru": dict(geometry="lorentz"),
    "concepts": dict(geometry="lorentz"),
    "hycoclip": dict(geometry="lorentz"),
    "uncha": dict(geometry="lorentz", box_scales=True),
    "phyclip": dict(geometry="product"),
    "atmg": dict(geometry="lorentz", angles=True, curvature=0.1, learn_curvature=False),
}
SIZE = 6  # of the batch; chunks of 5 leave a small last one


def task(kind, chunk=None, dropout=0.0):
    options = dict(KINDS[kind])
    model = CLIPContrast(bundle_of(tiny(**options)), classes=["dog", "cat"], chunk=chunk)
    for block in (model.clip.visual.transformer, model.clip.transformer):
        block.resblocks[0].mlp.append(nn.Dropout(dropout))
    return model.train()


def batch(kind):
    """The second half has no text of its own."""
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (SIZE, 4, 3, 32, 32), dtype=torch.uint8)
    data = dict(
        inputs=pixels[:, 0],
        caption=["a disk", "a red ring on a wall", "a house", "a disk", "a house", "a disk"],
    )
    if kind == "concepts":
        data["concepts"] = torch.tensor([[0, 4], [1, 4], [2, 5], [0, 4], [2, 5], [0, 5]])
        data["level"] = torch.tensor([0, 1, 0, 0, 1, 0])
    words = [f"{text}, near" for text in data["caption"]]
    if kind in ("hycoclip", "phyclip"):
        data |= dict(box_inputs=pixels[:, 1], box_caption=words)
    if kind == "uncha":
        more = [f"{n} by {n}" for n in range(SIZE)]
        count = torch.tensor([3, 1, 1, 2, 2, 3])
        data |= dict(box_inputs=pixels[:, 1:], box_caption=[words, more, words], box_count=count)
    return data


def half(data, rank):
    own = slice(rank * SIZE // 2, (rank + 1) * SIZE // 2)
    found = {name: value[own] for name, value in data.items()}
    if "box_count" in data:
        found["box_caption"] = [texts[own] for texts in data["box_caption"]]
    return found


def of(losses, entail):
    """Parts of a loss: the entailments, or all others."""
    return {name: value for name, value in losses.items() if ("entail" in name) == entail}


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compare(found, expected, tolerance=2e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        limit = tolerance * float(value.abs().max()) + 1e-9
        torch.testing.assert_close(found[name], value, atol=limit, rtol=0, msg=name)


def step(model, data):
    losses = model(**data, mode="loss")
    sum(losses.values()).backward()
    return {name: value.detach() for name, value in losses.items()}, gradients(model)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_give_the_loss_and_the_gradients_of_the_whole_batch(kind, blocks, monkeypatch):
    """Also where the table of logits is computed in blocks, as that of a large batch is."""
    expected = step(task(kind), batch(kind))
    monkeypatch.setattr(contrastive, "SMALL_TABLE", 0 if blocks else contrastive.SMALL_TABLE)
    model = task(kind, chunk=5)
    seen = []
    model.clip.visual.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    found = step(model, batch(kind))
    compare(found[0], expected[0])
    compare(found[1], expected[1])
    assert max(seen) == 5 and min(seen) < 5  # a last small one


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ["hycoclip", "uncha"])
def test_a_chunk_is_computed_again_as_it_was(kind, precision, monkeypatch):
    """With the same random numbers and the same precision: nothing differs from keeping it."""

    def once():
        model = task(kind, chunk=5, dropout=0.5)
        torch.manual_seed(2)
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            losses = model(**batch(kind), mode="loss")
        torch.rand(7)  # somebody else draws before the backward
        sum(losses.values()).backward()
        return gradients(model)

    found = once()
    monkeypatch.setattr(contrastive, "checkpoint", lambda call, *given, **_: call(*given))
    compare(found, once(), 1e-6)


def test_a_chunk_must_leave_the_model_as_it_is():
    with pytest.raises(HypvisionError, match="chunk must be 1 or more, got 0"):
        task("clip", chunk=0)
    towers = tiny()
    towers.visual.ln_pre = nn.BatchNorm1d(32)
    with pytest.raises(HypvisionError, match="batch norms"):
        CLIPContrast(bundle_of(towers), classes=["dog", "cat"], chunk=2)


def without_boxes(data, images):
    """A batch in which these images of UNCHA have no box."""
    count = data["box_count"].clone()
    count[images] = 0
    return data | dict(box_count=count)


def test_a_batch_without_boxes_costs_what_its_wholes_cost():
    data = without_boxes(batch("uncha"), slice(None))
    losses, grads = step(task("uncha"), data)
    assert all(value.isfinite() for value in losses.values())
    assert all(grad.isfinite().all() for grad in grads.values())
    assert all(not value for name, value in losses.items() if "box" in name or "calib" in name)
    wholes = {"loss_image", "loss_text", "loss_entail_text_image"}
    assert all(losses[name] > 0 for name in wholes)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_do_not_fit_together_are_told(kind):
    model = task(kind)
    data = batch(kind)
    wrong = [
        (dict(inputs=data["inputs"][:, :, :20]), "20x32 pixels, and this CLIP takes 32x32"),
        (dict(inputs=data["inputs"][:0], caption=[]), "the shape"),
        (dict(caption="a disk"), "list of texts"),
        (dict(caption=["a disk", None] * 3), "number 1 is None"),
        (dict(caption=data["caption"][:4]), "6 images and 4 captions"),
    ]
    if "box_inputs" in data:
        fewer = data["box_inputs"][:4]
        wrong += [
            (dict(box_caption=None), "Boxes need their words"),
            (dict(box_inputs=None), "Boxes need their words"),
            (dict(box_inputs=fewer), "6 images and boxes of 4"),
        ]
    if kind == "uncha":
        many = torch.tensor([4, 1, 1, 1, 1, 1])
        wrong.append((dict(box_count=many), "box_count must be from 0 to 3"))
    for change, said in wrong:
        with pytest.raises(HypvisionError, match=said):
            model(**{**data, **change}, mode="loss")


WORKER = """
import torch
from torch import distributed
distributed.init_process_group("gloo")
from hypvision.tasks import contrastive
from hypvision.io.errors import HypvisionError
from test_contrastive_parts import KINDS, batch, half, step, task, without_boxes
contrastive.SMALL_TABLE = 0  # a chunk cuts tables, too
rank = distributed.get_rank()
found = {}
for kind in KINDS:
    for chunk in (None, 2):
        model = torch.nn.parallel.DistributedDataParallel(task(kind, chunk))
        losses, _ = step(model, half(batch(kind), rank))
        grads = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
        found[kind, chunk] = losses, grads
model = torch.nn.parallel.DistributedDataParallel(task("uncha"))
found["no boxes in one"] = step(model, half(without_boxes(batch("uncha"), slice(3)), rank))
data = batch("meru")
own = slice(4) if rank else slice(4, 6)
try:
    task("meru")(data["inputs"][own], data["caption"][own], mode="loss")
except HypvisionError as error:
    found["sizes"] = str(error)
torch.save(found, f"FOLDER/{rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    """The contrast is that of all pairs, also where a process begins no text; entailment is the
    mean of the processes' own, in UNCHA with their own calibrations."""
    run_in_two(WORKER.replace("FOLDER", str(tmp_path)), tmp_path, __file__)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for kind in KINDS:
        model = task(kind)
        contrast = of(model(**batch(kind), mode="loss"), entail=False)
        halves = [of(model(**half(batch(kind), n), mode="loss"), entail=True) for n in (0, 1)]
        outside = sum(sum(part.values()) for part in halves) / 2
        (sum(contrast.values()) + outside).backward()
        for chunk in (None, 2):
            for rank, part in enumerate(parts):
                losses, grads = part[kind, chunk]
                compare(losses, {name: x.detach() for name, x in (contrast | halves[rank]).items()})
                compare(grads, gradients(model))
    for part in parts:
        losses, grads = part["no boxes in one"]
        assert all(value.isfinite().all() for value in (*losses.values(), *grads.values()))
        assert "batches of different sizes, 2, 4" in part["sizes"]
