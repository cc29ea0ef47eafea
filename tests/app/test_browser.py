"""The app in headless Chromium: a photo is uploaded, a result seen; a mistake and a bad file are
answered."""

import os
import shutil

import pytest
from helpers.bad_images import BAD_IMAGES

pytest.importorskip("gradio")
pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
pytest.importorskip(
    "playwright.sync_api", reason="the tests in a browser need Playwright (extra full)"
)

from playwright.sync_api import sync_playwright

from hypvision.app import Answers
from hypvision.app.server import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SECONDS = 45_000  # in Playwright's thousandths; a loaded machine is slow
BUTTONS = {
    "Classify and explain": "Classify and explain",
    "Find": "Find",
    "Segment by words": "Segment",
    "From photo to root": "Walk",
    "Hierarchy in the disk": "Embed",
}
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def page(pictures):
    """The app, opened; what it asks of other machines ends up in ``page.strange``."""
    if CHROMIUM is None:
        pytest.skip(
            f"There is no browser ({', '.join(NAMES)}). Install one, or name it in CHROMIUM."
        )
    with serving(Answers(pictures / "gallery"), upload=1) as address, sync_playwright() as driver:
        # as root, as in containers, Chromium runs without its sandbox only
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] * (os.geteuid() == 0)
        )
        page = browser.new_page(viewport=dict(width=1280, height=1000))
        page.set_default_timeout(SECONDS)
        page.strange = []
        ours = (address, "data:", "blob:")
        page.on(
            "request",
            lambda asked: None if asked.url.startswith(ours) else page.strange.append(asked.url),
        )
        page.goto(address)
        yield page
        browser.close()


def tab(page, name):
    """The tab of that name, brought to the front."""
    page.get_by_role("tab", name=name, exact=True).click()
    panel = page.get_by_role("tabpanel").filter(
        has=page.get_by_role("button", name=BUTTONS[name], exact=True)
    )
    panel.wait_for()
    return panel


def upload(page, panel, path):
    """Put a photo into the tab in the place of one that is there."""
    if panel.get_by_label("Remove Image").count():
        panel.get_by_label("Remove Image").click()
    with page.expect_response(lambda response: "/upload" in response.url) as answered:
        panel.locator("input[type=file]").first.set_input_files(path)
    panel.get_by_label("Remove Image").wait_for()
    return answered.value.status


def told(page):
    """The sentence of the error that is shown, which is then put away."""
    toast = page.locator(".toast-body").first
    sentence = toast.inner_text()
    toast.get_by_test_id("toast-close").click()
    toast.wait_for(state="detached")
    return " ".join(sentence.split())


def shown(image):
    """Width and height of an image, once it is there."""
    image.wait_for()
    image.evaluate("image => image.decode()")
    return tuple(image.evaluate("image => [image.naturalWidth, image.naturalHeight]"))


def test_a_photo_is_classified_and_explained(page, pictures):
    panel = tab(page, "Classify and explain")
    assert upload(page, panel, pictures / "object.png") == 200
    model = panel.get_by_label("Model")
    first = model.input_value()
    model.fill("himapper_tf_efficientnet_lite0.grocery")
    model.press("Enter")
    panel.get_by_role("button", name="Classify and explain").click()
    drawings = panel.locator("#drawings")
    drawings.get_by_text("levels").first.wait_for()
    model.fill(first)
    model.press("Enter")
    assert shown(drawings.locator("img").first) > (128, 128)


def test_an_example_is_classified(page):
    panel = tab(page, "Classify and explain")
    if panel.get_by_label("Remove Image").count():
        panel.get_by_label("Remove Image").click()
    panel.locator(".gallery-item").first.click()
    panel.get_by_label("Remove Image").wait_for()
    panel.get_by_role("button", name="Classify and explain").click()
    panel.locator("#drawings").get_by_text("detection").first.wait_for()


def test_the_gallery_is_searched_by_words_and_a_mistake_is_told(page, pictures):
    panel = tab(page, "Find")
    panel.get_by_role("button", name="Find").click()
    assert "Give either words or an example" in told(page)
    panel.get_by_label("Words").fill("a blue disk")
    panel.get_by_label("Words").press("Enter")
    panel.get_by_text("round/").first.wait_for()
    assert panel.locator("#found img").count() == 4
    assert shown(panel.locator("#found img").first) == (64, 64)
    panel.get_by_label("Folder").fill("../..")
    panel.get_by_role("button", name="Find").click()
    assert "There is no folder" in told(page)


def test_a_photo_is_segmented_and_bad_files_are_answered(page, pictures, tmp_path):
    panel = tab(page, "Segment by words")
    panel.locator(".gallery-item").first.click()
    panel.get_by_label("Remove Image").wait_for()
    for name in (
        "renamed.png",
        "truncated.png",
        "bomb.png",
    ):  # text, half a picture, 3.6 thousand million pixels
        (tmp_path / name).write_bytes(BAD_IMAGES.get(name, b"this is text"))
        assert upload(page, panel, tmp_path / name) == 200
        panel.get_by_role("button", name="Segment", exact=True).click()
        said = told(page)
        assert f"The image '{name}' cannot be read" in said and str(tmp_path) not in said, said
    assert upload(page, panel, pictures / "scene.png") == 200
    panel.get_by_role("button", name="Segment", exact=True).click()
    words, clip = (
        panel.get_by_label("Words").input_value(),
        panel.get_by_label("CLIP", exact=True).input_value(),
    )
    expected = Answers().segment(str(pictures / "scene.png"), words, clip)
    assert shown(panel.locator("#segments img")) == expected.size


def test_a_file_that_is_too_large_is_refused(page, tmp_path):
    panel = tab(page, "Segment by words")
    (tmp_path / "large.png").write_bytes(bytes(2**20 + 1))
    if panel.get_by_label("Remove Image").count():
        panel.get_by_label("Remove Image").click()
    panel.locator("input[type=file]").first.set_input_files(tmp_path / "large.png")
    assert "exceed the maximum allowed size" in told(page)


def test_a_walk_is_drawn(page, pictures):
    panel = tab(page, "From photo to root")
    upload(page, panel, pictures / "scene.png")
    panel.get_by_role("button", name="Walk", exact=True).click()
    assert min(shown(panel.locator("#walk img"))) > 200


def test_a_hierarchy_is_embedded_and_a_circle_is_told(page):
    panel = tab(page, "Hierarchy in the disk")
    panel.get_by_label("Hierarchy").fill("a > b\nb > a")
    panel.get_by_role("button", name="Embed").click()
    assert "in a circle" in told(page)
    panel.get_by_label("Hierarchy").fill("animal > mammal > dog\nanimal > bird > duck")
    panel.get_by_label("Steps of training").first.fill("100")
    panel.get_by_role("button", name="Embed").click()
    panel.locator("#disk .gtitle").wait_for()
    assert panel.locator("#disk .gtitle").text_content().startswith("5 names, mean rank")
    assert panel.locator("#disk text", has_text="mammal").count() == 1


def test_nothing_was_asked_of_another_machine(page):
    assert page.strange == []
