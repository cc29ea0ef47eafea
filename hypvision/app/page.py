"""Build the page of the app, which has a tab for each question."""

from __future__ import annotations

import html
import os
import shutil
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from hypvision.clip.locate import clips_here
from hypvision.io import StrPath, require

from .answers import HIERARCHY, TEXTS, Answers, best_clip, zoo_models
from .uploads import told, uploaded, without_folders
from .worker import Worker

TITLE = "hypvision"
EXAMPLES = Path(__file__).parent / "examples"
# Gradio's large preview of a drawing gets a solid background, which hides the small drawings behind
# it.
STYLE = (
    ".preview { background: var(--background-fill-primary) !important; backdrop-filter: none "
    "!important }"
)
SECONDS = 20  # how many seconds an error is shown


def build(answers: Answers | Worker, scratch: StrPath) -> Any:
    """Return the page, a ``gradio.Blocks`` whose buttons call ``answers``. Examples are copied into
    the folder ``scratch``; uploads go into the folder ``GRADIO_TEMP_DIR``."""
    gr = gradio()
    examples = _copy_examples(Path(scratch))
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(
            "# hypvision\nHyperbolic models on your own pictures. Nothing leaves this machine."
        )
        with gr.Tab("Classify and explain"):
            _classify(gr, answers, examples)
        with gr.Tab("Find"):
            _find(gr, answers)
        with gr.Tab("Segment by words"):
            _segment(gr, answers, examples)
        with gr.Tab("From photo to root"):
            _walk(gr, answers, examples)
        with gr.Tab("Hierarchy in the disk"):
            _disk(gr, answers)
    return page


def gradio() -> Any:
    """Return the module gradio, with its telemetry switched off."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1" if "DISABLE" in name else "False"
    return require("gradio", "app")


def with_messages(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its errors and warnings shown on the page, in hypvision's own
    sentences."""
    gr = gradio()

    @wraps(answer)
    def call(*args: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                found = answer(*args)
            except Exception as error:
                raise gr.Error(
                    _shown(told(error)), duration=SECONDS, print_exception=False
                ) from error
        for warning in caught:
            if "hypvision" in warning.filename:
                gr.Warning(_shown(str(warning.message)))
        return found

    return call


def _shown(message: str) -> str:
    """Return a message as text for a page: without folders of this machine, and escaped so that
    nothing is read as HTML."""
    return html.escape(without_folders(message), quote=False)


def _copy_examples(folder: Path) -> list[str]:
    """Copy the examples, emoji on photos that shipped small models know, into a folder that is
    served, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [str(shutil.copy(path, folder)) for path in sorted(EXAMPLES.glob("*.jpg"))]


# Parts that several tabs share


def _photo(gr: Any, label: str = "Photo") -> Any:
    """Return an input for a photo that passes the file on without opening it, so that hypvision's
    own errors say what is wrong."""
    return _by_path(
        gr.Image(
            label=label, type="filepath", sources=["upload", "clipboard"], height=320, buttons=[]
        )
    )


def _by_path(component: Any) -> Any:
    """Let an input pass on the path of an upload, and return the input."""
    component.preprocess = with_messages(
        lambda payload: None if payload is None else uploaded(payload.path)
    )
    return component


def _examples(gr: Any, photo: Any, paths: list[str]) -> None:
    def example(number: int) -> str:
        return paths[number]

    chosen = gr.Dataset(
        components=[photo],
        samples=[[path] for path in paths],
        label="Examples: emoji on photos, which the small models that ship know",
        type="index",
    )
    # gr.Examples is not used, since it would replace the photo by another component, which opens
    # files by itself.
    chosen.click(
        with_messages(example), chosen, photo, api_visibility="private", show_progress="hidden"
    )


def _clips(gr: Any) -> Any:
    info = (
        "a name of open_clip with its weights (ViT-B-16:openai), or of the zoo; the list has the "
        "CLIPs on this machine"
    )
    return gr.Dropdown(
        clips_here(), value=best_clip(), label="CLIP", info=info, allow_custom_value=True
    )


def _on(
    gr: Any, button: Any, answer: Callable[..., Any], inputs: list[Any], outputs: Any, *boxes: Any
) -> None:
    """Call ``answer`` when the button is pressed, and when Enter ends a line in one of ``boxes``.
    One call runs at a time, since all share the processor."""
    triggers = [button.click, *(box.submit for box in boxes)]
    alone = dict(concurrency_limit=1, concurrency_id="model", api_visibility="private")
    gr.on(triggers, with_messages(answer), inputs, outputs, **alone)


# Tabs of the page


def _classify(gr: Any, answers: Answers | Worker, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            info = "a name of timm (resnet50) or of the zoo; the list has the zoo's"
            models = zoo_models()
            first = "faster-rcnn_tf_efficientnet_lite0.emoji"
            model = gr.Dropdown(
                models, value=first, label="Model", info=info, allow_custom_value=True
            )
            words = gr.Textbox(
                label="Words",
                info="only for a CLIP; separate words by commas",
                placeholder="cat, dog, bird",
            )
            button = gr.Button("Classify and explain", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            scores = gr.Label(label="Classes", num_top_classes=5)
            gr.Markdown("What the model finds, or what it groups together:")
            shown = dict(
                preview=True, selected_index=0, height=560, object_fit="contain", interactive=False
            )
            shown |= dict(show_label=False, format="png", buttons=["download", "fullscreen"])
            drawings = gr.Gallery(elem_id="drawings", **shown)
    _on(gr, button, answers.classify, [photo, model, words], [scores, drawings], words)


def _find(gr: Any, answers: Answers | Worker) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            words = gr.Textbox(label="Words", placeholder="a red car", info="for a CLIP")
            photo = _photo(gr, "Or an example")
            info = "a CLIP, for words and examples; or, for examples, a model of timm or of the zoo"
            choices = list(dict.fromkeys([*clips_here(), *zoo_models()]))
            model = gr.Dropdown(
                choices, value=best_clip(), label="Model", info=info, allow_custom_value=True
            )
            info = (
                "a folder of the gallery to search in"
                if answers.gallery
                else "start with --gallery DIR to have one to search"
            )
            folder = gr.Textbox(label="Folder", info=info, placeholder="all of it")
            count = gr.Slider(1, 48, value=12, step=1, label="How many")
            button = gr.Button("Find", variant="primary")
        with gr.Column(scale=3):
            shown = dict(columns=4, height=720, object_fit="contain", interactive=False)
            found = gr.Gallery(elem_id="found", show_label=False, buttons=["fullscreen"], **shown)
            gr.Markdown(
                "The nearest come first; below each stands its distance, and the name of its file."
            )
    _on(gr, button, answers.find, [words, photo, model, count, folder], found, words)


def _segment(gr: Any, answers: Answers | Worker, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            value = "monster or costume face, mammal, fruit, water transport"
            words = gr.Textbox(
                label="Words",
                value=value,
                info="separated by commas; each pixel gets one of the words",
            )
            clip = _clips(gr)
            button = gr.Button("Segment", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            shown = dict(
                format="png", interactive=False, height=640, buttons=["download", "fullscreen"]
            )
            found = gr.Image(elem_id="segments", label="Segments", **shown)
    _on(gr, button, answers.segment, [photo, words, clip], found, words)


def _walk(gr: Any, answers: Answers | Worker, examples: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            photo = _photo(gr)
            texts = gr.Textbox(
                TEXTS,
                label="Texts",
                info="to choose from, one a line, general ones and specific ones",
                lines=8,
                max_lines=8,
            )
            clip = _clips(gr)
            info = (
                "HierarCaps: within a growing radius; MERU: along the way from the photo to the "
                "root"
            )
            kinds = [("HierarCaps", "hierarcaps"), ("MERU", "meru")]
            walk = gr.Radio(kinds, value="hierarcaps", label="Walk", info=info)
            button = gr.Button("Walk", variant="primary")
            _examples(gr, photo, examples)
        with gr.Column(scale=3):
            found = gr.Plot(elem_id="walk", show_label=False, format="png")
            gr.Markdown(
                "The root is on top. A bar is the distance from it; in brackets the similarity to "
                "the photo."
            )
    _on(gr, button, answers.walk, [photo, texts, clip, walk], found)


def _disk(gr: Any, answers: Answers | Worker) -> None:
    with gr.Row():
        with gr.Column(scale=2):
            chains = gr.Textbox(
                HIERARCHY,
                label="Hierarchy",
                info="a chain of names a line, from general to specific",
                lines=10,
                max_lines=10,
            )
            kinds = [".csv", ".tsv", ".txt", ".gz"]
            file = _by_path(
                gr.File(
                    label="Or a file of names and their ancestors (id1,id2)",
                    file_types=kinds,
                    height=160,
                )
            )
            steps = gr.Slider(100, 10000, value=1000, step=100, label="Steps of training")
            button = gr.Button("Embed", variant="primary")
        with gr.Column(scale=3):
            found = gr.Plot(elem_id="disk", show_label=False)
            gr.Markdown(
                "Distances are hyperbolic: the rim is infinitely far away. Point at a dot to see "
                "its name."
            )
    _on(gr, button, answers.disk, [chains, file, steps], found)
