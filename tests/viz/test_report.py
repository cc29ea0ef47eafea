"""A report is one page that refers to nothing outside, whatever the names in it are."""

import csv

import pytest
from PIL import Image

from hypvision.io.errors import HypvisionError
from hypvision.viz.report import Part, write_report

EVIL = '<img src="https://evil.example/a.png"><script>alert(1)</script>'


def test_names_of_others_stay_text(tmp_path):
    picture = Image.new("RGB", (4, 4), "red")
    parts = [
        Part(EVIL, "matrix", EVIL, picture, [("class", EVIL), (EVIL, 1)]),
        Part("photo", "photo", picture=picture, photo=True),
        Part("hidden", "hidden", table=[("a", "b"), ("=cmd()", 2.5)], shown=False),
    ]
    path = write_report(tmp_path / "deep", EVIL, {"config": EVIL}, parts)
    page = path.read_text()
    assert "<script" not in page and page.count("src=") - page.count(
        "src=&quot;"
    ) == 2 == page.count('src="data:image/')
    assert page.count("&lt;script&gt;") == 8 and "cmd" not in page and "hidden.csv" in page
    assert {file.name for file in path.parent.iterdir()} == {
        "report.html", "matrix.png", "matrix.csv", "photo.jpg", "hidden.csv"
    }  # fmt: skip
    assert list(csv.reader((path.parent / "hidden.csv").open())) == [["a", "b"], ["'=cmd()", "2.5"]]


def test_long_tables_are_cut_on_the_page_alone(tmp_path):
    page = write_report(
        tmp_path, "t", {}, [Part("p", "long", table=[("n",), *((i,) for i in range(500))])]
    ).read_text()
    assert page.count("<tr>") == 101 and "All numbers are in long.csv" in page
    assert len((tmp_path / "long.csv").read_text().splitlines()) == 501


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    (tmp_path / "report.html").symlink_to(tmp_path / "precious")
    with pytest.raises(HypvisionError, match="link"):
        write_report(tmp_path, "t", {}, [])
