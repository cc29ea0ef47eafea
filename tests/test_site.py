"""The site: every public name has a page, and it builds without a warning."""

import ast
import re
import subprocess
import sys

import pytest
from helpers.engine import ROOT
from helpers.syntax import tree_of_file

LISTED = set(
    re.findall(
        r"^   (hypvision[\w.]*)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), flags=re.M
    )
)


def public_packages():
    """Packages that say what is public, by name."""
    found = {}
    for path in sorted((ROOT / "hypvision").rglob("__init__.py")):
        for node in tree_of_file(path).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found[".".join(path.parent.relative_to(ROOT).parts)] = ast.literal_eval(node.value)
    return found


def test_the_api_lists_every_package_that_has_public_names():
    assert set(public_packages()) == LISTED


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo", reason="the extra 'docs' is not installed")
    sphinx = [sys.executable, "-m", "sphinx"]
    command = [*sphinx, "--fail-on-warning", "--quiet", "-b", "html", "-c", "docs"]
    options = [
        "-d",
        str(tmp_path / "doctrees"),
        "-D",
        "nb_execution_mode=off",
    ]  # tests/test_notebooks.py runs them
    done = subprocess.run(
        [*command, *options, ".", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert 'url=docs/index.html"' in (tmp_path / "site/index.html").read_text()
    for package, names in public_packages().items():
        listing = (tmp_path / "site/docs/api" / f"{package}.html").read_text()
        lost = [
            name
            for name in names
            if not name.startswith("_") and f"{package}.{name}" not in listing
        ]
        assert not lost, (package, lost)
    pictures = {
        (page, name) for page in (tmp_path / "site").rglob("*.html") for name in _pictures(page)
    }
    assert (tmp_path / "site/README.html", "_images/regions.png") in pictures
    assert not [(page.name, name) for page, name in pictures if not (page.parent / name).is_file()]
    configs = (tmp_path / "site/docs/methods/hcformer.html").read_text()
    assert "ImageNet-1K: Top 1 Accuracy 73.0" in configs and "hcformer_nano.cifar10" in configs


def _pictures(page):
    """The files that a page of the site shows as pictures."""
    return re.findall(r'<img[^>]* src="([^":?]+)"', page.read_text(encoding="utf-8"))
