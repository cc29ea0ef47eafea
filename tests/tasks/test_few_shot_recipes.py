"""The recipes: every method in every protocol as published, and Tip-Adapter's numbers of each data
set.

python tests/tasks/test_few_shot_recipes.py     # prints the table of configs/fewshot/README.md
"""

import math
from pathlib import Path

import pytest
from helpers.cases import each

from hypvision.clip.prompting import hosts
from hypvision.data.fewshot.layouts import SETS
from hypvision.io.errors import HypvisionError
from hypvision.tasks.few_shot_recipes import (
    PROTOCOLS,
    TIP_ADAPTER,
    few_shot_config,
    methods,
    recipe,
)

WORDS = dict(tokens=4, words="a photo of a")
# Method -> protocols -> options of the host beside its name, rate, epochs on ImageNet and on DTD,
# batch; 16 shots. CoOp (IJCV 2022; four words and 50 epochs on ImageNet in CoCoOp's comparison),
# CoCoOp (CVPR 2022), MaPLe (CVPR 2023, with deep vision and deep language prompts), PromptSRC (ICCV
# 2023, with IVLP), PromptKD (CVPR 2024), CLIP-Adapter (2021), Tip-Adapter (ECCV 2022).
CROSS = ("cross", "dg")
RECIPES = {
    "zeroshot": {PROTOCOLS: ({}, None, 0, 0, None)},
    "coop": {
        ("shots",): ({}, 0.002, 50, 200, 32),
        ("base2new", *CROSS): (WORDS, 0.002, 50, 200, 32),
    },
    "cocoop": {PROTOCOLS: ({}, 0.002, 10, 10, 1)},
    "clip-adapter": {PROTOCOLS: ({}, 0.002, 50, 200, 32)},
    "deep-vision": {PROTOCOLS: ({}, 0.0025, 5, 5, 4)},
    "deep-language": {PROTOCOLS: ({}, 0.0025, 5, 5, 4)},
    "ivlp": {PROTOCOLS: ({}, 0.0025, 20, 20, 4)},
    "maple": {
        ("base2new",): ({}, 0.0035, 5, 5, 4),
        ("shots",): ({}, 0.0035, 50, 50, 4),
        CROSS: (dict(depth=3), 0.0026, 2, 2, 4),
    },
    "promptsrc": {
        ("base2new",): ({}, 0.0025, 20, 20, 4),
        ("shots",): ({}, 0.0025, 50, 50, 4),
        CROSS: (dict(depth=3), 0.0025, 20, 20, 4),
    },
    "promptkd": {
        ("base2new", "shots"): ({}, 0.005, 20, 20, 8),
        CROSS: (dict(depth=3), 0.005, 20, 20, 8),
    },
    "tip-adapter": {("shots",): (dict(tune=False, beta=1.0), None, 0, 0, None)},
    "tip-adapter-f": {("shots",): (dict(tune=True, beta=1.0), 0.001, 20, 20, 256)},
    "linear-probe": {("shots",): ({}, None, 0, 0, None)},
}
SIZES = {  # what the data gives
    "linear-probe": ("classes",),
    "tip-adapter": ("keys", "classes", "alpha", "ensemble"),
    "tip-adapter-f": ("keys", "classes", "alpha", "ensemble"),
    "promptkd": ("weight",),
}


def test_a_method_of_ones_own_has_the_recipe_of_prompts():
    before = dict(hosts.HOSTS)
    try:

        class Mine(hosts.Host, name="mine"):
            pass

        assert "mine" in methods()
        found = few_shot_config("mine+lath", "shots", classes=3, images=12)
        ivlp = few_shot_config("ivlp+lath", "shots", classes=3, images=12)
        assert found["model"]["host"] == dict(name="mine")
        assert found["optim_wrapper"] == ivlp["optim_wrapper"]
        assert found["train_cfg"] == ivlp["train_cfg"]
    finally:
        hosts.HOSTS.clear()
        hosts.HOSTS.update(before)


@each("method", methods())
def test_recipes_are_the_published_ones(method):
    seen = set()
    for protocols, (options, lr, imagenet, dtd, batch) in RECIPES[method].items():
        for protocol in protocols:
            seen.add(protocol)
            for dataset, epochs in (("imagenet", imagenet), ("dtd", dtd)):
                found = recipe(method, protocol, dataset, 16, 24, 384)
                own = {
                    key: value
                    for key, value in found.host.items()
                    if key not in SIZES.get(method, ())
                }
                assert own == dict(options, name=method.removesuffix("-f")), (protocol, dataset)
                assert found.epochs == epochs
                assert not epochs or (found.lr, found.batch) == (lr, batch)
    assert seen == set(PROTOCOLS) or seen == {"shots"}


def test_recipes_of_other_shots_and_data():
    assert [recipe("coop", "shots", "dtd", k, 24, 384).epochs for k in (1, 2, 4, 8, 16)] == [
        50,
        100,
        100,
        200,
        200,
    ]

    def average(protocol, dataset="dtd"):
        return recipe("promptsrc", protocol, dataset, 16, 24, 384).average

    assert average("base2new") == (15, 1) and average("cross") == average("dg") == (6, 10)
    assert average("shots") == (45, 5) and average("shots", "food101") == (30, 30)
    weights = {
        name: recipe("promptkd", "base2new", name, 16, 24, 384).host["weight"] for name in SETS
    }
    assert {name for name, weight in weights.items() if weight == 200} == {
        "fgvc_aircraft",
        "oxford_flowers",
        "dtd",
    }
    assert (
        set(weights.values()) == {200, 1000}
        and recipe("promptkd", "base2new", "dtd", 16, 24, 384).unlabelled
    )
    with pytest.raises(HypvisionError, match="no few-shot method 'mapel'. Did you mean maple"):
        few_shot_config("mapel")
    with pytest.raises(HypvisionError, match="linear probe does not have"):
        few_shot_config("linear-probe+lath")
    with pytest.raises(HypvisionError, match="protocol must be one of"):
        few_shot_config("maple", "base")


UNPUBLISHED = {
    ("maple", "shots"): "ours: its few-shot settings are not published",
    ("deep-vision", PROTOCOLS[0]): "ours: not published apart from MaPLe",
    ("deep-language", PROTOCOLS[0]): "ours: not published apart from MaPLe",
    ("tip-adapter-f", "shots"): "the same; on EuroSAT 100 epochs",
}


def table():
    """Published settings, which the recipes have: the tests above compare them."""
    lines = [
        "| method | protocol | rate | epochs on ImageNet, on others | batch | published / here |",
        "|---|---|--:|---|--:|---|",
    ]
    for method, rows in RECIPES.items():
        for protocols, (options, rate, imagenet, others, batch) in rows.items():
            if rate is not None:
                wanted = "all" if len(protocols) == len(PROTOCOLS) else ", ".join(protocols)
                own = UNPUBLISHED.get((method, protocols[0]), "the same")
                more = ", ".join(
                    f"{key} {value}" for key, value in options.items() if key in ("depth", "words")
                )
                cells = [
                    method + (f" ({more})" if more else ""),
                    wanted,
                    f"{rate:g}",
                    f"{imagenet}, {others}",
                    str(batch),
                    own,
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_readme_has_the_table():
    assert table() in (Path(__file__).parents[2] / "configs/fewshot/README.md").read_text()


# In the alphabetical order of the configs of Tip-Adapter's code.
TIP_SETS = ("caltech101", "dtd", "eurosat", "fgvc_aircraft", "food101", "imagenet",
"oxford_flowers", "oxford_pets",
            "stanford_cars", "sun397", "ucf101")  # fmt: skip
TIP_ALPHA = (3, 2, 2, 5, 1.17, 1.17, 10, 1.17, 3, 1.17, 3)
TIP_ENDS = (
    (12, 5),
    (13, 13),
    (12, 10),
    (30, 30),
    (10, 10),
    (7, 3),
    (50, 50),
    (7, 3),
    (20, 10),
    (12, 10),
    (7, 3),
)


def test_tip_adapters_numbers_are_those_of_its_configs():
    assert set(TIP_ADAPTER) == set(SETS) == set(TIP_SETS) and list(TIP_SETS) == sorted(TIP_SETS)
    for dataset, alpha, ends in (*zip(TIP_SETS, TIP_ALPHA, TIP_ENDS), ("mine", 1.17, (7, 3))):
        for method in ("tip-adapter", "tip-adapter-f"):
            config = few_shot_config(method, "shots", dataset=dataset, classes=100, images=1600)
            host = config["model"]["host"]
            assert (host["alpha"], host["beta"], host["keys"]) == (alpha, 1.0, 1600)
            assert host["ensemble"] == (dataset == "imagenet")
            (hook,) = [hook for hook in config["custom_hooks"] if hook["type"] == "TipAdapterHook"]
            assert tuple(hook["ends"]) == ends
            loader = config["train_dataloader"]
            assert loader["dataset"]["repeat"] and loader["dataset"]["scale"] == (0.5, 1.0)
        assert (
            loader["batch_size"] == 256 and not loader["drop_last"] and math.ceil(1600 / 256) == 7
        )
        assert config["train_cfg"]["max_epochs"] == (100 if dataset == "eurosat" else 20)
        optimizer = config["optim_wrapper"]["optimizer"]
        assert (optimizer["type"], optimizer["lr"], optimizer["eps"]) == ("AdamW", 1e-3, 1e-4)
    others = few_shot_config("clip-adapter", "shots", images=1600)["train_dataloader"]
    assert others["drop_last"] and "repeat" not in others["dataset"]


if __name__ == "__main__":
    print(table())
