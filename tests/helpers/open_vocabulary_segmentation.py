"""A complete config of an open-vocabulary segmenter, and a folder of data for it."""

from __future__ import annotations

import numpy as np
from mmengine.config import Config
from PIL import Image

HEAD = dict(
    hidden=8,
    heads=2,
    layers=1,
    guidance=8,
    text_guidance=8,
    decoder=(8, 8),
    decoder_guidance=(4, 4),
    pad_len=4,
)


SMALL = dict(clip=dict(name="emoji-t8"), adapter=dict(block=32), head=HEAD, upsample=(8, 8),
resolution=64, crop=64,
             slide=96)  # fmt: skip


def make_folder(root):
    """Six noisy images, the colour of each half tells its class."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for i in range(count):
            labels = np.zeros((60, 80), dtype=np.uint8)
            labels[:, 40:], labels[:10] = 1 + i % 2, 255
            pixels = rng.integers(0, 60, (60, 80, 3)) + 80 * np.eye(3)[np.minimum(labels, 2)]
            Image.fromarray(pixels.astype(np.uint8)).save(root / split / "images" / f"{i}.jpg")
            Image.fromarray(labels).save(root / split / "masks" / f"{i}.png")
    return root


def config(folder, **changes):
    """A complete config on that folder, of two steps."""
    load = [dict(type="LoadImageFromFile"), dict(type="Load16BitAnnotations")]

    def loader(split, pipeline, **more):
        data = dict(type="OpenVocabSegDataset", classes=["cat", "dog", "grass"],
        data_root=str(folder / split),
                    data_prefix=dict(img_path="images", seg_map_path="masks"), pipeline=[*load,
                    *pipeline])  # fmt: skip
        return dict(batch_size=2, num_workers=0, dataset=data, **more)

    crop = [dict(type="RandomCrop", crop_size=(48, 48)), dict(type="PackSegInputs")]
    val = loader(
        "val", [dict(type="PackSegInputs")], sampler=dict(type="DefaultSampler", shuffle=False)
    )
    content = dict(
        custom_imports=dict(
            imports=[
                "hypvision.openmmlab",
                "hypvision.tasks",
                "hypvision.openmmlab.open_vocabulary.segmentation",
            ]
        ),
        default_scope="mmseg",
        custom_hooks=[dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")],
        model=dict(type="HyperCLIPSegmentor", **{**SMALL, **changes}),
        train_dataloader=loader("train", crop, sampler=dict(type="InfiniteSampler", shuffle=True)),
        val_dataloader=val,
        test_dataloader=val,
        val_evaluator=dict(type="OpenVocabIoUMetric"),
        test_evaluator=dict(type="OpenVocabIoUMetric"),
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=2, val_interval=2),
        val_cfg=dict(type="ValLoop"),
        test_cfg=dict(type="TestLoop"),
        optim_wrapper=dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3)),
        default_hooks=dict(checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=2)),
        log_processor=dict(by_epoch=False),
        randomness=dict(seed=0),
        env_cfg=dict(dist_cfg=dict(backend="gloo")),
    )
    return Config(content, filename=None)
