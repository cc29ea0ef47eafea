"""Sentences in the layout of the novels, and configs of language models that are trained on them in
seconds."""

from __future__ import annotations

from pathlib import Path

from helpers.engine import ROOT

from hypvision.engine.config import load_config

WORDS = [
    "the",
    "sea",
    "a",
    "grey",
    "ship",
    "far",
    "away",
    "it",
    "was",
    "cold",
    "and",
    "men",
    "sang",
    "of",
    "home",
]


def make_text(folder: Path) -> Path:
    """Write ``train.txt``, ``valid.txt`` and ``test.txt``; returns the folder."""
    for name, count in (("train", 900), ("valid", 120), ("test", 120)):
        (folder / f"{name}.txt").write_text(
            " ".join(WORDS[i * i % 7 * 2 % len(WORDS)] for i in range(count))
        )
    return folder


def small(name, text, folder, **options):
    """A config of few steps; the published ones become small and read bytes."""
    options = {
        "data_root": str(text), "train_cfg.max_iters": 6, "train_cfg.val_interval": 3,
        "default_hooks.checkpoint.interval": 3, "default_hooks.logger.interval": 1,
        "param_scheduler": [], **options,
    }  # fmt: skip
    config = load_config(ROOT / "configs/helm" / name, options)
    for phase in ("train", "val", "test"):
        loader = config[f"{phase}_dataloader"]
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        loader.dataset.update(
            source=str(text / f"{dict(train='train', val='valid', test='test')[phase]}.txt"),
            tokenizer="byte", length=32, cache=str(folder / "tokens"), limit=7,
        )  # fmt: skip
    if "wikipedia" in name:
        config.model.update(
            vocab_size=259, dim=42, n_layers=2, n_heads=2, inter_dim=84, mice_inter_dim=42,
            kv_lora_rank=9, qk_nope_head_dim=8, qk_rope_head_dim=9, v_head_dim=9, max_seq_len=64,
        )  # fmt: skip
        config.optim_wrapper.update(type="OptimWrapper", accumulative_counts=2)
        config.optim_wrapper.pop("dtype")
    config.vis_backends = [dict(type="LocalVisBackend")]
    config.visualizer.vis_backends = config.vis_backends
    return config
