"""The grids are the paper's, their parts are asked for, and what differs is marked."""

import pytest
from helpers.cases import each
from superposition.experiments import ALPHAS, DECAYS, WIDTHS, experiment, marked, narrowed

from hypvision.io.errors import HypvisionError
from hypvision.scaling.sweep import groups


def test_the_grids_are_the_papers():
    assert WIDTHS == (10, 15, 25, 39, 63, 100) and len(ALPHAS) == 17
    assert DECAYS == (-1, -0.7778, -0.5556, -0.3333, -0.1111, 0.1111, 0.3333, 0.5556, 0.7778, 1)
    sizes = {
        name: len(experiment(name).points) for name in ("fig3", "fig4", "fig5", "fig6", "fig7")
    }
    assert sizes == dict(fig3=60 + 160, fig4=1020, fig5=1020, fig6=17 * 5 * 6, fig7=9 * 10 + 9 * 5)
    large = experiment("fig1", gpu=True)
    assert len(large.points) == 48 and large.settings.n == 10240 and not large.settings.shortened
    assert len(experiment("fig1").points) == 30
    assert "n 2048" in narrowed(experiment("fig1")).settings.shortened
    for name in ("fig3", "fig4", "fig7"):
        assert len({point.key for point in experiment(name).points}) == len(experiment(name).points)


def test_parts_of_a_grid():
    chosen = narrowed(
        experiment("fig4", widths=[10]),
        alphas=[1],
        decays=[-0.556, 0.333],
        replicates=2,
        steps=2000,
    )
    assert len(chosen.points) == 4 and {point.decay for point in chosen.points} == {-0.5556, 0.3333}
    assert chosen.settings.steps == 2000 and chosen.settings.warmup == 200
    assert chosen.settings.shortened == "steps 2000 (paper: 20000)"
    assert len(groups(chosen.points)) == 2 and len(groups(chosen.points, gpu=True)) == 2
    with pytest.raises(
        HypvisionError, match="No point of this figure has decay 0.4. There are: -1, "
    ):
        narrowed(experiment("fig4"), decays=[0.4])
    for name, said in (
        ("fig2", "a drawing"),
        ("fig8", "language models; see: hypvision scaling heads and"),
        ("fig44", "Did you mean fig4"),
    ):
        with pytest.raises(HypvisionError, match=said):
            experiment(name)


def test_widths_and_features_of_ones_own():
    extra = narrowed(
        experiment("fig6", widths=range(150, 40, -20))
    )  # the paper's run between 50 and 150
    assert {point.m for point in extra.points} == {
        50,
        70,
        90,
        110,
        130,
        150,
    } and extra.settings.n == 1000
    assert {point.alpha for point in extra.points} == set(ALPHAS)
    assert marked(extra.settings.shortened) == "different: m 50 to 150 (paper: 10 to 100)"
    single = experiment("fig3", widths=[8, 30, 60])
    assert {point.m for point in single.points if point.alpha != 1} == {
        30
    }  # the nearest to the figure's 39
    assert {point.m for point in single.points if point.alpha == 1} == {8, 30, 60}
    assert {
        point.m for point in experiment("fig7", widths=[8, 30, 60]).points if point.decay > 0
    } == {60}
    for figure, widths, features, said in (
        ("fig4", [10, 100], None, ""),
        ("fig4", [12], 500, "shortened: n 500 (paper: 1000), m 12 (paper: 10 to 100)"),
        ("fig4", None, 4000, "different: n 4000 (paper: 1000)"),
        ("fig1", None, 10240, "shortened: m up to 128 (paper: 1024)"),
        ("fig1", [8, 1024], 10240, ""),
        ("quick", [10, 100], 1000, "shortened: batch 512 (paper: 2048), steps 4000 (paper: 20000)"),
    ):
        chosen = narrowed(experiment(figure, widths=widths), features=features)
        assert marked(chosen.settings.shortened) == said
        assert chosen.settings.n == (features or 1000)
    with pytest.raises(HypvisionError, match="from 1 to 50, got 63"):
        narrowed(experiment("fig4"), features=50)


@each("figure, changes, said", [
        ("quick", dict(steps=1), "shortened: n 200 (paper: 1000), batch 512 (paper: 2048), steps 1 "
                                 "(paper: 20000), m 8 to 40 (paper: 10 to 100)"),
        ("quick", dict(steps=20000, batch=2048), "shortened: n 200 (paper: 1000), m 8 to 40 "
                                                 "(paper: 10 to 100)"),
        ("fig4", dict(steps=40000), "different: steps 40000 (paper: 20000)"),
        ("fig4", dict(steps=10, batch=4096), "shortened: steps 10 (paper: 20000), different: batch "
                                             "4096 (paper: 2048)"),
        ("fig4", dict(steps=20000, batch=2048), ""),
    ])  # fmt: skip
def test_marks_compare_with_the_paper(figure, changes, said):
    assert marked(narrowed(experiment(figure), **changes).settings.shortened) == said


@each(
    "figure, steps, warmup",
    [
        ("fig1", 200, 10),
        ("fig1", 40000, 2000),
        ("fig1", 50, 2),
        ("fig4", 40000, 2000),
        ("quick", 100, 10),
    ],
)
def test_warm_up_of_another_number_of_steps(figure, steps, warmup):
    assert narrowed(experiment(figure), steps=steps).settings.warmup == warmup
