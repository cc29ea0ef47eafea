"""Tiny data sets in the published layouts of the retrieval benchmarks, drawn here."""

from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["SIZE", "write_cars", "write_cub", "write_folder", "write_inshop", "write_sop"]

SIZE = 40


def write_image(path: Path, label: int, number: int) -> None:
    """An image whose colour says its class, with some noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([label, number]).integers(0, 40, (SIZE, SIZE, 3))
    colour = np.array([(37 * label) % 200, (91 * label) % 200, (53 * label) % 200])
    Image.fromarray((colour + noise).astype(np.uint8)).save(path)


def write_cub(root: Path, train: int = 4, test: int = 3, images: int = 4) -> Path:
    """CUB-200-2011 with ``train`` of the classes 1-100 and ``test`` of 101-200."""
    numbers = [*range(1, train + 1), *range(101, 101 + test)]
    names = {n: f"{n:03d}.Bird_{n}_{('Albatross', 'Sparrow')[n % 2]}" for n in numbers}
    files = [(n, f"{names[n]}/{names[n]}_{i:04d}.jpg") for n in numbers for i in range(images)]
    for i, (n, file) in enumerate(files):
        write_image(root / "images" / file, n, i)
    (root / "classes.txt").write_text("".join(f"{n} {name}\n" for n, name in names.items()))
    (root / "images.txt").write_text(
        "".join(f"{i + 1} {file}\n" for i, (_, file) in enumerate(files))
    )
    (root / "image_class_labels.txt").write_text(
        "".join(f"{i + 1} {n}\n" for i, (n, _) in enumerate(files))
    )
    return root


def write_cars(
    root: Path, train: int = 4, test: int = 3, images: int = 4, devkit: bool = False
) -> Path:
    """Cars-196; as first published, or with the ``devkit``. Needs SciPy."""
    from scipy.io import savemat

    names = [f"{('Acura', 'BMW', 'Audi')[n % 3]} Model{n} Sedan 2012" for n in range(1, 197)]
    numbers = [*range(1, train + 1), *range(99, 99 + test)]
    classes = np.array(names, dtype=object)

    def table(key: str, rows: list[tuple[str, int]]) -> np.ndarray:
        out = np.zeros(
            (1, len(rows)), dtype=[(key, object), ("bbox_x1", object), ("class", object)]
        )
        for i, (name, label) in enumerate(rows):
            out[0, i] = (name, 1, label)
        return out

    root.mkdir(parents=True, exist_ok=True)
    files = [
        (f"{i:06d}.jpg", n) for i, n in enumerate(np.repeat(numbers, images).tolist(), start=1)
    ]
    if not devkit:
        for i, (file, n) in enumerate(files):
            write_image(root / "car_ims" / file, n, i)
        rows = [(f"car_ims/{file}", n) for file, n in files]
        savemat(
            root / "cars_annos.mat",
            dict(annotations=table("relative_im_path", rows), class_names=classes),
        )
        return root
    (root / "devkit").mkdir()
    savemat(root / "devkit/cars_meta.mat", dict(class_names=classes))
    # the original division into training and test cuts across classes
    for folder, name, rows in (
        ("cars_train", "devkit/cars_train_annos.mat", files[::2]),
        ("cars_test", "cars_test_annos_withlabels.mat", files[1::2]),
    ):
        for i, (file, n) in enumerate(rows):
            write_image(root / folder / file, n, i)
        savemat(root / name, dict(annotations=table("fname", rows)))
    return root


def write_sop(root: Path, train: int = 4, test: int = 3, images: int = 4) -> Path:
    """Stanford Online Products."""
    number = 0
    for split, first, count in (("train", 1, train), ("test", 11319, test)):
        lines = ["image_id class_id super_class_id path"]
        for n in range(first, first + count):
            kind = ("bicycle", "cabinet")[n % 2]
            for i in range(images):
                number += 1
                file = f"{kind}_final/{n}_{i}.JPG"
                write_image(root / file, n, number)
                lines.append(f"{number} {n} {n % 2 + 1} {file}")
        (root / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")
    return root


def write_inshop(
    root: Path, train: int = 4, test: int = 3, images: int = 4, nested: bool = False
) -> Path:
    """In-Shop; ``nested``: with ``Eval/`` and ``Img/``, as the archives unpack today."""
    rows = []
    for n in range(1, train + test + 1):
        for i in range(images):
            kind = ("WOMEN/Dresses", "MEN/Denim")[n % 2]
            name = f"img/{kind}/id_{n:08d}/{i:02d}_1_front.jpg"
            write_image((root / "Img" if nested else root) / name, n, i)
            rows.append(
                (name, f"id_{n:08d}", "train" if n <= train else ("gallery", "query")[i % 2])
            )
    place = root / "Eval" if nested else root
    place.mkdir(exist_ok=True)
    lines = [
        str(len(rows)),
        "image_name item_id evaluation_status",
        *(" ".join(row) for row in rows),
    ]
    (place / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return root


def write_folder(root: Path, classes: tuple[str, ...], images: int = 4) -> Path:
    """Class folders."""
    for n, name in enumerate(classes):
        for i in range(images):
            write_image(root / name / f"{i:04d}.png", n, i)
    return root
