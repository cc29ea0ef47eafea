"""Every reader of JSON and CSV that the toolkit or a user wrote, on crafted files: a result or one
clear sentence."""

import copy
import json
from dataclasses import asdict

from helpers.cases import each
from superposition.claims import CLAIMS, claims_of, claims_of_language_models

from hypvision.clip.locate import repository_config
from hypvision.clip.radial.retrieval import read_tree
from hypvision.data.chains import read_chains
from hypvision.data.classes import load_classes
from hypvision.data.emoji import read_emoji
from hypvision.data.emoji_export import already_there
from hypvision.data.fewshot.splits import read_split
from hypvision.data.language import _stored
from hypvision.data.retrieval import _in_file
from hypvision.io.errors import HypvisionError
from hypvision.io.records import ShardTable, read_record, read_table
from hypvision.scaling.language_models import Head, loss_fit, read_losses, read_models
from hypvision.scaling.sweep import Point, open_results, read_rows
from hypvision.scaling.sweep import Settings as Sweep
from hypvision.tasks.classification_metrics import GroupAccuracy
from hypvision.tasks.few_shot_benchmark import (
    CellSpec,
    Result,
    Settings,
    check_settings,
    is_finished,
)
from hypvision.tasks.few_shot_figures import load_cell_model
from hypvision.tasks.few_shot_tables import write_tables

CELL = CellSpec("base2new", "maple+lath", "dtd", 16, 1)
RESULT = Result(
    CELL, dict(base=60.0, new=40.0), Settings(dict(name="tiny"), adapter=dict(beta=0.5)), 7, 5
)
POINTS = [Point("power", 1.0, 0.0, -1.0, m) for m in (5, 8, 12)]
MEASURES = dict(
    n=200, active=1.0, loss=0.5, loss_std=0.1, train_loss=0.5, train_loss_std=None, phi_half=1.0,
    phi_one=0.5, strong_rows=20, overlap_mean=0.1, overlap_variance=0.01, overlap_max=0.9,
    overlap_mean_all=0.1, overlap_variance_all=0.01, overlap_max_all=0.9, overlap_deviation=0.1,
    welch=0.1, welch_excess=0.1, frame_potential=1.0, etf_possible=False, unlearned_loss=0.1,
    unlearned_approximation=0.1, lost_loss=0.2, ambiguity=1.0, norm_mean=1.0, norm_min=0.5,
    norm_max=1.2, steps=4000, shortened="",
)  # fmt: skip
CLASSES = [
    dict(label=0, classname="mammal", subgroup="animal-mammal", group_name="animal or plant")
]
EMOJI = [
    dict(
        id="1f436",
        name="dog face",
        keywords=["dog", "pet"],
        group="Animals",
        subgroup="animal-mammal",
    )
]


def deep(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found


WRONG = [
    None, True, -1, 1.5, float("nan"), float("inf"), 10**400, "", "../../x", "\ud800", "a\x1b[2Jb",
    [], {}, [[]], {"a": {}}, deep(500),
]  # fmt: skip


def places(content, place=()):
    yield place
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for name, item in items:
        yield from places(item, (*place, name))


def crafted(content):
    """Texts of a JSON file with one fault each, and whether no reader may take it."""
    whole = json.dumps(content)
    for text in ("", whole[: len(whole) // 2], "[" * 100_000, "\ufeff\ufeff" + whole, '"x"', "3"):
        yield text, True
    for place in places(content):
        for wrong in WRONG:
            changed = copy.deepcopy(content)
            inner = changed
            for name in place[:-1]:
                inner = inner[name]
            if place:
                inner[place[-1]] = wrong
            yield json.dumps(changed if place else wrong), False
        if place and isinstance(place[-1], str):
            del inner[place[-1]]
            yield json.dumps(changed), False
    if isinstance(content, dict):
        yield json.dumps({**content, "unknown": 1}), False
        name = next(iter(content))
        yield f'{{"{name}": 1, {whole[1:]}', None  # twice


def few_shot_table(folder):
    write_tables(folder, folder / "tables")
    assert is_finished(folder, CELL) in (True, False)


def few_shot_cell(folder):
    try:
        load_cell_model(folder / CELL.key, folder)
    except HypvisionError as error:
        if "no checkpoint" not in str(error):  # as far as the result is concerned
            raise


def sweep_rows(folder):
    rows = read_rows(folder, POINTS)
    for figure in CLAIMS:
        claims_of(figure, rows)


def emoji(folder):
    assert all(".." not in item.id for item in read_emoji(folder, "train")[0])


def tokens(folder):
    (folder / "a.bin").write_bytes(bytes(10))
    if _stored(folder / "a.bin", folder / "a.json", "uint16") is None:  # are made again
        raise HypvisionError(str(folder))


def shards(folder):
    assert ".." not in str(read_record(ShardTable, folder / "m.json", "", extra=True))


SPLIT = [["a.jpg", 0, "cat"], ["b.jpg", 1, "dog"]]
OTHERS = {
    "points/other.json": {}, "splits/classes.json": CLASSES, "emoji.json": EMOJI,
    "splits/emoji_split.json": dict(train=["1f436"]),
}  # fmt: skip
WRITTEN = dict(asdict(RESULT), cell=CELL._asdict(), settings=RESULT.settings.shared())
JSON = {
    "few-shot result, tables": (f"{CELL.key}/result.json", WRITTEN, few_shot_table),
    "few-shot result, figures": (f"{CELL.key}/result.json", WRITTEN, few_shot_cell),
    "few-shot settings": ("settings.json", RESULT.settings.shared(), lambda f: check_settings(f,
    RESULT.settings)),
    "scaling rows": (f"points/{POINTS[0].key}.json", asdict(POINTS[0]) | MEASURES, sweep_rows),
    "scaling settings": ("settings.json", asdict(Sweep()), lambda f: open_results(f, Sweep())),
    "emoji classes": ("splits/classes.json", CLASSES, emoji), "emoji": ("emoji.json", EMOJI, emoji),
    "emoji split": ("splits/emoji_split.json", OTHERS["splits/emoji_split.json"], emoji),
    "stored tokens": ("a.json", dict(sizes=[2, 3], bytes=9), tokens),
    "class list": ("c.json", dict(cat=0, dog=1), lambda f: load_classes(f / "c.json")),
    "tree of labels": ("t.json", dict(cat=["animal"]), lambda f: read_tree(f / "t.json")),
    "groups of classes": ("g.json", dict(cat=["animal"]), lambda f: GroupAccuracy(str(f / "g.json"),
    ["kind"])),
    "ancestors": ("g.json", dict(k=dict(a=["b"])), lambda f: _in_file(f"{f}/g.json:k", dict[str,
    list[str]])),
    "split file": ("s.json", dict(train=SPLIT, val=[], test=SPLIT),
    lambda f: read_split(f / "s.json", f)),
    "shard table": ("m.json", dict(weight_map=dict(a="b.safetensors")), shards),
    "drawn data": ("dataset.json", dict(seed=0), lambda f: already_there(f, dict(seed=0), True)),
    "open_clip config": ("open_clip_config.json", dict(model_cfg=dict(vision_cfg={}, text_cfg={})),
    repository_config),
}  # fmt: skip


@each("reader", JSON)
def test_json(reader, tmp_path):
    name, content, read = JSON[reader]
    folder = tmp_path / "inner" / "folder"
    for other, own in {**OTHERS, name: content}.items():
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_text(json.dumps(own))
    read(folder)
    refused = 0
    for text, never in crafted(content):
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            read(folder)
        except HypvisionError as error:
            refused += 1
            assert str(folder) in str(error) and len(str(error)) < 2000, text[:200]
        else:
            assert never is not True, text[:200]
        assert [path.name for path in tmp_path.iterdir()] == ["inner"], text[:200]
        assert [path.name for path in (tmp_path / "inner").iterdir()] == ["folder"], text[:200]
    assert refused > 20


LINE = dict(model="a/b", tensor="lm_head.weight", **dict.fromkeys(Head._fields[2:], "0.5"))
CHAIN = dict(positive="animal => dog", negative="plant => cat", image_url="1")
CSV = {
    "heads": (
        LINE,
        lambda path: claims_of_language_models(
            [row._asdict() for _, row in read_table(Head, path)], None
        ),
    ),
    "losses": (
        dict(family="A", dataset="c4", m="512", loss="3.5"),
        lambda path: loss_fit(read_losses(path)),
    ),
    "models": (dict(family="A", model="a/b", head="lm_head.weight", m="512"), read_models),
    "chains": (CHAIN, read_chains),
}


def tables(row):
    """CSV files with one fault each, and whether no reader may take it."""
    head, cells = ",".join(row), list(row.values())
    for text in ("", head, f"{head},{head}\n{','.join(cells * 2)}", f"{head}\n{','.join(cells)},9"):
        yield text.encode(), text.count(",") > len(row)
    yield f"{head}\n{','.join(cells[:-1])}".encode(), True
    yield f"{head}\n\xe9".encode("latin-1"), True
    yield b"\x1f\x8b\x08\x00garbage", True
    for number in range(len(row)):
        for wrong in (
            "",
            "x",
            "nan",
            "inf",
            "1e999",
            "9" * 5000,
            "-1",
            "../x",
            "\x00",
            "=1+1",
            '"',
            "a" * 200_000,
        ):
            yield (
                f"{head}\n{','.join([*cells[:number], wrong, *cells[number + 1 :]])}".encode(),
                False,
            )
        short = [text for i, text in enumerate(row) if i != number]
        yield f"{','.join(short)}\n{','.join(cells[:number] + cells[number + 1 :])}".encode(), False


@each("reader", CSV)
def test_csv(reader, tmp_path):
    row, read = CSV[reader]
    path = tmp_path / "table.csv"
    for text, never in tables(row):
        path.write_bytes(text)
        try:
            read(path)
        except HypvisionError as error:
            assert len(str(error)) < 1000
        else:
            assert not never, text[:200]
