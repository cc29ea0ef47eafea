"""Safe reading, atomic writing, resuming; and that mmengine's Runner goes through all of it."""

import errno
import hashlib
import os
import pickle
import shutil
import threading
import warnings
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.cases import each
from torch import nn

pytest.importorskip("mmcv")
from helpers.bad_server import QuietServer
from mmengine.dataset import BaseDataset
from mmengine.fileio import dump, get, get_file_backend, put_text
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.registry import OPTIMIZERS
from mmengine.runner import CheckpointLoader, Runner, save_checkpoint

import hypvision.checkpoints.sources
import hypvision.openmmlab
from hypvision.checkpoints.match import check_compatible, compare
from hypvision.engine.checkpoint import (
    AtomicLocalBackend,
    find_resume_checkpoint,
    load_checkpoint_file,
    resume_problem,
)
from hypvision.engine.hooks import CheckpointHook
from hypvision.io.errors import HypvisionError


class Command:
    """Runs a shell command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def resumable(epoch=1, **changes):
    return {
        "state_dict": {"w": torch.ones(2)},
        "meta": {"epoch": epoch, "iter": 10 * epoch},
        **changes,
    }


GROUPS = [dict(lr=0.1, params=[0])]


@each(
    "changes, message",
    [
        (dict(state_dict=3), "no state_dict"),
        (dict(meta=dict(epoch="1", iter=10)), "epoch and iteration"),
        (dict(meta=dict(epoch=-(10**9), iter=10)), "epoch and iteration"),
        (dict(optimizer=3), "optimizer"),
        (dict(optimizer=dict(state={}, param_groups=[])), "optimizer"),
        (dict(optimizer=dict(state=[], param_groups=GROUPS)), "optimizer"),
        (
            dict(optimizer=dict(state={0: dict(m=torch.tensor([np.nan]))}, param_groups=GROUPS)),
            "'m' of parameter 0",
        ),
        (dict(optimizer=dict(state={0: 5}, param_groups=GROUPS)), "damaged"),
        (dict(accumulated=[{}]), "damaged"),
        (dict(state_dict={"w": torch.tensor([np.inf])}), "'w' is not finite"),
        (dict(ema_state_dict={"v": torch.tensor([np.nan])}), "'v' is not finite"),
    ],
)
def test_states_that_cannot_be_resumed(changes, message):
    assert message in resume_problem(resumable(**changes))
    good = dict(state={0: dict(m=torch.ones(1))}, param_groups=GROUPS)
    assert resume_problem(resumable(optimizer=good)) is None
    assert resume_problem(resumable(optimizer=dict(first=good, second=good))) is None


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "TimmMuon", "RiemannianAdamW", "RiemannianSGD"])
def test_optimiser_states_can_be_resumed(tmp_path, kind):
    weight, bias = torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS.get(kind)([weight, bias], lr=0.1)
    weight.grad, bias.grad = torch.ones(4, 3), torch.ones(3)
    optimizer.step()
    torch.save(resumable(optimizer=optimizer.state_dict()), tmp_path / "epoch_1.pth")
    assert find_resume_checkpoint(tmp_path) == str(tmp_path / "epoch_1.pth")


def test_what_a_resume_needs_survives(tmp_path):
    history = HistoryBuffer()
    history.update(1.5)
    history.update(2.5, 3)
    content = resumable(
        history=history,
        best=np.float64(0.5),
        flag=np.bool_(True),
        arrays=[
            np.arange(3, dtype=np.uint8),
            np.array([True, False]),
            np.eye(2, dtype=">f4"),
            np.array(2.5),
        ],
        classes=("cat", "dog"),
    )
    torch.save(content, tmp_path / "a.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_checkpoint_file(tmp_path / "a.pth")
    assert loaded["history"].mean() == history.mean() and loaded["history"].statistics("max") == 2.5
    assert loaded["best"] == 0.5 and loaded["flag"] and loaded["classes"] == ("cat", "dog")
    for array, expected in zip(loaded["arrays"], content["arrays"]):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype.newbyteorder("=")  # as NumPy itself reads it


def test_numpy_arrays_of_both_major_versions(tmp_path):
    for here, there in (("numpy._core", "numpy.core"), ("numpy.core", "numpy._core")):
        torch.save({"x": np.arange(3)}, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
        raw = (tmp_path / "a.pth").read_bytes()
        (tmp_path / "b.pth").write_bytes(raw.replace(f"c{here}.".encode(), f"c{there}.".encode()))
        assert load_checkpoint_file(tmp_path / "b.pth")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", ["pkl", "pickle"])
def test_annotations_in_a_pickle_are_refused_and_not_run(tmp_path, suffix):
    (tmp_path / f"ann.{suffix}").write_bytes(pickle.dumps(Command(f"touch {tmp_path / 'proof'}")))
    with pytest.raises(HypvisionError, match="convert it to JSON"):
        BaseDataset(str(tmp_path / f"ann.{suffix}"))
    assert not (tmp_path / "proof").exists()
    dump([1], tmp_path / f"results.{suffix}")  # what a metric writes
    assert pickle.loads((tmp_path / f"results.{suffix}").read_bytes()) == [1]


def test_a_missing_file_is_named_beside_those_that_are_there(tmp_path):
    for name in ("half", "whole"):
        torch.save(resumable(), tmp_path / f"{name}.pth")
    with pytest.raises(
        HypvisionError, match=r"no checkpoint '.*none.pth'. The folder has: half.pth, whole.pth"
    ):
        load_checkpoint_file(tmp_path / "none.pth")


def test_config_text_that_mmengine_would_execute_is_dropped(tmp_path):
    torch.save(
        resumable(meta={"epoch": 1, "iter": 1, "config": "import os", "cfg": "text"}),
        tmp_path / "a.pth",
    )
    assert CheckpointLoader.load_checkpoint(str(tmp_path / "a.pth"))["meta"] == {
        "epoch": 1,
        "iter": 1,
        "cfg": "text",
    }


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that a local server serves, PyTorch's cache, and the paths that were asked for."""
    folder = tmp_path / "site"
    folder.mkdir()
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *arguments):
            pass

    server = QuietServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for name in ("HYPVISION_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield SimpleNamespace(
        url=f"http://127.0.0.1:{server.server_port}",
        folder=folder,
        cache=tmp_path / "hub" / "checkpoints",
        asked=asked,
    )
    server.shutdown()
    server.server_close()


def test_checkpoints_from_the_net_are_verified(site, monkeypatch):
    torch.save(resumable(), site.folder / "net.pth")
    digest = hashlib.sha256((site.folder / "net.pth").read_bytes()).hexdigest()
    for _ in range(2):
        loaded = CheckpointLoader.load_checkpoint(
            f"{site.url}/net.pth?raw=1#sha256={digest.upper()}"
        )
        assert loaded["state_dict"]["w"].tolist() == [1, 1]
    assert site.asked == ["/net.pth?raw=1"]  # the second time from the cache
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    CheckpointLoader.load_checkpoint(f"{site.url}/net.pth#sha256={digest}")
    with pytest.raises(
        HypvisionError, match=r"not on this machine, and HYPVISION_OFFLINE .* copy the file to"
    ):
        CheckpointLoader.load_checkpoint(f"{site.url}/other.pth#sha256={digest}")
    assert len(site.asked) == 1
    monkeypatch.delenv("HYPVISION_OFFLINE")

    torch.save(resumable(7), site.folder / "net.pth")
    with pytest.raises(
        HypvisionError, match="has the wrong content: its sha256 begins with .* instead of 00000000"
    ):
        CheckpointLoader.load_checkpoint(f"{site.url}/net.pth#sha256={'0' * 64}")
    (site.cache / "net.pth").write_bytes(b"another file of this name")
    with pytest.raises(HypvisionError, match="begins with"):
        CheckpointLoader.load_checkpoint(f"{site.url}/net.pth#sha256={digest}")
    assert [file.name for file in site.cache.iterdir()] == ["net.pth"]

    digest = hashlib.sha256((site.folder / "net.pth").read_bytes()).hexdigest()
    assert (
        CheckpointLoader.load_checkpoint(f"{site.url}/net.pth#sha256={digest}")["meta"]["epoch"]
        == 7
    )
    with pytest.raises(HypvisionError, match=r"gone\.pth' cannot be downloaded: .*no such file"):
        CheckpointLoader.load_checkpoint(f"{site.url}/gone.pth#sha256={digest}")


def test_checkpoints_without_a_sum_are_not_fetched(site):
    torch.save(resumable(), site.folder / "net.pth")
    digest = hashlib.sha256((site.folder / "net.pth").read_bytes()).hexdigest()
    for name in (
        "net.pth",
        "net.pth#sha256=" + digest[:8],
        f"net-{digest[:8]}.pth",
        "net.pth#md5=" + digest,
    ):
        with pytest.raises(
            HypvisionError, match=r"not loaded.*#sha256=HEX.* zoo:NAME, hf-hub:USER/REPO .* a file"
        ):
            CheckpointLoader.load_checkpoint(f"{site.url}/{name}")
    assert not site.asked


def test_official_names_carry_their_sum(tmp_path, monkeypatch):
    torch.save(resumable(), tmp_path / "source.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for name in ("HYPVISION_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    fetched = []

    def fetch(url, target, verify, *arguments):
        fetched.append((url, verify.keywords["sha256"]))
        shutil.copy(tmp_path / "source.pth", target)

    monkeypatch.setattr(hypvision.checkpoints.sources, "download", fetch)
    CheckpointLoader.load_checkpoint("https://example.org/fpn_r50_20200101-0a1b2c3d.pth")
    CheckpointLoader.load_checkpoint("torchvision://resnet50")
    assert fetched[0] == ("https://example.org/fpn_r50_20200101-0a1b2c3d.pth", "0a1b2c3d")
    assert len(fetched) >= 2
    url, prefix = fetched[-1]
    assert url.startswith("https://download.pytorch.org/models/resnet50-")
    assert url.endswith(f"-{prefix}.pth")


def test_writing_is_atomic_and_is_what_mmengine_uses(tmp_path):
    path = tmp_path / "new" / "epoch_1.pth"
    assert type(get_file_backend(str(path))) is AtomicLocalBackend
    save_checkpoint(resumable(), str(path))
    assert find_resume_checkpoint(path.parent) == str(path)
    put_text("text", str(tmp_path / "a.txt"))
    assert (tmp_path / "a.txt").read_text() == "text"
    assert [file.name for file in path.parent.iterdir()] == ["epoch_1.pth"]
    assert path.stat().st_mode & 0o777 == (tmp_path / "a.txt").stat().st_mode & 0o777 != 0o600
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    with pytest.raises(HypvisionError, match="link"):
        put_text("changed", str(tmp_path / "link.txt"))
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "a.txt").read_text() == "text"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, step):
    save_checkpoint(resumable(1), str(tmp_path / "epoch_1.pth"))
    save_checkpoint(resumable(2), str(tmp_path / "epoch_2.pth"))
    before = (tmp_path / "epoch_2.pth").read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    for target, last in (("epoch_3.pth", "epoch_2.pth"), ("epoch_2.pth", "epoch_2.pth")):
        with pytest.raises(HypvisionError) as caught:
            save_checkpoint(resumable(3), str(tmp_path / target))
        message = str(caught.value)
        assert "disk is full" in message
        assert f"{target}' was not written" in message
        assert "--resume" in message
        assert f"last complete checkpoint is '{tmp_path / last}'" in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["epoch_1.pth", "epoch_2.pth"]
    assert (tmp_path / "epoch_2.pth").read_bytes() == before


def test_the_first_checkpoint_on_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    with pytest.raises(HypvisionError, match="no complete checkpoint yet"):
        save_checkpoint(resumable(), str(tmp_path / "epoch_1.pth"))
    assert not list(tmp_path.iterdir())


def test_resume_takes_the_newest_that_loads(tmp_path):
    assert find_resume_checkpoint(tmp_path) is None
    assert find_resume_checkpoint(tmp_path / "none") is None
    for epoch in (2, 9, 10):
        torch.save(resumable(epoch), tmp_path / f"epoch_{epoch}.pth")
    torch.save({"state_dict": {}}, tmp_path / "epoch_12.pth")  # weights only: nothing to go on from
    (tmp_path / "epoch_13.pth").mkdir()
    (tmp_path / "epoch_13.pth" / "part.pth").write_bytes(b"no checkpoint")
    torch.save(resumable(), tmp_path / "best_top1_epoch_11.pth")
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_10.pth"
    (tmp_path / "epoch_10.pth").write_bytes(b"half")
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_9.pth"
    pointer = tmp_path / "last_checkpoint"
    for text, expected in (
        (str(tmp_path / "epoch_2.pth"), "epoch_2.pth"),
        ("/another/place/epoch_2.pth", "epoch_2.pth"),  # the folder was moved
        (str(tmp_path / "epoch_10.pth"), "epoch_9.pth"),
        ("", "epoch_9.pth"),
        ("\0\0\0", "epoch_9.pth"),
    ):
        pointer.write_text(text)
        assert Path(find_resume_checkpoint(tmp_path)).name == expected, text
    for path in tmp_path.glob("*.pth"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(
        HypvisionError,
        match=r"None of the checkpoints .* can be resumed .*epoch_10\.pth.*Check the path",
    ):
        find_resume_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "named,there,told",
    [
        (
            "epoch_9.pth",
            ["epoch_8.pth", "epoch_2.pth", "best_top1_epoch_9.pth"],
            "--resume .*epoch_8.pth",
        ),
        (
            "epoch_9.pth",
            ["best_top1_epoch_9.pth"],
            "epoch_9.pth.*best_top1_epoch_9.pth.*--resume CHECKPOINT.*--work-dir",
        ),
        (
            "epoch_9.pth",
            [],
            "epoch_9.pth', which its last_checkpoint names, is not there.*--work-dir",
        ),
        ("", [], "no checkpoint of it can be resumed.*--work-dir"),
        (None, ["best_top1_epoch_9.pth"], "best_top1_epoch_9.pth.*weights only.*--work-dir"),
    ],
)
def test_a_newest_checkpoint_that_is_gone_is_asked_after(tmp_path, named, there, told):
    for name in there:
        torch.save(resumable(), tmp_path / name)
    if named is not None:
        (tmp_path / "last_checkpoint").write_text(named and str(tmp_path / named))
    with pytest.raises(HypvisionError, match=told):
        find_resume_checkpoint(tmp_path)


def test_resume_takes_what_was_written_after_last_checkpoint(tmp_path):
    """By a training that was killed before it changed that; one of an earlier training is older."""
    for name, age in (
        ("epoch_9.pth", 100),
        ("epoch_2.pth", 50),
        ("last_checkpoint", 40),
        ("epoch_3.pth", 30),
    ):
        torch.save(resumable(), tmp_path / name)
        if name == "last_checkpoint":
            (tmp_path / name).write_text(str(tmp_path / "epoch_2.pth"))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_3.pth"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_resumed(tmp_path, value):
    spoilt = resumable(2)
    spoilt["state_dict"] = {"weight": torch.ones(3), "bias": torch.tensor([0.0, value])}
    torch.save(resumable(1), tmp_path / "epoch_1.pth")
    torch.save(spoilt, tmp_path / "epoch_2.pth")
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_1.pth"
    (tmp_path / "epoch_1.pth").unlink()
    with pytest.raises(HypvisionError, match="can be resumed"):
        find_resume_checkpoint(tmp_path)


def test_resume_prefers_the_kind_written_last(tmp_path):
    for name, age in (("epoch_3.pth", 100), ("iter_500.pth", 50), ("iter_1000.pth", 60)):
        torch.save(resumable(), tmp_path / name)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert Path(find_resume_checkpoint(tmp_path)).name == "iter_1000.pth"


def test_checkpoints_of_another_architecture_are_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    good = model.state_dict()
    check_compatible(model, good, "x.pth")
    check_compatible(model, {f"module.{name}": value for name, value in good.items()}, "x.pth")
    check_compatible(model, {**good, "auxiliary.weight": torch.ones(2)}, "x.pth")
    check_compatible(
        model, {name: v for name, v in good.items() if "num_batches" not in name}, "x.pth"
    )

    other_head = {**good, "2.weight": torch.ones(7, 4), "2.bias": torch.ones(7)}
    check_compatible(model, other_head, "x.pth", exact=False)
    with pytest.raises(
        HypvisionError, match=r"'x\.pth' does not fit.*6 of 8.*of another shape: 2\.weight \(7x4 "
    ):
        check_compatible(model, other_head, "x.pth")
    for exact in (True, False):
        with pytest.raises(
            HypvisionError,
            match=r"missing in the file: 0\.weight.*unknown to the model: 0\.weight_x",
        ):
            check_compatible(model, {f"{name}_x": v for name, v in good.items()}, "x.pth", exact)
    with pytest.raises(HypvisionError, match="1 missing in the file: 2.bias"):
        check_compatible(
            model, {name: value for name, value in good.items() if name != "2.bias"}, "x.pth"
        )
    assert (
        compare({}, {}).share == 1
    )  # a model without weights, such as zero-shot CLIP, whose checkpoint has none


class Toy(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs, mode="tensor"):
        loss = self.layer(inputs).square().mean()
        return {"loss": loss} if mode == "loss" else [loss]


def toy_runner(work_dir, epochs, keep=2, **options):
    torch.manual_seed(0)
    return Runner(
        Toy(),
        str(work_dir),
        train_dataloader={
            "dataset": [{"inputs": torch.ones(2) * i} for i in range(4)],
            "batch_size": 2,
            "collate_fn": {"type": "default_collate"},
            "sampler": {"type": "DefaultSampler", "shuffle": False},
        },
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper={"optimizer": {"type": "Adam", "lr": 0.01}},
        param_scheduler={"type": "CosineAnnealingLR", "T_max": 4, "end": 4},
        default_hooks={
            "checkpoint": {"type": "CheckpointHook", "interval": 1, "max_keep_ckpts": keep}
        },
        experiment_name=f"{Path(work_dir).name}{epochs}{len(options)}",
        **options,
    )


def test_a_runner_saves_and_resumes_through_it(tmp_path, monkeypatch):
    written = []
    put = AtomicLocalBackend.put
    monkeypatch.setattr(
        AtomicLocalBackend,
        "put",
        lambda self, obj, path: (written.append(path), put(self, obj, path)),
    )
    toy_runner(tmp_path / "broken", 1).train()
    assert [Path(path).name for path in written] == ["epoch_1.pth"]
    newest = find_resume_checkpoint(tmp_path / "broken")
    assert (
        newest
        == str(tmp_path / "broken" / "epoch_1.pth")
        == (tmp_path / "broken/last_checkpoint").read_text()
    )

    resumed = toy_runner(tmp_path / "broken", 3, load_from=newest, resume=True)
    resumed.train()
    whole = toy_runner(tmp_path / "whole", 3)
    whole.train()
    assert resumed.epoch == 3 and resumed.iter == 6
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    first, second = (
        runner.message_hub.get_scalar("train/loss").data[0] for runner in (resumed, whole)
    )
    np.testing.assert_array_equal(first, second)  # the log history went through the checkpoint


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_what_is_not_finite_does_not_take_the_place_of_the_last_good_checkpoint(tmp_path, part):
    """A square of a large gradient overflows in the optimizer, whose weights just stand still
    then."""
    runner = toy_runner(tmp_path, 2, keep=1)

    def spoil(runner):
        spoilt = runner.model.state_dict()["layer.bias"]
        if part == "optimizer":
            state = next(iter(runner.optim_wrapper.optimizer.state.values()))
            spoilt = state["exp_avg_sq"]
        if runner.epoch == 1:
            spoilt.fill_(torch.inf)

    hook = Hook()
    hook.after_train_epoch = spoil
    runner.register_hook(hook, "HIGHEST")
    with pytest.raises(
        HypvisionError, match=r"is not finite.*last good checkpoint is '.*epoch_1\.pth'.*--resume"
    ):
        runner.train()
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_1.pth"


def test_a_resumed_training_deletes_what_a_killed_one_left(tmp_path, monkeypatch):
    def killed(self, runner):
        if self.outdated:
            raise KeyboardInterrupt

    toy_runner(tmp_path, 1, keep=1).train()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CheckpointHook, "_delete_outdated", killed)
        toy_runner(
            tmp_path, 2, keep=1, load_from=find_resume_checkpoint(tmp_path), resume=True
        ).train()
    assert sorted(path.name for path in tmp_path.glob("*.pth")) == ["epoch_1.pth", "epoch_2.pth"]
    toy_runner(tmp_path, 3, keep=1, load_from=find_resume_checkpoint(tmp_path), resume=True).train()
    assert [path.name for path in tmp_path.glob("*.pth")] == ["epoch_3.pth"]


def test_a_new_training_moves_the_checkpoints_of_an_earlier_one_aside(tmp_path, capsys):
    toy_runner(tmp_path, 3).train()
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.pth")}
    own = {"best_top1_epoch_2.pth": b"best", "probe.pth": b"probe"}
    for name, content in own.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "mine.pth").write_bytes(b"mine")
    # trainings of one second share the folder that holds the copy of the config
    for stamped in [path for path in tmp_path.glob("2*") if path.is_dir()]:
        shutil.rmtree(stamped)
    (tmp_path / "20200101_000000/vis_data").mkdir(parents=True)
    earlier = tmp_path / "20200101_000000/vis_data/config.py"
    earlier.write_text("of = 'the earlier one'")
    toy_runner(tmp_path, 1, keep=1).train()
    (aside,) = tmp_path.glob("earlier_*")
    assert {path.name: path.read_bytes() for path in aside.glob("*.pth")} == kept | own
    assert sorted(path.name for path in tmp_path.glob("*.pth")) == ["epoch_1.pth", "mine.pth"]
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_1.pth"
    assert Path(find_resume_checkpoint(aside)) == aside / "epoch_3.pth"
    assert (aside / "config.py").read_text() == "of = 'the earlier one'"


def test_the_weights_that_a_new_training_begins_with_stay(tmp_path):
    toy_runner(tmp_path, 2).train()
    start = tmp_path / "epoch_2.pth"
    before = start.read_bytes()
    toy_runner(tmp_path, 1, load_from=str(start)).train()
    (aside,) = tmp_path.glob("earlier_*")
    assert [path.name for path in aside.glob("*.pth")] == ["epoch_1.pth"]
    assert start.read_bytes() == before
    assert Path(find_resume_checkpoint(tmp_path)).name == "epoch_1.pth"


@each(
    "address", ["s3://bucket/net.pth", "cluster:s3://b/net.pth", "petrel://net.pth", "pavi://net"]
)
def test_stores_without_verification_are_refused(address):
    with pytest.raises(HypvisionError, match="cannot be verified"):
        CheckpointLoader.load_checkpoint(address)


def test_devices_and_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(HypvisionError, match=f"{name}' is not a file"):
            get(str(tmp_path / name))


def test_a_sharded_model_is_compared_by_its_whole_shapes():
    """Its own weights are not plain tensors, which those of a file must be."""

    class Shard(torch.Tensor):
        pass

    model = nn.Linear(3, 2)
    sharded = {name: value.as_subclass(Shard) for name, value in model.state_dict().items()}
    own = SimpleNamespace(state_dict=lambda: sharded)
    check_compatible(own, model.state_dict(), "x.pth")
    with pytest.raises(HypvisionError, match="dense weights"):
        check_compatible(model, sharded, "x.pth")
