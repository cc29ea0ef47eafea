"""What timm's train.py, validate.py, inference.py, benchmark.py and onnx_export.py do, with models
of ours.

The scripts themselves are in neither wheel nor source distribution of timm. These are the public
functions that they call, in their order, run by ``hypvision exec`` as the scripts would be.
"""

import pytest
from helpers.engine import make_images
from helpers.families import FAMILIES

from hypvision.cli import main

TRAIN = """
import sys
from pathlib import Path
import torch
from timm.data import Mixup, create_dataset, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model, model_parameters
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import (
    AverageMeter, CheckpointSaver, ModelEmaV3, NativeScaler, accuracy, dispatch_clip_grad,
    random_seed, update_summary,
)

data, out, name, arguments = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
random_seed(0)
model = create_model(name, num_classes=3, **arguments)
model.set_grad_checkpointing(True)
config = resolve_data_config(dict(img_size=arguments["img_size"]), model=model)
mixup = Mixup(mixup_alpha=0.8, num_classes=3)
loader = create_loader(
    create_dataset("", root=data + "/train"), config["input_size"], 4, is_training=True,
    no_aug=True, num_workers=0, device=torch.device("cpu"), use_prefetcher=False,
)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.8)
scheduler, epochs = create_scheduler_v2(
    optimizer, num_epochs=2, warmup_epochs=0, updates_per_epoch=len(loader)
)
ema, losses, scaler = ModelEmaV3(model, decay=0.9), AverageMeter(), NativeScaler(device="cpu")
saver = CheckpointSaver(
    model, optimizer, model_ema=ema, amp_scaler=scaler, checkpoint_dir=out, recovery_dir=out
)
for epoch in range(2):
    model.train()
    for images, labels in loader:
        images, labels = mixup(images, labels)
        loss = SoftTargetCrossEntropy()(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model_parameters(model, exclude_head=False), 1.0, mode="norm")
        optimizer.step()
        ema.update(model)
        losses.update(loss.item(), len(images))
    scheduler.step(epoch + 1, metric=losses.avg)
    with torch.no_grad():
        top1 = accuracy(model.eval()(images), labels.argmax(1), topk=(1,))[0].item()
    summary = Path(out, "summary.csv")
    measured = dict(loss=losses.avg), dict(top1=top1)
    update_summary(epoch, *measured, summary, write_header=epoch == 0)
    saver.save_checkpoint(epoch, metric=top1)
"""
VALIDATE = """
import sys
import torch
from timm.data import (
    ImageNetInfo, create_dataset, create_loader, infer_imagenet_subset, resolve_data_config,
)
from timm.models import create_model, load_checkpoint
from timm.utils import AverageMeter, accuracy, reparameterize_model

data, file, name, arguments = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
model = create_model(name, num_classes=3, in_chans=3, scriptable=False, **arguments)
load_checkpoint(model, file, use_ema=True)
model = reparameterize_model(model).eval()
config = resolve_data_config(dict(img_size=arguments["img_size"]), model=model, use_test_size=True)
dataset, top1 = create_dataset("", root=data + "/val"), AverageMeter()
loader = create_loader(
    dataset, config["input_size"], 4, use_prefetcher=False, num_workers=0, mean=config["mean"],
    device=torch.device("cpu"), crop_pct=config["crop_pct"], interpolation=config["interpolation"],
)
with torch.inference_mode():
    for images, labels in loader:
        logits = model(images)
        top1.update(accuracy(logits, labels)[0].item(), len(images))
        logits.softmax(1).topk(2)  # inference.py
assert top1.count == len(dataset) and 0 <= top1.avg <= 100
features = create_model(name, num_classes=0, **arguments)(torch.zeros(2, *config["input_size"]))
assert features.shape == (2, model.num_features)
"""
BENCHMARK = """
import sys
import torch
from timm.layers import set_fast_norm
from timm.models import create_model, is_model
from timm.optim import create_optimizer_v2
from timm.utils import set_jit_fuser

name, arguments = sys.argv[3], eval(sys.argv[4])
assert is_model(name)
for device, dtype in (("cpu", torch.float32), ("cpu", torch.bfloat16), ("meta", torch.float32)):
    model = create_model(name, num_classes=3, exportable=True, **arguments)
    model = model.to(device=device, dtype=dtype)
    side = arguments["img_size"]
    images = torch.zeros(2, 3, side, side, device=device, dtype=dtype)
    assert model(images).dtype == dtype
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)
    model(images).float().sum().backward()
    optimizer.step()
"""
EXPORT = """
import sys
from timm.models import create_model, load_checkpoint
from timm.utils.model import reparameterize_model
from timm.utils.onnx import onnx_export

out, name, arguments = sys.argv[2], sys.argv[3], eval(sys.argv[4])
model = reparameterize_model(create_model(name, num_classes=3, exportable=True, **arguments).eval())
onnx_export(model, out, batch_size=2, input_size=(3, 32, 32), use_dynamo=True, check_forward=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hcformer", "hecnn"])
def test_what_the_scripts_do(tmp_path, name):
    family = FAMILIES[name]
    data, out = make_images(tmp_path / "data", 4), tmp_path / "out"
    out.mkdir()

    def run(code, place):
        script = tmp_path / "script.py"
        script.write_text(code)
        arguments = (
            repr({"img_size": 32, **family.arguments})
            if name == "hcformer"
            else repr(family.arguments)
        )
        code = code if name == "hcformer" else code.replace('arguments["img_size"]', "32")
        script.write_text(code)
        assert main(["exec", str(script), str(data), str(place), family.model, arguments]) == 0

    run(TRAIN, out)
    assert {"summary.csv", "last.pth.tar", "model_best.pth.tar"} <= {
        path.name for path in out.iterdir()
    }
    run(VALIDATE, out / "last.pth.tar")
    run(BENCHMARK, out)
    if name == "hcformer":
        pytest.importorskip("onnxruntime")
        run(EXPORT, out / "model.onnx")
        assert (out / "model.onnx").is_file()
