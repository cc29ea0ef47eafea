"""Tables of the site that are made from what machines read: configs from their metafiles, weights
from the zoo's index.

```{configs} hcformer
```

```{weights} hcformer
```
"""

from pathlib import Path

import yaml
from sphinx.util.docutils import SphinxDirective

from hypvision.checkpoints.index import read_index
from hypvision.io.errors import count_text
from hypvision.zoo.cards import metric_text, size_text

ROOT = Path(__file__).resolve().parents[1]
REPORTED = {"paper": "the paper", "here": "this repository", "authors": "its authors"}


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )


def results(model):
    """All results of a model of a metafile in one line."""
    found = []
    for result in model.get("Results", ()):
        numbers = ", ".join(f"{name} {value}" for name, value in result["Metrics"].items())
        found.append(f"{result['Dataset']}: {numbers}")
    return "; ".join(found)


def parameters(model):
    """The number of parameters that a metafile tells, and of what."""
    for key, value in model.get("Metadata", {}).items():
        if "Parameters (M)" in key:
            return f"{value} M {key.removesuffix('Parameters (M)').strip().lower()}".strip()
    return ""


def configs(folder):
    """The table of the configs in a folder of configs/, folded where it is long."""
    path = ROOT / "configs" / folder / "metafile.yml"
    models = yaml.safe_load(path.read_text(encoding="utf-8"))["Models"]
    if not models:
        return "Nothing here is trained from a config."
    rows = [
        (
            f"[{model['Name']}](/{model['Config']})",
            parameters(model),
            results(model),
            REPORTED.get(model.get("Reported"), ""),
        )
        for model in models
    ]
    text = table(("config", "parameters", "result", "reported by"), rows)
    return text if len(rows) <= 8 else f":::{{dropdown}} {len(rows)} configs\n{text}\n:::"


def weights(folder):
    """The table of the weights in the zoo that were trained by configs of a folder."""
    records = [
        r
        for r in read_index(ROOT / "model_zoo/index.yml")
        if r.config.startswith(f"configs/{folder}/")
    ]
    if not records:
        return (
            "No weights of this method ship: none are published, and the trainings here were small."
        )
    rows = [
        (
            f"`{record.name}`",
            count_text(record.parameters),
            metric_text(record.metrics[0]),
            record.metrics[0].data,
            size_text(record.file.bytes),
        )
        for record in records
    ]
    return table(("weights", "parameters", "result", "measured on", "file"), rows)


class Table(SphinxDirective):
    """A table of the folder of configs that is its argument."""

    required_arguments = 1
    make = None

    def run(self):
        folder = self.arguments[0]
        for path in (
            f"configs/{folder}/metafile.yml",
            "model_zoo/index.yml",
            "docs/site_tables.py",
        ):
            self.env.note_dependency(str(ROOT / path))
        return self.parse_text_to_nodes(type(self).make(folder))


class Configs(Table):
    make = staticmethod(configs)


class Weights(Table):
    make = staticmethod(weights)


def setup(app):
    app.add_directive("configs", Configs)
    app.add_directive("weights", Weights)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
