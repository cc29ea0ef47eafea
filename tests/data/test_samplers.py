"""How often and where an epoch draws each image: repeated augmentation, balanced classes; under
mmengine."""

from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("mmengine")

import hypvision.data.samplers
from hypvision.data.samplers import BalancedSampler, MPerClassBatchSampler, RepeatAugSampler
from hypvision.io.errors import HypvisionError


def epochs_of_ranks(monkeypatch, images, ranks, epoch=0, kind=RepeatAugSampler, **options):
    drawn = []
    for rank in range(ranks):
        monkeypatch.setattr(
            hypvision.data.samplers, "get_dist_info", lambda rank=rank: (rank, ranks)
        )
        sampler = kind(images, **{"seed": 5, **options})
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
        assert len(drawn[-1]) == len(sampler)
    return drawn


@pytest.mark.parametrize(("ranks", "repeats"), [(1, 3), (4, 3), (4, 2), (8, 3)])
def test_copies_of_an_image_go_to_different_processes(monkeypatch, ranks, repeats):
    drawn = epochs_of_ranks(monkeypatch, range(700), ranks, num_repeats=repeats)
    assert {len(part) for part in drawn} == {512 // ranks}
    counts = Counter(index for part in drawn for index in part)
    full, rest = divmod(512, repeats)
    assert sorted(counts.values(), reverse=True) == [repeats] * full + [rest] * (rest > 0)
    if ranks >= repeats:
        assert all(len(set(part)) == len(part) for part in drawn)


def test_epochs_differ_and_seeds_repeat(monkeypatch):
    first, again = (epochs_of_ranks(monkeypatch, range(300), 2) for _ in range(2))
    assert first == again
    others = [
        epochs_of_ranks(monkeypatch, range(300), 2, **given)
        for given in (dict(epoch=1), dict(seed=9))
    ]
    assert first not in others and others[0] != others[1]
    assert epochs_of_ranks(monkeypatch, range(300), 1, shuffle=False, epoch=3)[0][:4] == [
        0,
        0,
        0,
        1,
    ]


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
        runner = type(
            "Runner", (), {"train_loop": type("Loop", (), {"dataloader": loader}), "epoch": epoch}
        )
        DistSamplerSeedHook().before_train_epoch(runner)
        batches = [batch[0].tolist() for batch in loader]
        assert all(sorted(Counter(batch).values()) == [3, 3] for batch in batches[:-1])
        orders.append(batches)
    assert len(loader) == -(-256 // 6) and orders[0] != orders[1]


LABELS = [7] * 90 + [2] * 9 + [4]  # a class of 90 images, one of 9 and one of a single image


@pytest.mark.parametrize(
    ("ranks", "options", "expected"),
    [
        (1, {}, (100 / 3,) * 3),
        (4, {}, (100 / 3,) * 3),
        (3, {}, (34,) * 3),  # 102 images: each process has alike many
        (2, dict(power=0.0), (90, 9, 1)),
        (2, dict(power=0.5), [100 * count**0.5 / (90**0.5 + 3 + 1) for count in (90, 9, 1)]),
        (2, dict(length=30), (10,) * 3),
        (1, dict(length=3000), (1000,) * 3),
        (2, dict(shuffle=False), (100 / 3,) * 3),
    ],
)
def test_classes_are_drawn_by_their_shares(monkeypatch, ranks, options, expected):
    data = SimpleNamespace(labels=LABELS)
    epochs = [
        epochs_of_ranks(monkeypatch, data, ranks, epoch, BalancedSampler, **options)
        for epoch in range(40)
    ]
    total = 0
    for drawn in epochs:
        assert len({len(part) for part in drawn}) == 1
        counts = Counter(index for part in drawn for index in part)
        for label, share in zip((7, 2, 4), expected):
            own = [counts[index] for index in range(100) if LABELS[index] == label]
            assert abs(sum(own) - share) < 1 and max(own) - min(own) <= 1, (
                "each image as often as the others"
            )
        total += sum(counts[index] for index in range(90))
    assert total / 40 == pytest.approx(expected[0], abs=0.35)
    assert (
        epochs[0]
        == epochs_of_ranks(monkeypatch, data, ranks, 0, BalancedSampler, **options)
        != epochs[1]
    )
    if options.get("shuffle", True):
        assert epochs[0] != epochs_of_ranks(
            monkeypatch, data, ranks, 0, BalancedSampler, **{**options, "seed": 9}
        )


@pytest.mark.parametrize("labels", [None, [], [[0, 1], [1, 0]]])
def test_samplers_of_classes_need_one_label_an_image(labels):
    data = SimpleNamespace(labels=labels) if labels is not None else range(4)
    for build in (
        BalancedSampler,
        lambda data: MPerClassBatchSampler(SimpleNamespace(dataset=data), 2),
    ):
        with pytest.raises(HypvisionError, match="labels of the training data, one per image"):
            build(data)
