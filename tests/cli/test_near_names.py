"""A name that is nearly right is offered, in all commands that take names of models or weights."""

from helpers.cases import each
from PIL import Image

from hypvision.cli import main

ZOO = "hcformer_nano.cifar10"
NEAR = [
    (["predict", "PHOTO", "--model", "resnet5O"], "resnet50"),
    (["predict", "PHOTO", "--model", "hcformer_nano.cifar1"], ZOO),
    (["predict", "PHOTO", "--model", "zoo:hcformer_nano.cifar1"], ZOO),
    (["predict", "PHOTO", "--clip", "emoji-s61", "--classes", "a, b"], "emoji-s16"),
    (["explain", "PHOTO", "--model", "hcformer_nana"], "hcformer_nano"),
    (["explain", "PHOTO", "--model", "hcformer_nano.cifar1"], ZOO),
    (["explain", "PHOTO", "--model", "resnet5O"], "resnet50"),
    (["explain", "PHOTO", "--clip", "emoji-t8.scene", "--texts", "a"], "emoji-t8.scenes"),
    (["disk", "FOLDER", "--model", "resnet5O"], "resnet50"),
    (["disk", "FOLDER", "--model", "emoji-t8.scene"], "emoji-t8.scenes"),
    (["metric", "search", "PHOTO", "--gallery", "FOLDER", "--model", "resnet5O"], "resnet50"),
    (["metric", "search", "PHOTO", "--gallery", "FOLDER", "--model", "hcformer_nano1"], ZOO[:13]),
    (["metric", "search", "PHOTO", "--gallery", "FOLDER", "--clip", "emoji-s61"], "emoji-s16"),
    (["metric", "embed", "FOLDER", "--model", "lhier_tf_efficientnet_lite0.grocry"], "lhier_tf"),
    (["clip", "segment", "PHOTO", "--classes", "a", "--clip", "emoji-t8.scene"], "emoji-t8.scenes"),
    (["zoo", "card", "hcformer_nano.cifar1"], ZOO),
    (["zoo", "get", "hcformer_nano.cifar1"], ZOO),
    (["export", "hcformer_nano.cifar1", "--format", "onnx", "--save", "OUT"], ZOO),
    (["summary", "hcformer_nano.cifar1"], ZOO),
    (["summary", "hcformer_nana"], "hcformer_nano"),
]


@each("arguments, meant", NEAR)
def test_a_name_that_is_nearly_right_is_offered(tmp_path, monkeypatch, capsys, arguments, meant):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (32, 32), (80 * number, 90, 20)).save(folder / f"{number}.png")
    places = {"PHOTO": f"{folder}/0.png", "FOLDER": str(folder), "OUT": str(tmp_path / "out.onnx")}
    assert main([places.get(word, word) for word in arguments]) == 2
    said = capsys.readouterr().err
    assert "Did you mean" in said
    assert meant in said.split("Did you mean")[1].split("?")[0]


@each("name", ["probe.pth", "./probe.pth"])
@each(
    "command",
    [
        "predict photo.png --model NAME",
        "explain photo.png --model NAME",
        "metric search photo.png --gallery photo.png --model NAME",
        "metric embed photo.png --model NAME",
        "summary NAME",
        "export NAME --format onnx --save net.onnx",
    ],
)
def test_a_file_of_weights_is_no_name_of_a_model(tmp_path, monkeypatch, capsys, command, name):
    """What a training says to take is given as --model first."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("photo.png")
    (tmp_path / "probe.pth").write_bytes(b"weights")
    assert main(command.replace("NAME", name).split()) == 2
    said = capsys.readouterr().err
    assert f"'{name}' is a file of weights, which does not tell their network. Give" in said
    assert "config of" in said


def test_names_of_a_model_are_told_without_synonyms():
    from hypvision.inference.results import brief

    names = ["lemon", "grocery store, grocery, market", "crane, bird", "crane, machine"]
    assert [brief(name, names) for name in names] == ["lemon", "grocery store", *names[2:]]


def test_words_that_are_no_file_say_what_a_disk_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["disk", "animal"]) == 2
    assert "'animal > mammal > tiger'" in capsys.readouterr().err
