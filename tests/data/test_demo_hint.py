"""Where the data of the demo are not, a config says where they come from, and fetches nothing."""

import pytest

pytest.importorskip("mmengine")

from hypvision.cli import main


@pytest.mark.parametrize("name", ["demo/photos", "demo/photos --epochs 2"])
def test_outside_of_a_clone_the_demo_says_what_to_do(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    assert main(["train", *name.split()]) == 2
    said = capsys.readouterr().err
    assert "run this in a clone of it, or train on photos of your own" in said
    assert list(tmp_path.iterdir()) == []


def test_other_data_are_looked_for_as_before(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "hcformer-nano-clusters-p2_25e_cifar10"]) == 2
    assert "give its place with --cfg-options data_root=FOLDER" in capsys.readouterr().err
