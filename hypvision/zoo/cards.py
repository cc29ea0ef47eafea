"""Text made from records: the table of ``model_zoo/README.md``, model cards, the table on the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from hypvision.checkpoints.records import TASKS, Index, Metric, Record

__all__ = ["listing", "model_card", "readme", "table"]

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
"""


def size_text(count: int) -> str:
    """Bytes for people: ``4.3 MB``."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def count_text(count: int) -> str:
    """Parameters for people: ``4.2 M``."""
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"


def input_text(record: Record) -> str:
    """``3x32x32``."""
    return "x".join(map(str, record.input["size"]))


def metric_text(metric: Metric) -> str:
    """``top1 56.23``."""
    return f"{metric.name} {metric.value:.4g}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def readme(index: Index) -> str:
    """The text of ``model_zoo/README.md``."""
    total = sum(record.file.bytes for record in index)
    example = next((record.name for record in index if record.task == "classification"), "NAME")
    parts = [_README.format(count=len(index), size=size_text(total), example=example)]
    for task in TASKS:
        records = index.select(task=task)
        if not records:
            continue
        parts.append(f"## {task.capitalize()}\n")
        lines = [
            _row(["name", "parameters", "input", "result", "measured on", "by", "file", "config", "licence"]),
            _row(["---", "--:", "---", "---", "---", "---", "--:", "---", "---"]),
        ]
        for record in records:
            best = record.metrics[0]
            by = "us" if best.measured else f"reported: {best.reported}"
            file = f"{size_text(record.file.bytes)}, {record.file.storage}"
            config = f"[{record.config.rpartition('/')[2]}](../{record.config})"
            lines.append(
                _row(
                    [
                        f"`{record.name}`",
                        count_text(record.parameters),
                        input_text(record),
                        metric_text(best),
                        best.data,
                        by,
                        file,
                        config,
                        record.licence,
                    ]
                )
            )
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _usage(record: Record) -> str:
    if record.task == "classification":
        return (
            f'import hypvision, timm\n\nmodel = timm.create_model("{record.name}", pretrained=True).eval()\n'
            "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))\n"
            "scores = model(transform(image)[None]).softmax(-1)  # image: a PIL image in RGB"
        )
    if record.task == "zero-shot":
        return (
            f'import hypvision\n\nclip = hypvision.load("{record.name}")  # an open_clip model\n'
            'words = clip.encode_text(clip.tokenizer(["a photo of a star", "a photo of a ring"]), normalize=True)\n'
            "scores = clip.encode_image(images, normalize=True) @ words.T  # images: (B, 3, H, W), normalised"
        )
    # The load comes first: it puts the kernels of mmcv in place, which the libraries' apis ask for.
    if record.task == "segmentation":
        return (
            f'import hypvision\n\nmodel = hypvision.load("{record.name}")  # an mmseg model\n'
            "from mmseg.apis import inference_model\n\n"
            'labels = inference_model(model, "picture.jpg").pred_sem_seg.data[0]  # (H, W)\n'
            'names = model.dataset_meta["classes"]  # the name of each label'
        )
    return (
        f'import hypvision\n\nmodel = hypvision.load("{record.name}")  # an mmdet model\n'
        "from mmdet.apis import inference_detector\n\n"
        'found = inference_detector(model, "picture.jpg").pred_instances  # bboxes, scores, labels (masks)\n'
        'names = model.dataset_meta["classes"]  # the name of each label'
    )


_HUB_TASKS = {
    "classification": "image-classification",
    "segmentation": "image-segmentation",
    "detection": "object-detection",
    "zero-shot": "zero-shot-image-classification",
}


def model_card(record: Record, front_matter: bool = False) -> str:
    """The model card of a record, in Markdown.

    Args:
        record: the record.
        front_matter: begin with the YAML block that the Hugging Face hub reads.
    """
    lines: list[str] = []
    if front_matter:
        task = _HUB_TASKS[record.task]
        library = "timm" if record.task == "classification" else "hypvision"  # who reads the repository
        lines += [
            "---",
            f"license: {record.licence.lower()}",
            f"library_name: {library}",
            f"pipeline_tag: {task}",
            "tags:",
        ]
        lines += ["- hypvision", "- hyperbolic", "---", ""]
    lines += [f"# {record.name}", "", record.description, ""]
    lines += [_row(["", ""]), _row(["---", "---"])]
    facts = [
        ("task", record.task),
        ("model", f"`{record.model}`" + (f" with `{_code(record.arguments)}`" if record.arguments else "")),
        ("parameters", count_text(record.parameters)),
        ("input", f"{input_text(record)}, RGB, mean {list(record.input['mean'])}, std {list(record.input['std'])}"),
        ("classes", f"{len(record.classes)}: {', '.join(record.classes)}"),
        ("file", f"`{record.filename}`, {record.file.bytes} bytes, stored as {record.file.storage}"),
        ("sha256", f"`{record.file.sha256}`"),
        ("licence", record.licence),
        ("date", record.date),
    ]
    if record.parent:
        facts.append(("trained from", f"`{record.parent}`"))
    lines += [_row(fact) for fact in facts]
    lines += ["", "## Use", "", "```python", _usage(record), "```"]
    lines += ["", "## Intended use", "", record.intended_use]
    lines += ["", "## Data", "", record.data]
    lines += ["", "## Training", "", f"Config `{record.config}`.", "", "```sh", record.training, "```"]
    lines += ["", "## Metrics", "", _row(["metric", "value", "measured on", "by"]), _row(["---", "--:", "---", "---"])]
    for metric in record.metrics:
        by = "us" if metric.measured else f"reported: {metric.reported}"
        lines.append(_row([metric.name, f"{metric.value:.4g}", metric.data, by]))
    if any(metric.full_precision is not None for metric in record.metrics):
        values = ", ".join(
            f"{metric.name} {metric.full_precision:.4g}"
            for metric in record.metrics
            if metric.full_precision is not None
        )
        lines += [
            "",
            f"The values are those of the file as it is ({record.file.storage}); in full precision: {values}.",
        ]
    commands = list(dict.fromkeys(metric.command for metric in record.metrics if metric.command))
    if commands:
        lines += ["", "Measured with:", "", "```sh", *commands, "```"]
    lines += ["", "## Limits", "", *[f"- {limit}" for limit in record.limits], ""]
    return "\n".join(lines)


def _code(arguments: Mapping) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())


def table(rows: list[dict[str, str]]) -> str:
    """Rows with equal keys as columns of plain text."""
    if not rows:
        return ""
    heads = list(rows[0])
    widths = [max(len(head), *(len(row[head]) for row in rows)) for head in heads]
    numbers = {"parameters", "size"}
    lines = []
    for cells in [dict(zip(heads, heads)), *rows]:
        line = (
            cells[head].rjust(width) if head in numbers else cells[head].ljust(width)
            for head, width in zip(heads, widths)
        )
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def listing(records: Iterable[Record], whereabouts: Sequence[str]) -> str:
    """Records as a table on the terminal; ``whereabouts`` says where the file of each is."""
    return table(
        [
            {
                "name": record.name,
                "task": record.task,
                "parameters": count_text(record.parameters),
                "input": input_text(record),
                "result": metric_text(record.metrics[0]),
                "measured on": record.metrics[0].data,
                "size": size_text(record.file.bytes),
                "where": where,
            }
            for record, where in zip(records, whereabouts)
        ]
    )
