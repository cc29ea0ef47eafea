"""Files under names that a command chose, which people edit or have from others: a second call of
the command leaves them as they are, and says so."""

import io
import json
import tarfile
import zipfile

import numpy as np
from helpers.cases import each
from helpers.engine import make_images, write_config
from PIL import Image

from hypvision.cli import main
from hypvision.data import archives

ADE = "ADEChallengeData2016"


def png(values):
    content = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint8)).save(content, "PNG")
    return content.getvalue()


def config_of_a_folder(root):
    data = make_images(root / "photos", per_class=5, classes=("blue", "red"))
    small = ["--image-size", "32", "--method", "probe", "--work-dir", str(root / "work")]
    return ["train", str(data), *small], root / "work/config.py", "was edited, and is not replaced"


def copy_of_a_config(root):
    config = write_config(root / "mine.py", make_images(root / "data"))
    words = ["train", str(config), "--work-dir", str(root / "work")]
    return words, root / "work/mine.py", "was edited, so it is not replaced"


def converted_annotations(root):
    Image.new("RGB", (60, 40)).save(root / "a.png")
    points = [[10, 5], [30, 5], [30, 35]]
    one = dict(label="cat", points=points, shape_type="polygon", group_id=None)
    content = dict(shapes=[one], imagePath="a.png", imageHeight=40, imageWidth=60)
    (root / "a.json").write_text(json.dumps(content))
    out = root / "annotations"
    words = ["data", "convert", str(root), str(out)]
    return words, out / "instances_default.json", "exists and has other content"


def panoptic_annotations(root):
    photo = io.BytesIO()
    Image.new("RGB", (8, 6)).save(photo, "JPEG")
    with zipfile.ZipFile(root / f"{ADE}.zip", "w") as packed:
        packed.writestr(f"{ADE}/images/validation/b.jpg", photo.getvalue())
        packed.writestr(f"{ADE}/annotations/validation/b.png", png(np.full((6, 8), 4)))
    maps = png(np.zeros((6, 8, 3)))
    with tarfile.open(root / "annotations_instance.tar", "w") as packed:
        entry = tarfile.TarInfo("annotations_instance/validation/b.png")
        entry.size = len(maps)
        packed.addfile(entry, io.BytesIO(maps))
    out = root / "out"
    words = ["data", "prepare", "ade-panoptic", str(root), str(out)]
    return words, out / "ade20k_panoptic_val.json", "exists and has other content"


MEMBERS = (config_of_a_folder, copy_of_a_config, converted_annotations, panoptic_annotations)


@each("member", MEMBERS)
def test_an_edited_file_stays(tmp_path, monkeypatch, capsys, member):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(archives, "SUMS", {})
    words, file, said = member(tmp_path)
    assert main(words) == 0
    first = file.read_bytes()
    assert main(words) == 0  # the same again
    assert f"'{file}' {said}" not in "".join(capsys.readouterr())
    edited = first + b" \n"
    file.write_bytes(edited)
    status = main(words)
    told = "".join(capsys.readouterr())
    assert f"'{file}' {said}" in told
    assert status == (0 if "so it is not replaced" in said else 2)
    assert file.read_bytes() == edited


def test_the_config_of_other_choices_takes_the_place_of_one_that_nobody_edited(tmp_path):
    words, file, _ = config_of_a_folder(tmp_path)
    assert main(words) == 0
    first = file.read_text()
    assert main([*words, "--batch-size", "3"]) == 0
    assert "batch_size=3" in file.read_text() and file.read_text() != first


def test_a_config_of_another_time_is_taken_for_an_edited_one(tmp_path, capsys):
    words, file, said = config_of_a_folder(tmp_path)
    file.parent.mkdir()
    file.write_text("# of an older version, or from somewhere else\n")
    assert main(words) == 2
    assert said in capsys.readouterr().err
    file.unlink()
    assert main(words) == 0
