"""Storage of weights: error bounds, what is refused, what a header holds."""

import json
import zlib
from pathlib import Path

import pytest
import torch
from helpers.cases import each
from safetensors.torch import load_file, save_file

from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.storage import (
    STORAGES,
    kept_tensor,
    load_unpacked,
    pack,
    read_header,
    unpack,
    write_weights,
)
from hypvision.io.errors import HypvisionError


def weights():
    return {
        "matrix": torch.randn(40, 64) * torch.logspace(-6, 3, 40)[:, None],
        "kernel": torch.randn(16, 8, 3, 3),
        "zeros": torch.zeros(64, 64),
        "small": torch.randn(4, 4),
        "vector": torch.randn(5000),
        "scalar": torch.tensor(0.5),
        "count": torch.tensor(12345678901),
        "columns": torch.randn(64, 48).t(),
    }


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux"
)
@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 2), ("float16", 2), ("int8", 4)])
def test_the_file_does_not_lie_in_the_memory_beside_its_weights(tmp_path, dtype, times):
    path = tmp_path / "w.safetensors"
    stored = {f"w{i}": torch.ones(512, 1024, dtype=getattr(torch, dtype)) for i in range(40)}
    scales = {
        f"{name}.int8_scale": torch.ones(len(value))
        for name, value in stored.items()
        if dtype == "int8"
    }
    save_file({**stored, **scales, "norm": torch.ones(64)}, path)
    size = path.stat().st_size
    del stored, scales

    def peak():
        line = next(
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        return int(line.split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    before = peak()
    weights = load_unpacked(path)
    assert peak() - before < (times + 0.5) * size
    assert {*weights} == {*(f"w{i}" for i in range(40)), "norm"}
    assert all(value.dtype == torch.float32 and value.eq(1).all() for value in weights.values())


@each("storage", STORAGES)
def test_weights_come_back_within_the_bound(tmp_path, storage):
    given, path = weights(), tmp_path / "w.safetensors"
    write_weights(given, path, storage, {"classes": ["a"]})
    got = read_weights(path)
    assert list(tmp_path.iterdir()) == [path] and got.keys() == given.keys()
    assert read_header(path) == {"storage": storage, "classes": ["a"]}
    for name, value in given.items():
        assert got[name].dtype == value.dtype and got[name].shape == value.shape
        if storage == "float32" or not value.is_floating_point():
            assert torch.equal(got[name], value)
        elif storage == "int8":
            # Half a step of each row's own scale; vectors and small matrices are exact.
            rows = value.dim() >= 2 and value.numel() >= 1024
            step = (
                value.flatten(1).abs().amax(1).reshape(-1, *[1] * (value.dim() - 1)) / 127
                if rows
                else 0
            )
            assert ((got[name] - value).abs() <= 0.5001 * torch.as_tensor(step)).all(), name
        else:
            relative = {"float16": 2**-10, "bfloat16": 2**-8}[storage]
            assert ((got[name] - value).abs() <= relative * value.abs() + 2**-24).all(), name


@each(
    "value, storage, message",
    [
        (1e6, "float16", "too large for float16"),
        (float("nan"), "int8", "diverged"),
        (1.0, "int2", "must be one of"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, value, storage, message):
    with pytest.raises(HypvisionError, match=message):
        write_weights({"w": torch.full((8, 8), value)}, tmp_path / "w.safetensors", storage)
    assert list(tmp_path.iterdir()) == []


def test_scales_that_do_not_fit_are_refused():
    packed = pack({"w": torch.randn(32, 64)}, "int8")
    with pytest.raises(HypvisionError, match="do not fit"):
        unpack({**packed, "w.int8_scale": torch.ones(3)})
    with pytest.raises(HypvisionError, match="but not their weight"):
        unpack({"w.int8_scale": torch.ones(3)})


def test_bytes_that_do_not_give_the_weight_are_refused():
    packed = pack({"w": torch.randn(32, 64)}, "int8")
    stream, shape = packed["w"], packed["w.int8_shape"]
    assert stream.dtype == torch.uint8 and shape.tolist() == [32, 64]
    damaged = [
        {"w": stream[:-1]},
        {"w": stream.flip(0)},
        {"w": stream.to(torch.int16)},
        {"w": stream[:0]},
    ]
    damaged.append({"w": torch.cat([stream, stream[:5]])})
    for place in range(0, stream.numel(), 97):
        damaged.append({"w": stream.clone()})
        damaged[-1]["w"][place] ^= 4
    for wrong in (
        [64, 64],
        [16, 64],
        [2**40, 2**20],
        [-32, -64],
        [0, 64],
        [],
        2048,
        [[32, 64]],
        [32.0, 64.0],
    ):
        damaged.append({"w.int8_shape": torch.tensor(wrong)})
    repeats = torch.frombuffer(
        bytearray(zlib.compress(bytes(2**24))), dtype=torch.uint8
    )  # a thousandth of its content
    damaged.append({"w": repeats, "w.int8_shape": torch.tensor([32, 2**19])})
    damaged += [{"w.int8_shape": shape.cfloat()}, {"w.int8_scale": packed["w.int8_scale"].cfloat()}]
    for change in (*damaged, {"w.int8_shape": "32 x 64"}, {"w.int8_scale": 1.0}):
        with pytest.raises(HypvisionError, match="The weight 'w' is damaged|do not fit its shape"):
            unpack({**packed, **change})


def test_trained_weights_take_less_than_a_byte_each():
    weights = {"w": torch.randn(256, 512), "same": torch.ones(64, 64)}
    packed = pack(weights, "int8")
    # a normal row of 512 whose largest number is 127 has about 6.7 bits of entropy; equal numbers
    # take one bit
    assert (
        packed["w"].numel() < 0.93 * weights["w"].numel() and packed["same"].numel() < 64 * 64 / 7
    )
    assert torch.equal(unpack(packed)["same"], weights["same"])


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    write_weights({"w": torch.randn(8, 8)}, tmp_path / "w.safetensors")
    data = (tmp_path / "w.safetensors").read_bytes()
    for end in (0, 4, 8, 9, 40, len(data) - 300, len(data) - 1):
        (tmp_path / "cut.safetensors").write_bytes(data[:end])
        with pytest.raises(HypvisionError, match="not a safetensors file|is damaged"):
            read_weights(tmp_path / "cut.safetensors")
    with pytest.raises(HypvisionError, match="no checkpoint"):
        read_weights(tmp_path / "none.safetensors")


def test_headers_whose_length_begins_like_a_pickle(tmp_path):
    """A header of 128 or 384 bytes begins with the bytes 128 and 0 or 1, as a pickle may."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for length in (128, 384, 640, 1152):
        path = tmp_path / f"{length}.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + header.ljust(length) + b"\x00\x00\x80\x3f")
        assert read_weights(path)["w"].tolist() == [1.0]


@each(
    "config",
    [
        {"backbone": {"checkpoint_path": "net.pth"}},
        {"backbone": {"model_name": "hf-hub:somebody/net"}},
        {"neck": [{"init_cfg": {"type": "Pretrained", "checkpoint": "net.pth"}}]},
        {"head": {"mode": "__import__('os')"}},
        {"pretrained": True},
        {"a/b": 1},
    ],
)
def test_configs_in_headers_lead_nowhere_else(tmp_path, config):
    """Weights and an index may come from others; what they say of the network must not load or run
    anything more."""
    write_weights({"w": torch.ones(2)}, tmp_path / "w.safetensors", header={"model": config})
    with pytest.raises(HypvisionError, match="was refused: the config of the model"):
        read_header(tmp_path / "w.safetensors")
    harmless = {
        "pretrained": False,
        "checkpoint": None,
        "mode": "bilinear",
        "type": "mmdet.FPN",
        "size": [1, 2.5],
    }
    harmless["prompt"] = "a photo of the {}, isn't it?"
    write_weights({"w": torch.ones(2)}, tmp_path / "w.safetensors", header={"model": harmless})
    assert read_header(tmp_path / "w.safetensors")["model"] == harmless


def test_files_of_others(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "plain.safetensors")
    assert read_header(tmp_path / "plain.safetensors") == {}
    for text in ("[1]", "{", "[" * 100_000):
        save_file({"w": torch.ones(2)}, tmp_path / "odd.safetensors", metadata={"hypvision": text})
        with pytest.raises(HypvisionError, match="header"):
            read_header(tmp_path / "odd.safetensors")
    write_weights({"w": torch.ones(2)}, tmp_path / "ours.safetensors", "float16")
    assert (
        load_file(tmp_path / "ours.safetensors")["w"].dtype == torch.float16
    )  # any reader reads it


@each(
    "content", [b"", b"<html>", {"other": torch.ones(2)}, {"a": torch.ones(3), "b": torch.ones(3)}]
)
def test_a_cached_tensor_is_computed_again_if_its_file_is_damaged(tmp_path, content):
    path = tmp_path / "new" / "kept.safetensors"
    assert torch.equal(kept_tensor(path, lambda: torch.arange(3.0)), torch.arange(3.0))
    assert torch.equal(kept_tensor(path, pytest.fail, rows=3), torch.arange(3.0))
    path.write_bytes(content) if isinstance(content, bytes) else save_file(content, path)
    assert torch.equal(kept_tensor(path, lambda: torch.ones(3), rows=3), torch.ones(3))
    assert torch.equal(kept_tensor(path, pytest.fail), torch.ones(3))


def test_a_tensor_is_given_where_it_cannot_be_kept(tmp_path, caplog):
    (tmp_path / "cache").write_text("no folder")
    made = kept_tensor(tmp_path / "cache" / "x.safetensors", lambda: torch.ones(3))
    assert torch.equal(made, torch.ones(3)) and "was not written" in caplog.text
