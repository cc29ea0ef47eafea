"""Find and open images, in the same way for every command, data set and function.

An image file is untrusted input. It is opened only if it is a regular file with at most
:data:`MAX_PIXELS` pixels, and only as one of :data:`FORMATS`, whatever its name is: Pillow would
start a PostScript interpreter for an EPS that is called ``.png``. Every function that is given the
path of another file raises a :class:`~hypvision.io.errors.HypvisionError`, see :func:`open_image`.
"""

from __future__ import annotations

import glob
import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, features

from .checks import ensure, one_of
from .errors import HypvisionError, one_line
from .files import why_no_file
from .types import StrPath, Values

# The formats that are read, by their names in Pillow.
FORMATS: tuple[str, ...] = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = {
    ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff",
    ".webp",
}  # fmt: skip
# Formats that some builds of Pillow cannot read: their suffixes, and how to add them.
_OPTIONAL = {
    "AVIF": ((".avif", ".avifs"), "Pillow was built without AVIF here; install pillow>=11.3"),
    "HEIF": ((".heic", ".heif"), "install pillow-heif to read HEIC"),
}
# Older versions of Pillow would warn of an unknown feature.
if "avif" in features.modules and features.check("avif"):
    FORMATS += ("AVIF",)
if importlib.util.find_spec("pillow_heif"):
    importlib.import_module("pillow_heif").register_heif_opener()
    FORMATS += ("HEIF",)
SUFFIXES.update(*(suffixes for name, (suffixes, _) in _OPTIONAL.items() if name in FORMATS))
_MISSING = {
    suffix: text
    for name, (suffixes, text) in _OPTIONAL.items()
    if name not in FORMATS
    for suffix in suffixes
}
# limit for the pixels of an image, half a GiB as RGB, which is also Pillow's limit
MAX_PIXELS = 178_956_970
WHITE = 65535  # the value of white in an image of 16 bits

_OTHER_VIDEOS = (
    ".3gp", ".asf", ".flv", ".m2ts", ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".wmv"
)  # fmt: skip

_Result = TypeVar("_Result")


# Choosing the files that are images


def is_image(path: Path) -> bool:
    """Return whether a path is a file that is not hidden and has the ending of an image."""
    return why_no_image(path.name) is None and path.is_file()


def is_hidden(name: str) -> bool:
    """Return whether programs make a file or folder of this name for themselves, such as
    ``.ipynb_checkpoints``."""
    made = ("__MACOSX", "__pycache__", "@eaDir", "lost+found", "System Volume Information")
    return name.startswith(".") or name in made


def why_no_image(name: str) -> str | None:
    """Return the reason why a file of this name is not read as an image; None if it is read."""
    suffix = os.path.splitext(name)[1].lower()
    if is_hidden(name):
        return "hidden file"
    if suffix in SUFFIXES:
        return None
    return f"suffix {suffix or 'missing'}" + (f": {_MISSING[suffix]}" if suffix in _MISSING else "")


def images_in(folder: StrPath) -> list[Path]:
    """Return the images in a folder and its sub-folders, sorted, without hidden ones."""
    root = Path(folder).expanduser()
    ensure(root.is_dir(), f"There is no folder '{folder}'. Give a folder of images.")
    return _inside(root, folder, ())


def _inside(root: Path, name: StrPath, videos: Collection[str]) -> list[Path]:
    """Return the images and videos in a folder and its sub-folders; messages call the folder
    ``name``."""
    found = []
    for path in sorted(root.rglob("*")):
        taken = is_image(path) or (path.suffix.lower() in videos and path.is_file())
        if taken and not any(map(is_hidden, path.relative_to(root).parts)):
            found.append(path)
    if not found:
        others = "; ".join(
            f"{file}: {reason}" for reason, file in islice(not_taken(root, videos), 3)
        )
        raise HypvisionError(
            f"The folder '{name}' has no images ({' '.join(sorted(SUFFIXES))}), also not below it."
            + (f" It has {others}." if others else "")
            + " Give another folder or a file."
        )
    return found


def find_images(names: Iterable[StrPath], videos: Collection[str] = ()) -> list[Path]:
    """Return the files that paths, folders (for the images in them and their sub-folders) and glob
    patterns name, each once.

    Args:
        names: paths of files and folders, and glob patterns.
        videos: endings of videos, which are found, too; without any, only images are found.
    """
    found: dict[Path, None] = {}
    for name in names:
        try:
            found.update(dict.fromkeys(_named(Path(name).expanduser(), name, videos)))
        except (OSError, ValueError, RuntimeError) as error:
            # the name is too long, has a NUL or an unknown ~user
            raise HypvisionError(
                f"There is no image '{name}' ({error}). Check the path."
            ) from error
    return list(found)


def not_taken(folder: Path, videos: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the reason and the name of each file in a folder and its sub-folders that
    :func:`find_images` leaves out, except hidden ones.

    Args:
        folder: a folder of images.
        videos: endings of videos, which are not left out.
    """
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(files):
            path = Path(place, name)
            reason = None if path.suffix.lower() in videos else why_no_image(name)
            if reason is None and not path.is_file():
                reason = "a pipe, a device or a link to nothing"
            if reason is not None and not is_hidden(name):
                yield reason, path.relative_to(folder).as_posix()


def _named(path: Path, name: StrPath, videos: Collection[str]) -> list[Path]:
    if path.is_dir():
        return _inside(path, name, videos)
    if path.is_file():
        return [path]
    pattern = str(path)
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    # A pipe is kept here, since opening it raises an error that says so.
    files = [Path(match) for match in matches if not os.path.isdir(match)]
    what = "video" if path.suffix.lower() in videos else "image"
    ensure(files, f"{why_no_file(name, what)} Check the path.")
    return files


def output_names(paths: Sequence[Path]) -> list[str]:
    """Return for each image a name for its results: the image's name without its ending, behind
    those of as many of its folders, below the one that holds all, as tell all images apart
    (``train_a_0`` for ``train/a/0.jpg``); and with a number if the name is taken, as by ``0.png``
    beside ``0.jpg``.

    A name has at most 200 bytes, since endings are added to it.
    """
    folders = [
        [name for name in path.parent.parts if name not in (path.anchor, "..")] for path in paths
    ]
    shared = len(os.path.commonprefix(folders))
    parts = [[*above[shared:], path.stem] for above, path in zip(folders, paths)]
    different = len({*map(tuple, parts)})
    count = 1
    while len({tuple(one[-count:]) for one in parts}) < different:
        count += 1
    names: dict[str, None] = {}
    # For each name without its ending the last number, from which the search for a free one goes
    # on.
    numbers: dict[str, int] = {}
    for one in parts:
        whole = "_".join(one[-count:])
        raw = os.fsencode(whole)
        stem = name = whole if len(raw) <= 200 else raw[:200].decode("utf-8", "ignore")
        while name in names:
            number = numbers[stem] = numbers.get(stem, 1) + 1
            name = f"{stem}-{number}"
        names[name] = None
    return list(names)


# Leaving out images that cannot be used


@contextmanager
def leaving_out(file: StrPath, failed: list[str] | None) -> Iterator[None]:
    """Context that skips an image which raises an error, and adds the message to ``failed``; if
    ``failed`` is None, the error is raised."""
    try:
        yield
    except HypvisionError as error:
        if failed is None:
            raise
        failed.append(str(error) if str(file) in str(error) else f"'{file}': {error}")


_NAMED = 10  # images whose errors are told at the end of a command


def require_all(failed: Sequence[str], done: int) -> None:
    """Raise the final error of a command that has skipped images (:func:`leaving_out`), after it
    has written all other results.
    """
    if failed:
        how_many = f"{len(failed)} of {len(failed) + done} images are left out. " if done else ""
        more = f" And {len(failed) - _NAMED} more." if len(failed) > _NAMED else ""
        raise HypvisionError(how_many + " ".join(failed[:_NAMED]) + more)


# Reading images, label maps and sizes


def check_normalisation(transform: Values | Callable[..., Any], channels: int) -> None:
    """Raise an error unless the mean and the standard deviation of a transform have a value for
    each channel; timm's own have the three of RGB."""
    for name in ("mean", "std") if isinstance(transform, Mapping) else ():
        count = len(transform.get(name, (0, 0, 0)))  # type: ignore[union-attr]
        ensure(
            count in (1, channels),
            f"The transform has {count} values of '{name}' for images of {channels} channels. Give "
            "'mean' and 'std' with one value for each channel.",
        )


def open_channels(
    source: StrPath | Image.Image | np.ndarray, channels: int, white: int = WHITE
) -> Image.Image:
    """Return an image with 1 (grey), 3 (RGB, by :func:`open_image`) or 4 channels of 8 bits, turned
    upright.

    An image with four channels has the mode CMYK, whatever its channels mean, because Pillow would
    treat the fourth channel of RGBA as transparency and change the others.

    Raises:
        HypvisionError: as for :func:`open_image`; or the image does not have 4 channels.
    """
    one_of((1, 3, 4), channels=channels)
    if channels == 3:
        return open_image(source, white=white)
    if channels == 1:
        return open_image(source, white=white).convert("L")

    def four(image: Image.Image) -> Image.Image:
        if image.mode not in ("RGBA", "CMYK", "RGBX"):
            raise HypvisionError(
                f"The image '{source}' has the channels {', '.join(image.getbands())}, but 4 of 8 "
                "bits are asked for (a TIFF's fourth counts if the file marks it as alpha). Save "
                "it with 4 channels, or set channels=3."
            )
        return Image.merge("CMYK", ImageOps.exif_transpose(image).split())

    if isinstance(source, (str, Path)):
        return _read(source, "image", four)
    return four(Image.fromarray(source) if isinstance(source, np.ndarray) else source)


def open_image(
    source: StrPath | Image.Image | np.ndarray, most: int = MAX_PIXELS, white: int = WHITE
) -> Image.Image:
    """Return an image as it is shown: RGB of 8 bits, turned upright.

    Args:
        source: path of a file, PIL image, or RGB array, uint8 (H, W, 3).
        most: largest number of pixels of a file. A JPEG with more is decoded at a half, a quarter
            or an eighth of each side.
        white: value of white in an image of 16 bits; larger values are white, too.

    Returns:
        A PIL image of mode RGB, turned as the camera says (EXIF), with 16 bits scaled to 8 and
        transparent parts on white.

    Raises:
        HypvisionError: the file is missing, damaged, no image, or larger than ``most``; it has 32
            bits, whose black and white are not known; or an array has another shape or type.
    """
    if isinstance(source, (str, Path)):
        return _read(
            source, "image", lambda image: to_rgb(image, f"The image '{source}'", white), most=most
        )
    if isinstance(source, Image.Image):
        return to_rgb(source, white=white)
    ensure(
        isinstance(source, np.ndarray),
        f"An image is a path, a PIL image or an array, got {type(source).__name__}. Give one "
        "of these.",
    )
    ensure(
        source.dtype == np.uint8 and source.ndim == 3 and source.shape[2] == 3 and source.size,
        f"An image array must be uint8 (H, W, 3), got {source.dtype} {source.shape}. Convert it.",
    )
    return Image.fromarray(source)


def read_labels(
    path: StrPath, what: str = "label map", mode: str | None = None, data: bytes | None = None
) -> np.ndarray:
    """Return the numbers in a label map as they are stored: (H, W), or (H, W, C) for a coloured
    one.

    Args:
        path: the file.
        what: name of the file's kind in messages.
        mode: mode of Pillow that the image is converted to; None: no conversion.
        data: content of a file that lies in an archive or a text; ``path`` is then only its name.
    """

    def numbers(image: Image.Image) -> np.ndarray:
        return np.array(image if mode is None else image.convert(mode))

    return _read(path, what, numbers, data=data)


def label_palette(path: StrPath) -> dict[int, tuple[int, int, int]]:
    """Return the colours that the palette of a label map gives to the numbers in it; an empty dict
    for a label map without a palette."""

    def colours(image: Image.Image) -> dict[int, tuple[int, int, int]]:
        if image.mode != "P":
            return {}
        palette = np.reshape(image.getpalette("RGB") or [], (-1, 3)).astype(int).tolist()
        there = np.unique(np.array(image))
        return {label: tuple(palette[label]) for label in there if label < len(palette)}

    return _read(path, "label map", colours)


def image_size(path: StrPath) -> tuple[int, int]:
    """Return height and width of an image as it is stored, from its header alone."""
    return _read(path, "image", _stored_size, pixels=False)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Return height and width as stored. Pillow swaps the sides of a rotated TIFF, and of no other
    format, so a TIFF's are read from its tags."""
    if image.format == "TIFF":
        return image.tag_v2[257], image.tag_v2[256]  # type: ignore[attr-defined]
    return image.height, image.width


def shown_size(path: StrPath) -> tuple[int, int]:
    """Return height and width of an image as :func:`open_image` shows it, turned as the camera
    says, from its header alone."""

    def size(image: Image.Image) -> tuple[int, int]:
        height, width = _stored_size(image)
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return (width, height) if turned else (height, width)

    return _read(path, "image", size, pixels=False)


def image_kind(path: StrPath) -> tuple[str, str]:
    """Return the format and the mode of an image, as Pillow calls them, from its header alone."""
    return _read(path, "image", lambda image: (image.format or "", image.mode), pixels=False)


def is_deep_colour(path: StrPath) -> bool:
    """Return whether an image has 16 bits for each colour, of which Pillow reads the upper 8."""
    return _read(
        path,
        "image",
        lambda image: (
            image.mode.startswith("RGB")
            and any(";16" in str(part[3]) for part in getattr(image, "tile", ()))
        ),
        pixels=False,
    )


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image of :func:`open_channels` in a form that can be shown: of four channels, which
    are held as CMYK, the first three as RGB."""
    return Image.merge("RGB", image.split()[:3]) if image.mode == "CMYK" else image


class _Quiet:
    """A context that ignores all warnings while any thread is inside it.
    ``warnings.catch_warnings`` changes the whole process: of two threads inside it, one restores
    what the other has set, and warnings stay ignored for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._saved = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._saved.__exit__(None, None, None)


_quiet = _Quiet()


def _read(
    path: StrPath,
    what: str,
    use: Callable[[Image.Image], _Result],
    pixels: bool = True,
    most: int = MAX_PIXELS,
    data: bytes | None = None,
) -> _Result:
    try:
        # The path must be a regular file: reading a pipe waits for its writer, and a device has no
        # end.
        there = data is not None or os.path.isfile(path)
        ensure(there, f"{why_no_file(path, what)} Check the path.")
        source = path if data is None else io.BytesIO(data)
        # Pillow warns of large images and of tags that do not matter here.
        with _quiet, Image.open(source, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"{width} x {height} pixels, more than {MAX_PIXELS:,} in all")
            _draft(image, most)
            ensure(
                image.width * image.height <= most,
                f"The {what} '{path}' cannot be read: it has {width} x {height} pixels, more than "
                f"{most:,} in all. Give a smaller copy.",
            )
            _refuse_pages(image, path, what)
            if pixels:
                _refuse_plain_ycbcr(image, path, what)
                image.load()
            return use(image)
    except (HypvisionError, MemoryError):
        raise
    # Damaged bytes make Pillow's readers raise errors of any type.
    except Exception as error:
        raise HypvisionError(f"The {what} '{path}' {_why_unread(path, error)}") from error


def _draft(image: Image.Image, most: int) -> None:
    """Let a JPEG with more than ``most`` pixels be decoded at a half, a quarter or an eighth of its
    sides; other formats stay as they are."""
    width, height = image.size
    sizes = {part: (-(-width // part), -(-height // part)) for part in (1, 2, 4)}
    part = next((part for part, (a, b) in sizes.items() if a * b <= most), 8)
    # For a progressive JPEG all coefficients are held in memory at any size, so nothing would be
    # saved.
    if part > 1 and not image.info.get("progressive"):
        image.draft(None, (max(1, width // part), max(1, height // part)))


def _why_unread(path: StrPath, error: Exception) -> str:
    """Return why an image cannot be read, as the end of a sentence that begins with its name."""
    if isinstance(error, PermissionError):
        return f"cannot be read: {error.strerror}."
    told = one_line(error)
    if Path(path).suffix.lower() in _OTHER_VIDEOS:
        return "is a video of a kind that is not read. Convert it to .mp4 (H.264) first."
    if "MAX_TEXT_CHUNK" in told or "text chunks" in told:
        return (
            "cannot be read: the texts beside its pixels (a prompt, a history) are too long "
            f"({told}). Save it without them."
        )
    empty = " (it is empty)" if os.path.exists(path) and os.path.getsize(path) == 0 else ""
    return (
        f"cannot be read{empty}: the file is damaged, or none of {', '.join(FORMATS)} ({told}). "
        "Replace it by an intact copy, or leave it out."
    )


def _refuse_pages(image: Image.Image, path: StrPath, what: str) -> None:
    """Raise an error for a TIFF with several pages, of which only the first would be read. Small
    copies of an image (bit 0 of NewSubfileType) are not pages."""
    if image.format != "TIFF" or getattr(image, "n_frames", 1) == 1:
        return
    frames: Any = image
    pages = 0
    for number in reversed(range(frames.n_frames)):
        frames.seek(number)
        pages += not frames.tag_v2.get(254, 0) & 1
    ensure(
        pages <= 1,
        f"The {what} '{path}' is a TIFF of {pages} pages, of which one would be read. Save "
        "each page as a file of its own (ImageMagick: convert FILE.tif FILE-%d.tif).",
    )


def _refuse_plain_ycbcr(image: Image.Image, path: StrPath, what: str) -> None:
    """Raise an error for a TIFF in YCbCr without compression, which Pillow takes for a file cut
    off; it reads compressed ones."""
    tags: Any = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    ensure(
        (tags.get(262), tags.get(259)) != (6, 1),
        f"The {what} '{path}' is a TIFF in YCbCr without compression, which is not read. Save it "
        "as RGB, or compressed (ImageMagick: convert FILE.tif -compress lzw FILE2.tif).",
    )


def write_image(image: Image.Image, path: StrPath, format: str, **options: Any) -> None:
    """Write an image file, encoded in memory and then written by Python. JPEG and TIFF that Pillow
    writes itself are cut off on a full disk without an error.

    Args:
        image: the image.
        path: path of the file.
        format: Pillow's name of the format.
        options: Pillow's options for the format.
    """
    encoded = io.BytesIO()
    image.save(encoded, format, **options)
    Path(path).write_bytes(encoded.getbuffer())


def is_rgb(image: Image.Image) -> bool:
    """Return whether :func:`to_rgb` would change nothing of a PIL image, and need not copy it."""
    return _is_upright(image) and image.mode == "RGB" and "transparency" not in image.info


def _is_upright(image: Image.Image) -> bool:
    """Return whether no tag of a PIL image says that it lies on a side or is a mirror's; damaged
    tags say nothing."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    except Exception:  # Pillow raises SyntaxError, struct.error and others
        return True


def to_rgb(image: Image.Image, name: str = "The image", white: int = WHITE) -> Image.Image:
    """Return a PIL image as it is shown, see :func:`open_image`; ``name`` is the subject of error
    messages."""
    image = image if _is_upright(image) else ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _eight_bits(image, name, white)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image)
        image = paper
    return image.convert("RGB")


def _eight_bits(image: Image.Image, name: str, white: int) -> Image.Image:
    """Return a grey image of 16 bits scaled to 8 bits; Pillow's own conversion makes every value
    above 255 white."""
    values = np.array(image)
    ensure(
        image.mode != "F" and values.min(initial=0) >= 0 and values.max(initial=0) <= 65535,
        f"{name} has pixels of Pillow's mode {image.mode}, whose white and black are not "
        "known. Save it with 8 or 16 bits a channel.",
    )
    values = np.minimum(values, white).astype(np.int64) * 255 // white
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")
