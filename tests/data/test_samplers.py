"""Repeated augmentation: how often and where an epoch draws each image; under mmengine."""

from collections import Counter

import pytest

pytest.importorskip("mmengine")

import hypvision.data.samplers
from hypvision.data.samplers import RepeatAugSampler


def epochs_of_ranks(monkeypatch, images, ranks, epoch=0, **options):
    drawn = []
    for rank in range(ranks):
        monkeypatch.setattr(hypvision.data.samplers, "get_dist_info", lambda rank=rank: (rank, ranks))
        sampler = RepeatAugSampler(range(images), **{"seed": 5, **options})
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
        assert len(drawn[-1]) == len(sampler)
    return drawn


@pytest.mark.parametrize(("ranks", "repeats"), [(1, 3), (4, 3), (4, 2), (8, 3)])
def test_copies_of_an_image_go_to_different_processes(monkeypatch, ranks, repeats):
    drawn = epochs_of_ranks(monkeypatch, 700, ranks, num_repeats=repeats)
    assert {len(part) for part in drawn} == {512 // ranks}
    counts = Counter(index for part in drawn for index in part)
    full, rest = divmod(512, repeats)
    assert sorted(counts.values(), reverse=True) == [repeats] * full + [rest] * (rest > 0)
    if ranks >= repeats:
        assert all(len(set(part)) == len(part) for part in drawn)


def test_epochs_differ_and_seeds_repeat(monkeypatch):
    first, again = (epochs_of_ranks(monkeypatch, 300, 2) for _ in range(2))
    assert first == again
    others = [epochs_of_ranks(monkeypatch, 300, 2, **given) for given in (dict(epoch=1), dict(seed=9))]
    assert first not in others and others[0] != others[1]
    assert epochs_of_ranks(monkeypatch, 300, 1, shuffle=False, epoch=3)[0][:4] == [0, 0, 0, 1]


def test_under_mmengine():
    """Built by the Runner's own function, with its seed; the hook sets the epoch."""
    import torch
    from mmengine.hooks import DistSamplerSeedHook
    from mmengine.runner import Runner
    from torch.utils.data import TensorDataset

    loader = Runner.build_dataloader(
        dict(
            batch_size=6,
            num_workers=0,
            dataset=TensorDataset(torch.arange(300)),
            sampler=dict(type="RepeatAugSampler", num_repeats=3),
            collate_fn=dict(type="default_collate"),
        ),
        seed=0,
    )
    orders = []
    for epoch in range(2):
        runner = type("Runner", (), {"train_loop": type("Loop", (), {"dataloader": loader}), "epoch": epoch})
        DistSamplerSeedHook().before_train_epoch(runner)
        batches = [batch[0].tolist() for batch in loader]
        assert all(sorted(Counter(batch).values()) == [3, 3] for batch in batches[:-1])
        orders.append(batches)
    assert len(loader) == -(-256 // 6) and orders[0] != orders[1]
