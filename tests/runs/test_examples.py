"""Examples that a page shows: drawn as before, saved with the run, read back without the data."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from evenly.data import Data, Split, Texts
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.runs.examples import (
    LARGEST_THUMBNAIL,
    LONGEST_SNIPPET,
    MOST_EXAMPLES,
    MinorityShare,
    is_image,
    minorities,
    minority_shares,
    pick_examples,
    read_examples,
    save_examples,
    snippet,
    thumbnail,
)


def selection(*indices):
    return Selection(torch.tensor(indices, dtype=torch.long), torch.full((len(indices),), 2), "by hand")


@pytest.fixture
def images():
    """Forty images, the last four of a minority group."""
    pictures = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(40, 1, 8, 8).contiguous()
    names = {"class_names": ["cat", "dog"], "group_names": ["plain", "rare"]}
    return Data(train=(pictures, torch.arange(40) % 2, (torch.arange(40) > 35).long()), **names)


def test_saved_examples_are_read_back(images, tmp_path):
    save_examples(images, selection(3, 36, 37), tmp_path)
    read = read_examples(tmp_path)
    assert read == pick_examples(images, selection(3, 36, 37))
    assert [(each.index, each.label, each.group, each.minority) for each in read.selected] == [
        (3, "dog", "plain", False), (36, "cat", "rare", True), (37, "dog", "rare", True),
    ]  # fmt: skip
    assert read.selected[0].description == "training example 3, label dog, group plain"
    assert decoded(read.selected[1].png).getpixel((0, 0)) == 36
    assert len(read.others) == MOST_EXAMPLES
    assert not {each.index for each in read.others} & {3, 36, 37}
    assert read.shares == (MinorityShare("group", 3, 2, 40, 4),)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["examples"]


def test_the_same_examples_are_drawn_every_time(images):
    """The generators are fixed, so that no page changes."""
    order = torch.randperm(37, generator=_generator("others"))[:MOST_EXAMPLES]
    others = [k for k in range(40) if k not in (3, 36, 37)]
    found = pick_examples(images, selection(3, 36, 37))
    assert [each.index for each in found.others] == sorted(others[k] for k in order)
    many = pick_examples(images, selection(*range(30)))
    order = torch.randperm(30, generator=_generator("picked"))[:MOST_EXAMPLES]
    assert [each.index for each in many.selected] == sorted(order.tolist())


def _generator(purpose):
    from evenly.randomness import generator

    return generator(0, "report", purpose)


def test_texts_are_shown_by_their_beginning(tmp_path):
    texts = [f"text {i}" for i in range(20)]
    data = Data(Split(Texts(texts), torch.arange(20) % 2, [int(i > 17) for i in range(20)]))
    save_examples(data, selection(3, 19), tmp_path)
    read = read_examples(tmp_path)
    assert [(each.text, each.minority) for each in read.selected] == [("text 3", False), ("text 19", True)]
    assert all(each.png is None for each in (*read.selected, *read.others))
    assert [path.name for path in (tmp_path / "examples").iterdir()] == ["examples.json"]
    assert snippet(" two\n\n lines ") == "two lines"
    assert snippet("x" * LONGEST_SNIPPET) == "x" * LONGEST_SNIPPET
    assert snippet("x" * 9999) == "x" * LONGEST_SNIPPET + " ..."


def test_nothing_is_shown_of_numbers_or_of_an_empty_selection(images, tmp_path):
    table = Data(train=(torch.randn(40, 5), torch.arange(40) % 2))
    assert pick_examples(table, selection(0, 3)).selected == ()
    empty = pick_examples(images, selection())
    assert (empty.selected, empty.others) == ((), ())
    assert empty.shares == (MinorityShare("group", 0, 0, 40, 4),)
    save_examples(images, None, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_examples(tmp_path) is None


@pytest.mark.parametrize(
    "content", ["[]", '{"selected": 3}', '{"selected": [{"index": "../../x", "label": "a"}]}', "{"]
)
def test_a_damaged_index_is_refused(tmp_path, content):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "examples.json").write_text(content)
    with pytest.raises(EvenlyError, match=r"examples\.json"):
        read_examples(tmp_path)


def test_minorities():
    groups = torch.tensor([0] * 20 + [1] * 18 + [2] * 2)
    assert minorities(groups).tolist() == [False] * 38 + [True] * 2
    overlapping = torch.tensor([[True, False]] * 9 + [[True, True]])
    assert minorities(overlapping).tolist() == [False] * 9 + [True]


def test_minorities_by_attribute_where_there_are_no_groups():
    split = Split(torch.randn(40, 5), torch.arange(40) % 2, attributes={"strange": (torch.arange(40) >= 36).long()})
    (share,) = minority_shares(Data(train=split), selection(0, 36, 37))
    assert share == MinorityShare("label and strange", 3, 2, 40, 4)


def decoded(png):
    return Image.open(io.BytesIO(png))


def test_thumbnails():
    grey = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)
    assert list(decoded(thumbnail(grey)).tobytes()) == list(range(64))
    colour = decoded(thumbnail(torch.rand(3, 200, 100)))
    assert colour.mode == "RGB"
    assert max(colour.size) == LARGEST_THUMBNAIL
    stretched = decoded(thumbnail(torch.tensor([[[-2.0, 2.0], [0.0, 2.0]]])))
    assert list(stretched.tobytes()) == [0, 255, 128, 255]
    assert set(decoded(thumbnail(torch.full((1, 4, 4), 7.0))).tobytes()) == {0}


@pytest.mark.parametrize(
    ("shape", "good"),
    [((1, 8, 8), True), ((3, 32, 32), True), ((3, 50), False), ((2, 8, 8), False), ((3, 2, 50), False)],
)
def test_what_counts_as_an_image(shape, good):
    assert is_image(shape) is good
