"""The benchmarks of ``tools/benchmark.py`` measure equal things and write what they say; the times
themselves are not tested."""

import argparse
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch
from bench.common import peak_bytes, write_section
from helpers.fewshot import bundle

from hypvision.helm import PRESETS, preset
from hypvision.io.errors import HypvisionError

pytest.importorskip("open_clip")
pytest.importorskip("mmdet")

from hypvision.clip import adapters
from hypvision.clip.models import ARCHITECTURES, create_clip

SHAPES = Path(__file__).parents[1] / "helpers/shapes/configs"
SHAPES = [SHAPES / f"hyperclip{name}.py" for name in ("", "-det", "-panoptic")]


def benchmark(name):
    return import_module(f"bench.{name}")


def arguments(name, words, *more):
    parser = argparse.ArgumentParser()
    benchmark(name).add_arguments(parser)
    parser.set_defaults(benchmark=name.replace("_", "-"))
    return parser.parse_args([*words.split(), *map(str, more)])


@pytest.fixture
def page(tmp_path):
    """A page that has another section already."""
    path = tmp_path / "benchmarks.md"
    path.write_text("# Benchmarks\n\nkept\n")
    return path


def rows_of(page):
    """The cells of all rows of tables but their headings; the rest of the page is as it was."""
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\nkept\n")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


MISTAKES = {
    "hcformer": ["--batch 0", "--size 32", "--repeats 0"],
    "hier": ["--samples 1", "--repeats 0", "--threads 0"],
    "himapper": ["--batch 0", "--size 40"],
    "hyperbolic_clip": ["--batch 1"],
    "hyperclip": ["--batch 0", "--repeats 0", "--prompts 0"],
    "open_vocabulary": ["--batch 0"],
    "radial": ["--images 1"],
    "scaling": ["--batch 0"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_the_option(name, page):
    for words in MISTAKES[name]:
        with pytest.raises(HypvisionError, match=words.split()[0]):
            benchmark(name).run(arguments(name, words))
    assert rows_of(page) == []


def test_a_page_whose_marks_are_broken_is_refused(page):
    marks = benchmark("hcformer").MARKS
    page.write_text(f"only {marks[1]}")
    with pytest.raises(HypvisionError, match="marks"):
        write_section(page, marks, "text")


def test_peak_is_that_of_known_allocations():
    def step():
        a = torch.ones(1000, 1000)
        b = a + 1  # 8 MB at this moment, the peak
        del a
        return b * 2 if b.dim() == 3 else b.sum()

    assert peak_bytes(step) == pytest.approx(8_000_000, rel=1e-3)
    x = torch.ones(1000, 250, requires_grad=True)  # the backward keeps activations
    assert peak_bytes(lambda: x.exp().exp().sum().backward()) >= 2 * 1_000_000


def test_peak_includes_new_memory_but_not_memory_in_use_before_the_call():
    kept = [torch.ones(500_000)]

    def step():
        kept.append(torch.ones(250_000))

    assert peak_bytes(step) == pytest.approx(1_000_000, rel=1e-3)

    def replace():
        kept.clear()  # releases 3 MB that were there before
        kept.append(torch.ones(250_000))

    assert peak_bytes(replace) < 1_000_000


@pytest.mark.parametrize("name", ["maple", "promptsrc"])
def test_fewshot_a_plain_step_has_the_loss_of_ours(name):
    bench = benchmark("fewshot")
    options = dict(templates=2) if name == "promptsrc" else {}
    model = bench.made(name, bundle(), 4, **options).train()
    images, labels = bench.batch(argparse.Namespace(size=64, device="cpu"), 4)
    tokens = model.host.tokens(model.host.sentences())
    ours = sum(model(images, labels, mode="loss").values())
    plain = bench.plain_step(model.host, tokens, images, labels, name)
    torch.testing.assert_close(plain, ours, rtol=1e-4, atol=1e-5)


def test_fewshot_a_run_of_some_rows_leaves_the_others(page, capsys):
    bench = benchmark("fewshot")
    shared = f"--model emoji-s16 --classes 3 --repeats 1 --templates 1 --write {page}"
    bench.run(arguments("fewshot", shared, "--only", "heads"))
    bench.run(arguments("fewshot", shared, "--only", "evaluation", "--batches", 4))
    names = [row[0] for row in rows_of(page)]
    assert names[0] == "evaluation, maple, 3 classes, batch 4"
    assert names[1:] == [f"{n}, batch 8, features kept (views 0)" for n in bench.HEADS]
    assert "clip-adapter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("power", "wrong"), [(1, ["step: closure"]), (2, ["data: captions", "step: closure"])]
)
def test_growth_what_grows_faster_than_it_may_fails(power, wrong, monkeypatch, page, capsys):
    bench = benchmark("growth")
    monkeypatch.setattr(bench, "measure", lambda case, size, repeats: 1e-6 * size**power)
    for name in ("data: captions", "loss: contrastive", "step: closure"):
        status = bench.run(arguments("growth", "", "--only", name, "--write", page))
        assert status == int(name in wrong)
        assert f"| {name} |" in page.read_text() and f"| {power:.2f} |" in capsys.readouterr().out
        assert ("**above** |" in page.read_text()) == (name in wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", benchmark("growth").CASES)
def test_growth_every_case_runs(name, tmp_path):
    benchmark("growth").CASES[name].make(160, tmp_path)()


@pytest.mark.slow
def test_hcformer_has_all_rows(page, monkeypatch):
    bench = benchmark("hcformer")
    monkeypatch.setattr(bench, "OTHERS", ("resnet18",))
    words = f"--models hcformer_nano --batch 1 --size 64 --repeats 1 --write {page}"
    bench.run(arguments("hcformer", words))
    rows = rows_of(page)
    names = [row[0] for row in rows]
    assert names == ["hcformer_nano", "hcformer_nano, reference", "resnet18", "target"]
    assert all(cell.endswith("x") for cell in rows[0][4:-1])


def test_hcformer_other_models_take_the_size():
    for name in ("swin_tiny_patch4_window7_224", "resnet18"):
        with torch.inference_mode():
            model = benchmark("hcformer").other(name, 64).eval()
            assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)


def test_helm_numbers_of_a_plain_cache():
    """Space parts of keys and values of all heads, as published for each size."""
    for name, count in {"helm_d_115m": 768, "helm_mice_120m": 486, "helm_mice_1b": 2702}.items():
        assert benchmark("helm").plain_cache(preset(name)) == count


def test_helm_memory_of_other_processes_is_not_counted():
    """On one thread; a call that only waits has taken next to nothing of the processor."""
    calls = {"waits": lambda: time.sleep(0.05)}
    args = argparse.Namespace(device="cpu", repeats=2)
    assert benchmark("helm").ratios(calls, args, None)["waits"] < 0.01


@pytest.mark.slow
def test_helm_has_all_rows(page, monkeypatch):
    small = dict(dim=390, n_heads=6, inter_dim=390)
    monkeypatch.setitem(PRESETS, "helm_d_115m", small)
    small = PRESETS["helm_mice_120m"] | dict(inter_dim=390, mice_inter_dim=98)
    monkeypatch.setitem(PRESETS, "helm_mice_120m", small)
    words = "--repeats 1 --layers 2 --vocabulary 300 --lengths 16 --rows 600 --write"
    benchmark("helm").run(arguments("helm", words, page))
    text = page.read_text()
    for row in (
        "HELM-D step, V 300, L 16, eager", "HELM-MiCE layer, L 16", "peak MiB above weights",
        "600 rows", "core of its attention", "helm_mice_120m: a token at 128",
        "| 93 / 486 | 372 / 1944 bytes |", "| 768 / 768 | 3072 / 3072 bytes |",  # as published
    ):  # fmt: skip
        assert row in text


def test_himapper_writes_the_table_into_its_section(page):
    words = "--models deit_tiny_patch16_224 --batch 1 --size 32 --repeats 1 --write"
    for _ in range(2):
        benchmark("himapper").run(arguments("himapper", words, page))
    assert page.read_text().count("## Hi-Mapper") == 1
    (row,) = (row for row in rows_of(page) if row[0].startswith("deit_tiny"))
    # position embeddings of 4 + 1 patches instead of 196 + 1
    counts = [f"{count - 192 * 192:,}" for count in (5_717_416, 7_225_257)]
    assert set(counts) < set(row) and any("<= 8 %" in cell for cell in row)


@pytest.mark.slow
def test_hyperbolic_clip_what_is_compared_is_equal(monkeypatch, page):
    for name in ("clip-vit-s-16", "meru-vit-s-16"):
        text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
        vision = ARCHITECTURES[name]["vision_cfg"] | dict(timm_model_name="vit_tiny_patch16_224")
        small = dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3)
        monkeypatch.setitem(ARCHITECTURES, name, ARCHITECTURES[name] | small)
    bench = benchmark("hyperbolic_clip")
    monkeypatch.setattr(bench, "peak_bytes", lambda step, device: step() or 2**20)
    words = f"--batch 2 --images 30 --texts 40 --repeats 1 --write {page}"
    bench.run(arguments("hyperbolic_clip", words))
    rows = [row for row in rows_of(page) if len(row) == 7]
    assert [row[0].split()[0] for row in rows] == ["MERU's", "official", "ranking"]
    assert float(rows[1][-1]) < 1e-5 and "1.00x (<= 0.7x)" in rows[1][5]


def test_hyperbolic_clip_made_up_captions_are_as_long_as_they_should_be():
    texts = benchmark("hyperbolic_clip").made_up(400, 12.0, torch.Generator().manual_seed(0))
    assert sum(len(text.split()) for text in texts) / 400 == pytest.approx(12, rel=0.05)


def test_hyperclip_replaces_its_section(page):
    bench = benchmark("hyperclip")
    page.write_text(f"{page.read_text()}{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n")
    words = f"--models emoji-t8 --size 32 --prompts 3 --repeats 1 --write {page}"
    bench.run(arguments("hyperclip", words))
    assert page.read_text().endswith("after\n") and "old" not in page.read_text()
    rows = rows_of(page)
    assert rows[0][0] == "emoji-t8" and len({len(row) for row in rows}) == 1


def test_hyperclip_both_ways_of_making_weights_have_the_same_gradient():
    bench = benchmark("hyperclip")
    model = adapters.inject(create_clip("emoji-t8").model, block=32)
    gradients = []
    for make in (bench.reference_weights, bench.fused_weights):
        model.zero_grad()
        make(model)
        gradients.append([p.grad.clone() for p in adapters.trainable_parameters(model)])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*gradients))


@pytest.mark.slow
def test_large_batch_a_chunk_needs_less_memory_than_the_batch():
    steps = benchmark("large_batch").steps(64, 8, "cpu")
    for step in steps.values():
        step()  # the optimiser's moments are there from now on
    peaks = {name: peak_bytes(step) for name, step in steps.items()}
    assert peaks["chunks"] < 0.6 * peaks["whole"]


def test_large_batch_the_rows_of_one_process_are_the_table_of_all(monkeypatch):
    found = []
    plain = torch.autograd.grad

    def kept(loss, x):
        found.append((loss, plain(loss, x)))

    monkeypatch.setattr(torch.autograd, "grad", kept)
    for contrast in benchmark("large_batch").contrasts(8, 1, "cpu").values():
        contrast()
    (of_all, expected), (of_one, gradients) = found
    assert of_one.item() == pytest.approx(of_all.item(), rel=1e-6)
    for one, other in zip(gradients, expected):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_large_batch_has_all_rows(page):
    words = "--batches 3 --chunk 2 --pairs 8 --processes 2 --repeats 1 --write"
    benchmark("large_batch").run(arguments("large_batch", words, page))
    assert "| 3 |" in page.read_text() and "rows of one of 2 processes" in page.read_text()


@pytest.mark.slow
def test_large_batch_a_large_step_stands_beside_the_plain_one(page):
    words = "--large 5 --chunk 2 --pairs 8 --write"
    benchmark("large_batch").run(arguments("large_batch", words, page))
    assert "--large 5 --pixels 32 --chunk 2" in page.read_text() and "| 5 |" in page.read_text()


@pytest.mark.slow
def test_open_vocabulary_has_all_rows(page):
    bench = benchmark("open_vocabulary")
    words = f"--clip emoji-t8 --size 64 --repeats 1 --write {page} --configs"
    bench.run(arguments("open_vocabulary", words, *SHAPES))
    rows = rows_of(page)
    assert [row[0] for row in rows] == [path.stem for path in SHAPES]
    for row in rows:
        assert row[1] == "64" and row[5] == "1.00x" and int(row[6]) > 1


def test_open_vocabulary_a_step_trains_what_the_config_says():
    case = benchmark("open_vocabulary").Case(SHAPES[0], 2, 64, "emoji-t8", "cpu")
    before = {name: value.clone() for name, value in case.model.named_parameters()}
    case.step()
    after = dict(case.model.named_parameters())
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert any("hyperclip" in name for name in changed)
    assert all(not name.startswith("clip.") or "hyperclip" in name for name in changed)


def test_open_vocabulary_the_papers_configs_are_there_and_others_are_refused():
    bench = benchmark("open_vocabulary")
    kinds = [bench.task_of(path) for path in bench.DEFAULT]
    assert kinds[:3] == 3 * ["HyperCLIPSegmentor"]
    assert kinds[3:] == 2 * ["HyperCLIPDetector"] + 2 * ["HyperCLIPPanoptic"]
    other = Path(__file__).parents[2] / "configs/hcformer/hcformer-nano_cifar10.py"
    with pytest.raises(HypvisionError, match=other.name):
        bench.task_of(other)


@pytest.mark.slow
def test_radial_what_is_compared_is_equal(page):
    words = "--model emoji-s16 --images 30 --chains 3 --captions 20 --repeats 1 --write"
    benchmark("radial").run(arguments("radial", words, page))
    rows = [row for row in rows_of(page) if any(cell.startswith(">=") for cell in row)]
    names = ["metrics", "tuning step", "tuning step", "embedding 20 captions"]
    assert [row[0].split(",")[0] for row in rows] == names
    assert float(rows[0][-1]) <= 1e-9 and float(rows[1][-1]) < 1e-4 and float(rows[3][-1]) < 1e-5


def test_radial_made_up_texts_are_as_long_as_those_of_the_levels():
    bench = benchmark("radial")
    positive, negative = bench.made_up(400)
    for level, length in enumerate(bench.TOKENS_A_LEVEL):
        assert sum(len(c[level].split()) for c in positive) / 400 == pytest.approx(length, rel=0.1)
    assert len({chain[0] for chain in positive}) < 200 and len(negative) == 400


def test_scaling_has_all_rows(page, capsys):
    words = "--features 40 --batch 16 --steps 5 --widths 3 10 --repeats 1 --threads 1 --write"
    benchmark("scaling").run(arguments("scaling", words, page))
    rows = rows_of(page)
    assert [row[0] for row in rows] == ["3", "10"] and rows[1][4] == ">= 3x"
    for row in rows:
        assert float(row[1]) > 0 and float(row[2]) > 0 and float(row[-1]) < 1e-10
    assert "--widths 3 10" in capsys.readouterr().out
