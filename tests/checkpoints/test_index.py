"""The schema of the index, and the index that ships."""

import copy
import datetime
import hashlib
from pathlib import Path

import pytest
import timm
import yaml
from helpers.cases import each
from helpers.zoo import NAME

from hypvision.checkpoints.index import dump_index, parse_index, parse_record, read_index
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.records import Index
from hypvision.checkpoints.sources import local_files
from hypvision.checkpoints.storage import expand_tokens, read_header
from hypvision.io.errors import HypvisionError
from hypvision.zoo.cards import model_card, readme

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "model_zoo"
SHIPPED = list(read_index(ZOO))


def changed(item, place, value):
    """A copy of a record with one value replaced; ``...`` removes it."""
    item = copy.deepcopy(item)
    *path, last = place.split(".")
    inner = item
    for key in path:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return item


def test_a_record_survives_writing_and_reading(item):
    record = parse_record(item)
    index = parse_index(dump_index(Index({record.name: record})))
    assert index.get(NAME) == record
    assert (
        record.filename == f"{NAME}-{item['file']['sha256'][:8]}.safetensors"
        and record.tag == "micro"
    )


@each(
    "place, value, message",
    [
        ("licence", ..., "missing licence"),
        ("file.sha256", ..., "missing sha256"),
        ("licence_", "MIT", "unknown key 'licence_'. Did you mean licence?"),
        ("name", "hcformer_nano", "MODEL.TAG"),
        ("name", "../evil.tag", "MODEL.TAG"),
        ("name", 3, "must be text"),
        ("name", "a." + "b" * 200, "at most 128"),
        ("task", "poetry", "one of classification"),
        ("file.sha256", "abc", "64 hexadecimal"),
        ("file.bytes", 0, "positive"),
        ("file.bytes", True, "whole number"),
        ("file.storage", "int4", "one of float32"),
        ("file.path", "/etc/x.safetensors", "relative"),
        ("file.path", "../x.safetensors", "relative"),
        ("file.path", "weights\\x.safetensors", "relative"),
        ("file.path", "c:x.safetensors", "relative"),
        ("file.path", "weights/x.pth", "must end in .safetensors"),
        ("file.path", ..., "where the file lies"),
        ("file.urls", ["ftp://host/x"], "must begin with"),
        ("file.urls", "https://host/x", "must be a list"),
        ("config", "../x.py", "relative"),
        ("metrics", [], "at least one"),
        ("metrics.0.value", "high", "finite number"),
        ("metrics.0.value", 10**400, "finite number"),
        ("metrics.0.measured", ..., "either 'measured: us'"),
        ("metrics.0.reported", "a paper", "either 'measured: us'"),
        ("metrics.0.measured", "them", "measured: us"),
        ("metrics.0.command", ..., "the 'command' that repeats it"),
        ("input.size", [3, 32], "channels, height, width"),
        ("input.mean", [0.5], "one number a channel"),
        ("input.std", [0.5, 0.0, 0.5], "'std' must be above 0"),
        ("input.crop_pct", 2, "crop_pct"),
        ("date", "yesterday", "YYYY-MM-DD"),
        ("classes", "one", "must be a list"),
        ("classes", ["one", "\x1b]0;evil\x07"], "must be text"),
        ("description", "\x1b[2J", "control characters"),
        ("parent", ["a.b"], "'parent' must be text"),
        ("limits", [], "at least one"),
        ("arguments", [1], "mapping"),
        ("arguments", {"when": datetime.date(2026, 1, 1)}, "mapping of numbers"),
        ("arguments", {"dims": [1, {2: 3}]}, "mapping of numbers"),
        ("arguments", {"checkpoint_path": "evil.pth"}, "contain 'checkpoint_path'"),
        ("arguments", {"pretrained_cfg": {"custom_load": "x"}}, "contain 'pretrained_cfg'"),
        ("arguments", {"backbone": "local-dir:/folder"}, "contain 'local-dir:/folder'"),
    ],
)
def test_mistakes_are_named(item, place, value, message):
    with pytest.raises(HypvisionError) as caught:
        parse_record(changed(item, place, value), "index.yml, record 1")
    assert message in str(caught.value) and "record 1" in str(caught.value)


def test_reported_metrics_name_a_paper(item):
    metric = {"name": "top1", "value": 73, "data": "ImageNet", "reported": "Wei et al., ECCV 2026"}
    assert parse_record(changed(item, "metrics", [metric])).metrics[0].reported.startswith("Wei")
    with pytest.raises(HypvisionError, match="'reported' must be text"):
        parse_record(changed(item, "metrics", [{**metric, "reported": 3}]))
    with pytest.raises(HypvisionError, match="no 'command'"):
        parse_record(changed(item, "metrics", [{**metric, "command": "x"}]))


@each(
    "text, message",
    [
        ("version: 1\nrecords: [", "not valid YAML"),
        ("records: []", "missing version"),
        ("version: 1\nrecords: []\nmore: 1", "unknown key 'more'"),
        ("version: 2\nrecords: []", "Update hypvision"),
        ("version: 1\nversion: 1\nrecords: []", "stands twice"),
        ("version: 1\nrecords: {}", "must be a list"),
        ("version: 1\nrecords: [3]", "must be a mapping"),
        ("version: 1\nrecords: [{date: 2026-02-30}]", "not valid YAML.*day"),
        ("version: " + "9" * 5000 + "\nrecords: []", "not valid YAML"),
        ("version: 1\nrecords: " + "[" * 5000, "not valid YAML"),
        ("version: 1\nrecords: [!!python/object/apply:os.system [ls]]", "not valid YAML"),
    ],
)
def test_broken_files_are_explained(text, message):
    with pytest.raises(HypvisionError, match=message):
        parse_index(text)


def test_a_few_lines_cannot_fill_the_memory():
    """Nine times ten aliases of aliases: a thousand million entries for whoever writes them out in
    a message."""
    lines = ["version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(HypvisionError, match=r"alias '\*a0'; write it out"):
        parse_index("\n".join([*lines, "records: [{task: *a8}]"]))


def test_passwords_are_not_shown(item):
    with pytest.raises(HypvisionError) as caught:
        parse_index("version: 2\nrecords: []", address="https://me:secret@host/folder")
    assert "https://host/folder" in str(caught.value) and "secret" not in str(caught.value)


def test_names_are_unique_and_parents_exist(item):
    def text(*items):
        return yaml.safe_dump({"version": 1, "records": list(items)})

    with pytest.raises(HypvisionError, match="is listed twice"):
        parse_index(text(item, copy.deepcopy(item)))
    with pytest.raises(HypvisionError, match="parent"):
        parse_index(text({**item, "parent": "no.such"}))
    assert len(parse_index(text(item, {**copy.deepcopy(item), "name": "b.c", "parent": NAME}))) == 2


def test_close_names_and_patterns(item):
    names = ["hcformer_nano.cifar10", "hcformer_nano.scenes", "himapper_tiny.cifar10"]
    index = Index({name: parse_record({**item, "name": name}) for name in names})
    with pytest.raises(HypvisionError, match="Did you mean hcformer_nano.cifar10"):
        index.get("hcformer_nano.cifar")
    with pytest.raises(HypvisionError, match="hcformer_nano.scenes"):
        index.get("hcformer_nano")
    assert [r.name for r in index.select("cifar")] == [names[0], names[2]]
    assert [r.name for r in index.select("hcformer*")] == names[:2]
    assert index.select(task="detection") == []


def test_a_link_out_of_the_folder_is_not_followed(item, tmp_path, micro):
    """A packaged path may not lead out of the zoo by a symbolic link either."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "weights").symlink_to(micro[1].parent)
    record = parse_record(item)
    assert "packaged" not in local_files(Index({}, tmp_path / "zoo"), record)


# What ships


def test_the_readme_is_rendered_from_the_index():
    expected = readme(read_index(ZOO))
    assert (ZOO / "README.md").read_text() == expected, (
        "run: hypvision zoo list --write-readme model_zoo/README.md"
    )


def test_the_files_that_ship_are_those_of_the_index_and_small():
    listed = {ZOO / record.file.path for record in SHIPPED if record.file.path}
    assert listed == set((ZOO / "weights").glob("*"))
    assert sum(path.stat().st_size for path in listed) <= 40 * 2**20
    assert max(path.stat().st_size for path in listed) <= 8_000_000


@each("record", SHIPPED)
def test_each_shipped_record_is_true_of_its_file(record):
    path = ZOO / record.file.path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record.file.sha256
    assert path.stat().st_size == record.file.bytes and path.name == record.filename
    header, weights = read_header(path), read_weights(path)
    assert header["storage"] == record.file.storage and tuple(header["classes"]) == record.classes
    assert sum(value.numel() for value in expand_tokens(weights).values()) == record.parameters
    assert all(value.isfinite().all() for value in weights.values())
    assert (ROOT / record.config).is_file()
    assert all(f"{record.config} zoo:{record.name}" in metric.command for metric in record.metrics)
    trained_here = record.training.startswith(f"hypvision train {record.config}")
    assert trained_here != record.training.startswith("Not trained with hypvision")


OURS = [
    r
    for r in SHIPPED
    if r.task == "classification"
    and timm.model_entrypoint(r.model).__module__.startswith("hypvision")
]


@each("record", OURS)
def test_timms_tag_and_the_record_agree(record):
    cfg = timm.get_pretrained_cfg(record.name)
    assert cfg.url == f"zoo:{record.name}" and cfg.num_classes == len(record.classes)
    for key in ("mean", "std", "crop_pct", "interpolation"):
        assert getattr(cfg, key) == getattr(record.input, key), key
    assert cfg.input_size == record.input.size
    tagged = timm.create_model(record.name)
    plain = timm.create_model(
        record.model,
        num_classes=len(record.classes),
        **{k: tuple(v) if isinstance(v, list) else v for k, v in record.arguments.items()},
    )
    assert str(tagged) == str(plain)
    assert {k: v.shape for k, v in tagged.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items()
    }
    if record.model.startswith("hcformer"):
        assert (
            tagged.stages[0].blocks[0].layer_scale1 == plain.stages[0].blocks[0].layer_scale1
        ).all()


def test_every_tag_with_weights_is_in_the_index():
    ours = [
        name
        for name in timm.list_pretrained()
        if (timm.get_pretrained_cfg(name).url or "").startswith("zoo:")
    ]
    assert sorted(ours) == sorted(record.name for record in OURS)


@each("record", SHIPPED)
def test_cards_hold_what_the_record_says(record):
    card = model_card(record, front_matter=True)
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == record.licence.lower() and "hypvision" in front["tags"]
    assert (front["library_name"] == "timm") == (record.task == "classification")
    for part in (
        record.training,
        record.data,
        record.intended_use,
        record.file.sha256,
        *record.limits,
    ):
        assert part in card
    for heading in ("Intended use", "Data", "Training", "Metrics", "Limits"):
        assert f"## {heading}" in card
    assert f"| {record.metrics[0].name} | {record.metrics[0].value:.4g} |" in card


def test_cards_say_where_to_get_data_that_no_command_of_theirs_makes():
    without = {record.name for record in SHIPPED if "`docs/data.md`" not in model_card(record)}
    assert without == {"emoji-t8.scenes", "hyperclip_t8.emoji"}


def test_records_that_compare_with_words_name_their_sentences():
    """CLIPs, and segmenters and detectors on a CLIP, whose config is in the header."""
    from hypvision.checkpoints.storage import read_header

    found = {}
    for record in SHIPPED:
        model = read_header(ZOO / record.file.path).get("model") or {}
        if record.task == "zero-shot" or "clip" in model:
            found[record.name] = record.templates
    assert {"emoji-s16.captions", "hyperclip_t8.emoji"} < set(found)
    assert all(found.values()), found
    assert "sentences" in model_card(read_index(ZOO).get("hyperclip_t8.emoji"))
