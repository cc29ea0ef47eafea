"""Write texts about records: the table of ``model_zoo/README.md``, model cards, and the table on
the terminal."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from hypvision.checkpoints.records import TASKS, Index, Metric, Record
from hypvision.io import Values
from hypvision.io.errors import count_text
from hypvision.io.files import in_columns, markdown_table

_README = """\
# Model zoo

<!-- Rendered from index.yml; do not edit. To render it again: hypvision zoo list --write-readme model_zoo/README.md -->

{count} weight files, {size} in all. Each is verified against the sha256 in [index.yml](index.yml) before it is loaded.

```python
import hypvision

model = hypvision.load("{example}")  # the same: timm.create_model("{example}", pretrained=True)
```

`hypvision zoo list` lists them, `hypvision zoo card NAME` describes one, [docs/model-zoo.md](../docs/model-zoo.md)
explains mirrors, caches, and how to publish.
"""  # noqa: E501


def size_text(count: int) -> str:
    """Return a number of bytes as text: ``4.3 MB``."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def input_text(record: Record) -> str:
    """Return the size of a record's input as text: ``3x32x32``."""
    return "x".join(map(str, record.input.size))


def metric_text(metric: Metric) -> str:
    """Return name and value of a metric as text: ``top1 56.23 %``; AP is a fraction."""
    unit = "" if metric.name.startswith("coco/") else " %"
    return f"{metric.name} {metric.value:.4g}{unit}"


def _by(metric: Metric) -> str:
    return "us" if metric.measured else f"reported: {metric.reported}"


def readme(index: Index) -> str:
    """Return the text of ``model_zoo/README.md`` for an index."""
    total = sum(record.file.bytes for record in index)
    example = next((record.name for record in index if record.task == "classification"), "NAME")
    parts = [_README.format(count=len(index), size=size_text(total), example=example)]
    head = (
        "name",
        "parameters",
        "input",
        "result",
        "measured on",
        "by",
        "file",
        "config",
        "licence",
    )
    for task in TASKS:
        rows = []
        for record in index.select(task=task):
            best = record.metrics[0]
            result = (metric_text(best), best.data, _by(best))
            file = f"{size_text(record.file.bytes)}, {record.file.storage}"
            config = f"[{record.config.rpartition('/')[2]}](../{record.config})"
            about = (f"`{record.name}`", count_text(record.parameters), input_text(record))
            rows.append((*about, *result, file, config, record.licence))
        if rows:
            table = "\n".join(markdown_table(head, rows, right=("parameters", "file")))
            parts.append(f"## {task.capitalize()}\n\n{table}\n")
    return "\n".join(parts)


# hypvision.load comes first in each example, because it installs the operators that mmseg and mmdet
# import.
_USAGE = {
    "classification": """\
import hypvision, timm

model = hypvision.load("{name}")  # a timm model
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
scores = model(transform(image)[None]).softmax(-1)  # image: a PIL image in RGB""",
    "zero-shot": """\
import hypvision

clip = hypvision.load("{name}")  # an open_clip model
words = clip.encode_text(clip.tokenizer(["a photo of a star", "a photo of a ring"]), normalize=True)
scores = clip.encode_image(images, normalize=True) @ words.T  # images: (B, 3, H, W), normalised""",
    "retrieval": """\
import hypvision

found = hypvision.predict("picture.jpg", "{name}")
point = found[0].result.vector  # on the hyperboloid of curvature -1; hypvision metric search compares images by it""",  # noqa: E501
    "segmentation": """\
import hypvision

model = hypvision.load("{name}")  # an mmseg model
from mmseg.apis import inference_model

labels = inference_model(model, "picture.jpg").pred_sem_seg.data[0]  # (H, W)
names = model.dataset_meta["classes"]  # the name of each label""",
    "detection": """\
import hypvision

model = hypvision.load("{name}")  # an mmdet model
from mmdet.apis import inference_detector

found = inference_detector(model, "picture.jpg").pred_instances  # bboxes, scores, labels (masks)
names = model.dataset_meta["classes"]  # the name of each label""",
}

_HUB_TASKS = {
    "classification": "image-classification",
    "segmentation": "image-segmentation",
    "detection": "object-detection",
    "retrieval": "image-feature-extraction",
    "zero-shot": "zero-shot-image-classification",
}


_CARD = """\
# {record.name}

{record.description}

{facts}

## Use

```python
{usage}
```

## Intended use

{record.intended_use}

## Data

{record.data}
{source}
## Training

Config `{record.config}`.

{training}

## Metrics

{metrics}
{familiar}
## Limits

{limits}
"""
_FRONT = """\
---
license: {licence}
library_name: {library}
pipeline_tag: {task}
tags:
- hypvision
- hyperbolic
---

"""


def model_card(record: Record, front_matter: bool = False) -> str:
    """Return the model card of a record, in Markdown.

    Args:
        record: the record.
        front_matter: begin the card with the YAML block that the Hugging Face hub reads.
    """
    first = [record.prepare] if record.prepare else []
    training = record.training
    if training.startswith("hypvision "):
        training = "\n".join(["```sh", *first, training, "```"])
    card = _CARD.format(
        record=record,
        facts="\n".join(markdown_table(("", ""), _facts(record))),
        usage=_USAGE[record.task].format(name=record.name),
        source=_source(record),
        training=training,
        metrics=_metrics(record),
        familiar=_of_familiar(record),
        limits="\n".join(f"- {limit}" for limit in record.limits),
    )
    if not front_matter:
        return card
    # The library that can load the repository.
    library = "timm" if record.task == "classification" else "hypvision"
    task = _HUB_TASKS[record.task]
    return _FRONT.format(licence=record.licence.lower(), library=library, task=task) + card


def _source(record: Record) -> str:
    """Return the part of a card that says where to get the data of its commands; empty if they
    need none, or one of them makes the data from pictures of the repository, or the config is no
    config of the repository."""
    commands = [metric.command for metric in record.metrics if metric.command]
    made_here = record.prepare is not None and "tools/demo_data" in record.prepare
    if not commands or made_here or not record.config.startswith("configs/"):
        return ""
    return "\nWhere to get the data of the commands below: `docs/data.md`.\n"


def _facts(record: Record) -> list[tuple[str, str]]:
    arguments = f" with `{_code(record.arguments)}`" if record.arguments else ""
    given = record.input
    colours = f"RGB, mean {list(given.mean)}, std {list(given.std)}"
    stored = f"{record.file.bytes} bytes, stored as {record.file.storage}"
    facts = {
        "task": record.task,
        "model": f"`{record.model}`{arguments}",
        "parameters": count_text(record.parameters),
        "input": f"{input_text(record)}, {colours}",
        "classes": f"{len(record.classes)}: {', '.join(record.classes)}",
        "file": f"`{record.filename}`, {stored}",
        "sha256": f"`{record.file.sha256}`",
        "licence": record.licence,
        "date": record.date,
        "sentences": ", ".join(f"`{text}`" for text in record.templates),
        "trained from": f"`{record.parent}`" if record.parent else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _metrics(record: Record) -> str:
    """Return the part of a card with the table of metrics and the commands that measured them."""
    first = [record.prepare] if record.prepare else []
    metrics = record.metrics
    results = [(each.name, f"{each.value:.4g}", each.data, _by(each)) for each in metrics]
    table = markdown_table(("metric", "value", "measured on", "by"), results, right=("value",))
    full = {each.name: each.full_precision for each in metrics if each.full_precision is not None}
    if full:
        values = ", ".join(f"{name} {value:.4g}" for name, value in full.items())
        stored = f"The values are those of the file as it is ({record.file.storage})"
        table += ["", f"{stored}; in full precision: {values}."]
    commands = list(dict.fromkeys(each.command for each in metrics if each.command))
    if commands:
        table += ["", "Measured with:", "", "```sh", *first, *commands, "```"]
    return "\n".join(table)


_NO_CLASSES = (
    "It has no limit for familiar images. A limit is a distance from the mean features of fixed "
    "classes, and a CLIP compares with the words that each call gives: `hypvision predict` names "
    "one of them for every image."
)


def _of_familiar(record: Record) -> str:
    """Return the part of a card on images that are unlike those of the training; empty for a model
    without classes of images, or without a threshold."""
    known = record.familiar
    if record.task == "zero-shot":
        return f"\n## Images that it does not know\n\n{_NO_CLASSES}\n"
    if known is None:
        return ""
    text = (
        "`hypvision predict` warns of an image whose features, of all levels of the network, are "
        f"farther than {known.limit:.2f} (1 minus the cosine) from the mean of every class. 95 % "
        f"of the held-out images ({known.data}) are nearer; rate of false alarms, each half of "
        f"them by the limit of the other: {100 * known.false_alarms:.1f} %."
    )
    if known.foreign:
        shares = ", ".join(
            f"{100 * each.noticed:.0f} % of {each.images} images of {each.data}"
            for each in known.foreign
        )
        given = " ".join(shlex.quote(f"{each.data}=FOLDER") for each in known.foreign)
        text += (
            f" Of images of other kinds it warns of {shares}.\n\nMeasured with:\n\n```sh\n"
            f"hypvision zoo familiar {record.name} --foreign {given}\n```"
        )
    return f"\n## Images that it does not know\n\n{text}\n"


def _code(arguments: Values) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with equal keys as a table of plain text; columns of counts and sizes are aligned
    at the right."""
    right = ("parameters", "params", "multiply-adds", "activations", "size")
    heads = list(rows[0]) if rows else []
    lines = [heads, *(list(row.values()) for row in rows)]
    return in_columns(lines, "".join(">" if head in right else "<" for head in heads))


def listing(records: Iterable[Record], whereabouts: Sequence[str], width: int = 80) -> str:
    """Return records as a table for the terminal, and below each row task, result and the data that
    it was measured on, in lines of at most ``width`` characters; ``whereabouts`` has for each
    record where its file is."""
    records = list(records)
    rows = [
        {
            "name": record.name,
            "params": count_text(record.parameters),
            "input": input_text(record),
            "size": size_text(record.file.bytes),
            "where": where,
        }
        for record, where in zip(records, whereabouts)
    ]
    head, *lines = table(rows).splitlines()
    parts = [head]
    for record, line in zip(records, lines):
        best = record.metrics[0]
        text = f"{record.task}, {metric_text(best)}: {best.data}"
        parts.append(line)
        parts.append(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "))
    parts += ["params: parameters; input: channels x height x width. hypvision zoo card NAME"]
    return "\n".join(parts)
