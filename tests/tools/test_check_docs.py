import pytest
from check_docs import anchors, broken_links, pages, targets

PAGE = """# A title, with `code`

[here](#a-title-with-code) [there](sub/other.md#two-1) ![picture](x.png) [out](https://example.org/a_(b)) `[no](link)`

```sh
echo "[neither](this)"
```

:::{grid-item-card} Card
:link: sub/other
:img-top: x.png
:::

```{toctree}
:hidden:

Named <sub/other>
sub/*
```

```{figure} x.png
```
"""  # noqa: E501


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "x.png").touch()
    (tmp_path / "sub/other.md").write_text("# One\n\n## Two\n\n## Two\n\n[up](../page.md)\n")
    return tmp_path


def test_links_that_lead_somewhere_pass(site):
    assert anchors(PAGE) == {"a-title-with-code"}
    found = [target for _, target in targets(PAGE)]
    assert "link" not in found and "this" not in found
    assert [found.count(name) for name in ("sub/other", "sub/*", "x.png")] == [2, 1, 3]
    assert broken_links(site, [site / "page.md", site / "sub/other.md"]) == []


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("#a-title-with-code", "#title", "page.md:3: 'page.md' has no heading '#title'."),
        ("other.md#two-1", "other.md#two-2", "'other.md' has no heading '#two-2'."),
        ("![picture](x.png)", "![picture](y.png)", "'y.png' does not exist."),
        (":img-top: x.png", ":img-top: y.png", "page.md:11: 'y.png' does not exist."),
        (":link: sub/other", ":link: other", "'other' does not exist."),
        ("Named <sub/other>", "Named <other>", "page.md:14: 'other' does not exist."),
        ("sub/*", "none/*", "'none/*' does not exist."),
        ("```{figure} x.png", "```{figure} y.png", "'y.png' does not exist."),
        ("https://example.org", "https:/example.org", "is no address."),
        ("https://example.org", "https://nowhere", "is no address."),
        ("![picture](x.png)", "![picture](../x.png)", "does not exist."),
    ],
)
def test_links_that_lead_nowhere_are_told(site, old, new, said):
    (site / "page.md").write_text(PAGE.replace(old, new, 1))
    [error] = broken_links(site, [site / "page.md"])
    assert error.endswith(said), error


def test_a_link_out_of_the_repository_is_told(site):
    [error] = broken_links(site / "sub", [site / "sub/other.md"])
    assert error.endswith("'../page.md' is outside of the repository.")


def test_all_pages_are_looked_at():
    found = {path.name for path in pages()}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "own-data.md",
        "himapper.md",
        "geometry.md",
        "index.md",
    } <= found
    assert sum(len(targets(path.read_text(encoding="utf-8"))) for path in pages()) > 150
