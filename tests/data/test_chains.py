"""Chains: files of both schemas and their mistakes, shapes and emoji, captions with a table of
broader terms."""

import gzip

import pytest
from helpers.cases import each
from helpers.emoji import make_emoji

from hypvision.data.chains import Chain, emoji_chains, read_chains, with_negatives, write_chains
from hypvision.data.emoji import read_emoji
from hypvision.data.hypernyms import build_chains, read_terms
from hypvision.data.text_chains import TextChains
from hypvision.io.errors import HypvisionError

CHAINS = [
    Chain(
        ("food", "fruit", "a red  apple"),
        ("animal", "dish", "a pear, green"),
        "http://x/COCO_val2014_000000000042.jpg",
    ),
    Chain(("food", "dish", 'a "bowl" of ramen'), ("tool", "fruit", "a plate of rice"), "b.jpg"),
]


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["chains.csv", "chains.csv.gz"])
def test_what_is_written_is_read(tmp_path, name):
    write_chains(tmp_path / name, CHAINS)
    assert read_chains(tmp_path / name) == CHAINS  # inner spaces, quotes and commas stay
    bare = [Chain(chain.texts, (), chain.image) for chain in CHAINS]
    write_chains(tmp_path / name, bare)
    assert read_chains(tmp_path / name) == bare


def test_schemas(tmp_path):
    found = read_chains(
        write(tmp_path / "a.csv", "id,captions,image_url\n7,a=>b => c,http://x/1.jpg\n8,a=>d=>e,\n")
    )
    assert found == [Chain(("a", "b", "c"), (), "http://x/1.jpg"), Chain(("a", "d", "e"), (), "8")]
    found = read_chains(write(tmp_path / "b.csv", "positive,negative\r\na => b,c => d\r\n"))
    assert found == [Chain(("a", "b"), ("c", "d"), None)]


@each(
    "text, message",
    [
        ("", "no rows"),
        ("id,captions\n", "no rows"),
        (
            "id,text\n1,a => b\n",
            "Line 2 .* has neither 'captions' nor 'positive'.* Expected: 'positive,negative",
        ),
        (
            "id,captions\n1,a => b\n2,a => b => c\n",
            "Line 3 .* chain of 3 texts, but the chains before have 2",
        ),
        ("id,captions\n1,a =>  => b\n", "Line 2 .* level 2 of 'a =>  => b' is empty"),
        ("id,captions\n1,a\n", "Line 2 .* is not a chain"),
        ("positive,negative\na => b,c\n", "Line 2 .* is not a chain"),
        ("positive,negative\na => b,c => d => e\n", "Line 2 .* 2 texts but 3 negatives"),
        ("id,captions\n1,a => b,c => d\n", "line 2, has more cells"),
        ("id,captions\n1\n", "line 2, has fewer cells"),
        ('id,captions\n1,"a => b\n', "cannot be read"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, text, message):
    with pytest.raises(HypvisionError, match=message):
        read_chains(write(tmp_path / "x.csv", text))


def test_files_that_are_none(tmp_path):
    with pytest.raises(HypvisionError, match="There is no table '.*nowhere.csv'"):
        read_chains(tmp_path / "nowhere.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,captions\n1,a => b\n" * 50)[:-12])
    (tmp_path / "b.csv").write_bytes(b"id,captions\n1,\xff => b\n")
    for name in ("a.csv.gz", "b.csv"):
        with pytest.raises(HypvisionError, match="cannot be read"):
            read_chains(tmp_path / name)


def test_negatives_are_siblings(tmp_path):
    texts = [("animal", "dog", "a black dog"), ("animal", "dog", "a dog"), ("animal", "cat",
    "a cat"),
             ("food", "cake", "a slice")]  # fmt: skip
    for seed in range(5):
        found = {
            chain.texts: chain.negatives
            for chain in with_negatives([Chain(t) for t in texts], seed)
        }
        assert found[texts[0]] == ("food", "cat", "a dog")
        assert found[texts[2]][:2] == ("food", "dog") and found[texts[2]][2] in (
            "a black dog",
            "a dog",
        )
        assert found[texts[3]][0] == "animal" and found[texts[3]][1] in ("dog", "cat")
    with pytest.raises(HypvisionError, match="All chains have 'animal' at level 1"):
        with_negatives([Chain(t) for t in texts[:3]])
    own = Chain(
        ("animal", "bird", "a gull"), ("stone", "fish", "a crow")
    )  # stays beside chains without
    mixed = [own, *(Chain(t) for t in texts)]
    assert with_negatives(mixed)[0] == own and all(
        len(chain.negatives) == 3 for chain in with_negatives(mixed)
    )
    with pytest.raises(HypvisionError, match="1 of 5 chains have negatives.*with_negatives"):
        write_chains(tmp_path / "mixed.csv", mixed)
    text = "captions,negative\na => b,n => m\nc => d,\ne => f,\n"
    assert TextChains(write(tmp_path / "a.csv", text))[0]["negative"] == ["n", "m"]


def test_emoji(tmp_path):
    root = make_emoji(tmp_path / "emoji")
    chains = emoji_chains(root, "val")
    ids = [item.id for item in read_emoji(root, "val")[0]]
    assert [chain.image for chain in chains] == ids
    assert chains[1].texts == (
        "animal or plant",
        "mammal",
        "val mammal 1",
        "val mammal 1: one, two",
    )
    words = {text for chain in chains for text in chain.texts}
    assert all(set(chain.negatives) <= words - set(chain.texts) for chain in chains)
    assert not any(
        "train" in text or "test" in text for chain in chains for text in chain.negatives
    )


TERMS = """word,broader
ramen,noodle dish
udon,noodle dish
noodle dish,dish
pizza,dish
dish,food
fruit,food
apple,fruit
dog,animal
"""


def test_own_captions(tmp_path):
    terms = read_terms(write(tmp_path / "terms.csv", TERMS))
    texts = [
        build_chains([(text, None)], terms, 3)[0].texts
        for text in ("A bowl of Ramen with egg", "two pizzas")
    ]
    assert texts == [("food", "ramen", "A bowl of Ramen with egg"), ("food", "pizza", "two pizzas")]
    chains = build_chains([("a bowl of ramen", "1.jpg"), ("a car", "2.jpg")], terms, 5)
    assert chains == [
        Chain(("food", "dish", "noodle dish", "ramen", "a bowl of ramen"),
              ("animal", "fruit", "pizza", "udon", "a bowl of udon"), "1.jpg")
    ]  # fmt: skip
    with pytest.raises(HypvisionError, match="None of the 1 captions"):
        build_chains([("a car", None)], terms, 4)
    with pytest.raises(HypvisionError, match="at least 3 levels"):
        build_chains([("a car", None)], terms, 2)


def test_wordnet_export(tmp_path):
    write(tmp_path / "nouns.tsv",
    "wnid\tsynset\tlemmas\tgloss\n1\tanimal.n.01\tanimal|beast\ta \"thing\n"
          "2\tcat.n.03\tcat\tgossip\n3\tcat.n.01\tcat|true cat\tfeline\n"
          "4\tdog.n.01\tdog\t\n5\tguy.n.01\tguy|cat\t\n")  # fmt: skip
    write(tmp_path / "edges.tsv", "child\tparent\tkind\n3\t1\tis-a\n4\t1\tis-a\n2\t5\tis-a\n")
    terms = read_terms(tmp_path)
    assert build_chains([("a true cat", None)], terms, 3)[0].texts == (
        "animal",
        "true cat",
        "a true cat",
    )
    assert build_chains([("the cat, my cat", None)], terms, 3)[0].negatives == (
        "guy",
        "dog",
        "the dog, my dog",
    )


@each(
    "text, message",
    [
        ("word,above\na,b\n", "none is called broader"),
        ("word,broader\na,\n", "line 2: missing broader"),
        ("word,broader\na, \n", "Line 2 .* has blanks"),
    ],
)
def test_mistakes_in_tables(tmp_path, text, message):
    with pytest.raises(HypvisionError, match=message):
        read_terms(write(tmp_path / "terms.csv", text))
    with pytest.raises(HypvisionError, match="There is no table '.*none.csv'"):
        read_terms(tmp_path / "none.csv")


def test_terms_in_a_circle(tmp_path):
    terms = read_terms(write(tmp_path / "terms.csv", "word,broader\nhen,egg\negg,hen\n"))
    with pytest.raises(HypvisionError, match="circle"):
        build_chains([("a hen", None)], terms, 3)


def test_negatives_are_of_the_same_share(tmp_path):
    """What is held out for validation is no negative in training."""
    lines = [f"{i},kind {i % 4} => thing {i} => picture {i}" for i in range(20)]
    path = write(tmp_path / "c.csv", "\n".join(["id,captions", *lines]))
    for share in ((0.0, 0.5), (0.5, 1.0)):
        rows = [TextChains(path, share=share)[i] for i in range(10)]
        assert {text for row in rows for text in row["negative"]} <= {
            text for row in rows for text in row["positive"]
        }
