"""The page of the app: a tab for each question."""

from __future__ import annotations

import html
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from hypvision.app.answers import Answers, best_clip, shape_texts, zoo_models
from hypvision.clip.places import clips_here
from hypvision.data.shapes import make_scene
from hypvision.errors import HypvisionError, explain_machine, one_line, require

TITLE = "hypvision"
EXAMPLES = 4  # drawn scenes


def build(answers: Answers, scratch: str | Path) -> Any:
    """The page, a ``gradio.Blocks``.

    Args:
        answers: what its buttons call.
        scratch: a folder for the examples; uploads go where ``GRADIO_TEMP_DIR`` says.

    Raises:
        HypvisionError: Gradio is not installed.
    """
    gr = gradio()
    examples = _draw_examples(Path(scratch))
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown("# hypvision\nHyperbolic models on your own pictures. Nothing leaves this machine.")
        with gr.Tab("Classify and explain"):
            _classify(gr, answers, examples)
        with gr.Tab("Find"):
            _find(gr, answers)
        with gr.Tab("Segment by words"):
            _segment(gr, answers, examples)
        with gr.Tab("From photo to root"):
            _walk(gr, answers, examples)
    return page


def gradio() -> Any:
    """The module, told to send nothing to anyone.

    Raises:
        HypvisionError: it is not installed.
    """
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1" if "DISABLE" in name else "False"
    return require("gradio", "app")


def told(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the page whose mistakes and warnings are shown there, in the library's own sentences."""
    gr = gradio()

    @wraps(answer)
    def call(*args: Any) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default")
            try:
                found = answer(*args)
            except Exception as error:
                message = one_line(error, 2000) if isinstance(error, HypvisionError) else explain_machine(error)
                if message is None:
                    raise
                raise gr.Error(_shown(message), duration=None, print_exception=False) from error
        for warning in said:
            if "hypvision" in warning.filename:
                gr.Warning(_shown(str(warning.message)))
        return found

    return call


def _shown(message: str) -> str:
    """A message as the text of a page: uploads by their own names, nothing that is read as HTML."""
    uploads = os.environ.get("GRADIO_TEMP_DIR") or str(Path(tempfile.gettempdir()) / "gradio")
    return html.escape(re.sub(rf"{re.escape(uploads)}/\w+/", "", message), quote=False)


def _draw_examples(folder: Path) -> list[str]:
    """Drawn scenes, which the small models that ship know."""
    paths = [folder / f"scene{number}.png" for number in range(EXAMPLES)]
    for number, path in enumerate(paths):
        make_scene(number, "test", 256, 0).image.save(path)
    return [str(path) for path in paths]


# Parts that tabs share


def _photo(gr: Any, label: str = "Photo") -> Any:
    """A place for a photo that hands on the file itself: whatever is in it, the library says what it thinks of it."""
    photo = gr.Image(label=label, type="filepath", sources=["upload", "clipboard"], height=320, buttons=[])
    photo.preprocess = lambda payload: None if payload is None else payload.path
    return photo


def _examples(gr: Any, photo: Any, examples: list[str]) -> None:
    gr.Examples(examples, photo, label="Examples: drawn scenes, which the models that ship know")


def _clips(gr: Any) -> Any:
    info = "of open_clip with its weights (ViT-B-16:openai), or of the zoo; the list has those on this machine"
    return gr.Dropdown(clips_here(), value=best_clip(), label="CLIP", info=info, allow_custom_value=True)


def _on(gr: Any, button: Any, answer: Callable[..., Any], inputs: list[Any], outputs: Any, *submits: Any) -> None:
    """Call a function at a button, and where Enter ends a line; one at a time, as all share the processor."""
    triggers = [button.click, *(box.submit for box in submits)]
    gr.on(
        triggers, told(answer), inputs, outputs, concurrency_limit=1, concurrency_id="model", api_visibility="private"
    )


# Tabs


def _classify(gr: Any, answers: Answers, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            info = "of timm (resnet50) or of the zoo; the list has the zoo's"
            models = zoo_models()
            model = gr.Dropdown(models, value="hcformer_nano.shapes", label="Model", info=info, allow_custom_value=True)
            words = gr.Textbox(label="Words, for a CLIP alone", placeholder="cat, dog, bird")
            button = gr.Button("Classify and explain", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            label = gr.Label(label="Classes", num_top_classes=5)
            drawings = gr.Gallery(
                label="What the model sees", columns=2, height=520, object_fit="contain", format="png"
            )
    _on(gr, button, answers.classify, [photo, model, words], [label, drawings], words)


def _find(gr: Any, answers: Answers) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            words = gr.Textbox(label="Words", placeholder="a red car", info="for a CLIP")
            photo = _photo(gr, "Or an example")
            info = "a CLIP, for words and examples; or, for examples, a model of timm or of the zoo"
            choices = list(dict.fromkeys([*clips_here(), *zoo_models()]))
            model = gr.Dropdown(choices, value=best_clip(), label="Model", info=info, allow_custom_value=True)
            folder = gr.Textbox(label="Folder", info=f"below {answers.gallery}; empty: all of it", placeholder="all")
            count = gr.Slider(1, 48, value=12, step=1, label="How many")
            button = gr.Button("Find", variant="primary")
        with gr.Column(scale=3):
            found = gr.Gallery(label="Nearest first: distance and file", columns=4, height=640, object_fit="contain")
    if answers.gallery is None:
        folder.visible = False
    _on(gr, button, answers.find, [words, photo, model, count, folder], found, words)


def _segment(gr: Any, answers: Answers, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            words = gr.Textbox(label="Words", value="star, face, disk, pentagon, grey ground", info="commas between")
            clip = _clips(gr)
            button = gr.Button("Segment", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            found = gr.Image(label="Segments", format="png", interactive=False, height=560, buttons=["download"])
    _on(gr, button, answers.segment, [photo, words, clip], found, words)


def _walk(gr: Any, answers: Answers, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            info = "to choose from, one a line, general ones and specific ones"
            texts = gr.Textbox(shape_texts(), label="Texts", info=info, lines=8, max_lines=12)
            clip = _clips(gr)
            info = "HierarCaps: within a growing radius; MERU: along the way from the photo to the root"
            walk = gr.Radio(
                [("HierarCaps", "hierarcaps"), ("MERU", "meru")], value="hierarcaps", label="Walk", info=info
            )
            button = gr.Button("Walk", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            found = gr.Plot(label="From general to specific", format="png")
    _on(gr, button, answers.walk, [photo, texts, clip, walk], found)
