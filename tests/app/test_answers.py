"""What the tabs of the app ask of the library, without a page: what the commands find, and no other
file."""

import shutil

import pytest
from helpers.bad_images import BAD_IMAGES

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
import hypvision
from hypvision.app import Answers
from hypvision.app.answers import HIERARCHY, TEXTS, best_clip, known_clip, known_model
from hypvision.cli import main
from hypvision.clip.segmentation.segment import segment
from hypvision.io.errors import HypvisionError
from hypvision.viz import draw_segmentation


@pytest.fixture(scope="module")
def answers(pictures):
    return Answers(pictures / "gallery")


def test_classes_and_clusters(answers, pictures):
    photo = str(pictures / "object.png")
    scores, drawings = answers.classify(photo, " hcformer_nano.cifar10 ")
    [found] = hypvision.predict(photo, "hcformer_nano.cifar10")
    assert scores == {item["name"]: item["score"] for item in found.result.annotations()}
    assert len(scores) == 5
    assert [kind for _, kind in drawings] == ["clusters", "regions"] and drawings[1][0].size == (
        128,
        128,
    )


def test_a_clip_compares_with_words(answers, pictures):
    photo = str(pictures / "object.png")
    scores, drawings = answers.classify(photo, "emoji-s16.captions", "mammal, fruit,face,")
    assert set(scores) == {"mammal", "fruit", "face"}
    assert max(scores, key=scores.get) == "mammal"
    assert drawings == []


@pytest.mark.slow
def test_a_tree_of_parts_is_drawn_and_boxes(answers, pictures):
    photo = str(pictures / "scene.png")
    scores, drawings = answers.classify(photo, "himapper_tf_efficientnet_lite0.grocery")
    assert len(scores) == 5 and [kind for _, kind in drawings][0] == "tree"
    scores, drawings = answers.classify(photo, "faster-rcnn_tf_efficientnet_lite0.emoji")
    assert scores == {} and [kind for _, kind in drawings] == ["detection"]


def test_search_finds_what_the_command_finds(answers, pictures, tmp_path, capsys):
    query, model = str(pictures / "secret.png"), "hcformer_nano.cifar10"
    found = answers.find("", query, model, 9)
    line = f"metric search {query} --gallery {pictures / 'gallery'} --model {model} --save".split()
    assert main([*line, str(tmp_path / "found.png")]) == 0
    said = [row.split("  ") for row in capsys.readouterr().out.splitlines()[1:-1]]
    assert [(f"{float(far):.3f}", path.rpartition("gallery/")[2]) for far, path in said] == [
        tuple(caption.split("  ")) for _, caption in found
    ]
    assert len(found) == 4


def test_a_damaged_image_of_the_gallery_does_not_cost_the_others(pictures, tmp_path):
    shutil.copy(pictures / "object.png", tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="Left out of the gallery: .*bad.png"):
        found = Answers(tmp_path).find("a house", None, "emoji-s16.captions", 9)
    assert [caption.split("  ")[1] for _, caption in found] == ["good.png"]


def test_a_link_of_the_gallery_to_a_file_elsewhere_is_not_shown(pictures, tmp_path):
    shutil.copy(pictures / "object.png", tmp_path / "good.png")
    (tmp_path / "link.png").symlink_to(pictures / "secret.png")
    found = Answers(tmp_path).find("a house", None, "emoji-s16.captions", 9)
    assert [caption.split("  ")[1] for _, caption in found] == ["good.png"]
    (tmp_path / "good.png").unlink()
    with pytest.raises(HypvisionError, match="links to other places"):
        Answers(tmp_path).find("a house", None, "emoji-s16.captions", 9)


def test_search_by_words_in_a_part_of_the_gallery(answers):
    found = answers.find("a blue disk", None, "emoji-s16.captions", 1, "round")
    assert [caption.split("  ")[1] in ("blue.png", "navy.png") for _, caption in found] == [True]


@pytest.mark.parametrize(
    "folder", ["..", "/", "round/../..", "a\0b", "x" * 5000, "../gallery/../secret.png", "link"]
)
def test_no_folder_beside_the_gallery_is_searched(answers, pictures, folder):
    link = pictures / "gallery/link"
    if not link.is_symlink():
        link.symlink_to(pictures)
    try:
        with pytest.raises(HypvisionError, match="There is no folder"):
            answers.find("disk", None, "emoji-s16.captions", 1, folder)
    finally:
        link.unlink()


def test_nothing_tells_where_the_gallery_lies(answers, pictures):
    """A way out and in again would tell the names of folders above, and which of them are links."""
    (pictures / "elsewhere").mkdir(exist_ok=True)
    for folder in (
        pictures / "gallery",
        "../gallery",
        "../elsewhere/../gallery",
        "../no/../gallery",
        "round/..",
    ):
        with pytest.raises(HypvisionError, match="There is no folder"):
            answers.find("disk", None, "emoji-s16.captions", 1, str(folder))


def test_models_go_by_names_alone(answers, pictures, tmp_path, monkeypatch):
    """A config is code, and a class list or a checkpoint a file: none of them is read."""
    monkeypatch.chdir(tmp_path)
    for name in ("config.py", "words.txt", "weights.pth"):
        (tmp_path / name).write_text("raise SystemExit('executed')")
    photo = str(pictures / "scene.png")
    for name in (
        "config.py",
        str(tmp_path / "config.py"),
        "local-dir:.",
        "hf-hub:a/b",
        "hcformer_nan",
        "",
        None,
    ):
        with pytest.raises(HypvisionError, match="There is no model"):
            known_model(name)
    for name in ("weights.pth", str(tmp_path / "weights.pth"), "local-dir:.", "no_such", ""):
        with pytest.raises(HypvisionError, match="There is no CLIP"):
            known_clip(name)
    for name in ("ViT-B-16", "emoji-t8:weights.pth", "ViT-B-16:no_such"):
        with pytest.raises(HypvisionError, match="does not name weights"):
            known_clip(name)
    assert known_clip("ViT-B-16:openai") == "ViT-B-16:openai"
    assert known_clip(" emoji-s16.captions") == best_clip()
    with pytest.raises(HypvisionError, match="never taught 'words.txt'"):  # a word as any other
        answers.segment(photo, "words.txt", "emoji-s16.captions")


@pytest.mark.slow
def test_segments_are_those_of_the_library(answers, pictures):
    photo = str(pictures / "scene.png")
    drawn = answers.segment(photo, "face, fruit", "emoji-s16.captions")
    found = segment(photo, ["face", "fruit"], clip="emoji-s16.captions")
    assert drawn.tobytes() == draw_segmentation(found.image, found.labels, found.classes).tobytes()


def test_a_walk_goes_from_general_to_specific(answers, pictures):
    pytest.importorskip("matplotlib")
    for walk in ("hierarcaps", "meru"):
        figure = answers.walk(str(pictures / "scene.png"), TEXTS, "emoji-s16.captions", walk)
        written = [text.get_text() for text in figure.axes[1].texts]
        assert len(written) > 1 and written[-1].startswith(tuple(TEXTS.splitlines()))


def test_a_hierarchy_in_the_disk(answers, tmp_path):
    pytest.importorskip("plotly")
    typed = answers.disk("animal > mammal > dog\nanimal > mammal > cat\nanimal > bird <b", None, 20)
    dots = typed.data[-1]
    assert [text.partition("</b><br>")[0] for text in dots.hovertext] == [
        "<b>animal", "<b>bird &lt;b", "<b>cat", "<b>dog", "<b>mammal"
    ]  # fmt: skip
    assert "below mammal" in dots.hovertext[3] and "above 3 names" not in dots.hovertext[3]
    assert (dots.x**2 + dots.y**2 < 1).all()
    assert typed.layout.title.text.startswith("5 names, mean rank")
    file = tmp_path / "pairs_of_names.csv"
    file.write_text("id1,id2\ndog,mammal\nmammal,animal\n")
    assert answers.disk("not > read", str(file), 5).layout.title.text.startswith(
        "pairs of names: 3 names"
    )
    assert len(HIERARCHY.splitlines()) == 20


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda a: a.classify(None, "hcformer_nano.cifar10"), "No photo is given"),
        (lambda a: a.find("", None, "emoji-s16.captions"), "either words or an example"),
        (lambda a: a.find("disk", "x.png", "emoji-s16.captions"), "either words or an example"),
        (lambda a: a.find("disk", None, "hcformer_nano.cifar10"), "embeds images, not texts"),
        (lambda a: a.find("disk", None, "emoji-s16.captions", 1, "no_such"), "There is no folder"),
        (lambda a: Answers().find("disk", None, "emoji-s16.captions"), "--gallery DIR"),
        (lambda a: Answers("/no/such"), "There is no folder"),
        (lambda a: a.segment("x.png", " , ", "emoji-s16.captions"), "No words are given"),
        (lambda a: a.walk("x.png", "one\n\n", "emoji-s16.captions"), "at least two"),
        (lambda a: a.disk("a\nb", None), "no name below another"),
        (lambda a: a.disk("a > b\nb > a", None), "in a circle"),
        (lambda a: a.disk("", "/no/such.csv"), "cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_are_told(answers, ask, sentence):
    with pytest.raises(HypvisionError, match=sentence):
        ask(answers)


@pytest.mark.parametrize("name", sorted(BAD_IMAGES))
def test_bad_photos_are_told_in_every_tab(answers, tmp_path, name):
    photo = tmp_path / name
    photo.write_bytes(BAD_IMAGES[name])
    for ask in (
        lambda: answers.classify(str(photo), "hcformer_nano.cifar10"),
        lambda: answers.find("", str(photo), "hcformer_nano.cifar10"),
        lambda: answers.segment(str(photo), "fruit, bird", "emoji-s16.captions"),
        lambda: answers.walk(str(photo), "a\nb", "emoji-s16.captions"),
    ):
        with pytest.raises(HypvisionError, match="image"):
            ask()
