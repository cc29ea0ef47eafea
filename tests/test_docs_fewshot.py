"""Every mean and deviation of the few-shot study's tables is that of the accuracies in its result
file."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from helpers.cases import each

ROOT = Path(__file__).parents[1]
CELLS = json.loads((ROOT / "docs/studies/fewshot-emoji.json").read_text())
PAGE = (ROOT / "configs/fewshot/README.md").read_text().partition("## On emoji")[2]
ROWS = re.findall(r"^\| ([a-z+-]+) \| (\d) \| (\d.*) \|$", PAGE, re.MULTILINE)


def _columns(protocol, method, data="emoji-noto"):
    """Mean, deviation (None of one seed) and seeds of each column; the harmonic mean is that of the
    means, and its deviation is over the seeds."""
    start = f"{protocol}/{method}/{data}/"
    seeds = [list(value.values()) for key, value in CELLS.items() if key.startswith(start)]
    columns = list(zip(*seeds))
    means = [statistics.fmean(values) for values in columns]
    if protocol == "base2new":
        columns.append([statistics.harmonic_mean(pair) for pair in seeds])
        means.append(statistics.harmonic_mean(means))
    spread = [statistics.stdev(values) if len(seeds) > 1 else None for values in columns]
    return list(zip(means, spread)), len(seeds)


def _text(mean, spread):
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def test_the_page_has_a_row_of_each_method_that_was_run():
    run = sorted(key.split("/")[1] for key in CELLS if key.endswith("seed1"))
    assert sorted(method for method, _, _ in ROWS) == run


@each("row", ROWS)
def test_rows_are_recomputed_from_the_result_file(row):
    method, seeds, numbers = row
    cells = [cell.strip() for cell in numbers.split("|")]
    numbers = [cell for cell in cells if cell]
    # The linear probe has no weights for new classes: it was run on the base classes alone.
    data = "emoji-noto-base" if len(cells) > len(numbers) else "emoji-noto"
    columns, count = _columns("base2new" if len(numbers) == 3 else "shots", method, data)
    assert count == int(seeds)
    assert [_text(*column) for column in columns] == numbers


@pytest.mark.parametrize("page", ["docs/reproduce.md", "docs/methods/lathadapter.md"])
def test_other_pages_have_these_means(page):
    text = (ROOT / page).read_text()
    digits = 2 if page.endswith("reproduce.md") else 1
    for method in ("maple", "maple+lath", "promptsrc", "promptsrc+lath", "zeroshot"):
        mean = _columns("base2new", method)[0][2][0]
        assert f"{mean:.{digits}f}" in text, method


def test_a_loop_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("open_clip")
    pytest.importorskip("mmengine")
    import torch

    from hypvision.clip import create_clip
    from hypvision.tasks.few_shot import FewShotCLIP

    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/fewshot.md").read_text(encoding="utf-8")
    section = page.partition("## In a training loop of your own")[2]
    done = {}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], done)
    assert re.search(r"tensor\(\[([01], ){5}[01]\]\)", capsys.readouterr().out)
    assert {"loss_ecls", "loss_hcls", "loss_va", "loss_at"} == done["losses"].keys()
    clip = create_clip("emoji-s16", "zoo:emoji-s16.captions")
    again = FewShotCLIP(clip, dict(name="coop"), dict(type="lathadapter", classes=3)).eval()
    again.load_state_dict(torch.load("learned.pth"))
    again.set_classes(["tiger face", "bread"], "a picture of a {}.")
    model = done["model"]
    with torch.no_grad():
        assert torch.equal(again(done["images"]), model(done["images"]))
    model.hierarchy.begin(model.host.class_features()[1])
