"""Shortcut digits against scikit-learn's own images: shares, groups, edges, and nothing else touched."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from evenly.data import load

LEFT, RIGHT, NONE = 0, 1, 2
BUNDLE = load_digits()
ORIGINALS = torch.from_numpy(np.round(BUNDLE.images * 255 / 16).astype(np.uint8))
INNER = {image[:, 1:7].tobytes(): i for i, image in enumerate(ORIGINALS.numpy())}


def sources(split):
    """(N,) which of scikit-learn's images each example is, by the columns that no edge covers."""
    return torch.tensor([INNER[image[0, :, 1:7].tobytes()] for image in split.inputs.numpy()])


def edged(split, brightness=255):
    """What the images must be: the originals with the edge that the split's attribute names."""
    images, edge = ORIGINALS[sources(split)].clone(), split.attributes["edge"]
    images[edge == LEFT, :, 0] = brightness
    images[edge == RIGHT, :, 7] = brightness
    return images[:, None]


@pytest.fixture(scope="module")
def shortcut():
    return load("shortcut-digits", seed=3)


@pytest.fixture(scope="module")
def partial():
    return load("partial-digits", seed=3, missing=0.2, brightness=0.5)


def test_nothing_but_the_edge_is_touched(shortcut, partial):
    assert len(INNER) == len(ORIGINALS) == 1797, "the oracle tells all images apart"
    for data, brightness in ((shortcut, 255), (partial, 128)):
        for split in data.splits.values():
            assert split.inputs.dtype == torch.uint8
            assert torch.equal(split.inputs, edged(split, brightness))
            assert torch.equal(split.labels, torch.from_numpy(BUNDLE.target)[sources(split)] // 5)


def test_splits_share_no_image_and_are_stratified_by_digit(shortcut, partial):
    for data in (shortcut, partial):
        parts = {name: sources(split).unique() for name, split in data.splits.items()}
        assert [len(part) for part in parts.values()] == [1000, 397, 400]
        assert len(torch.cat(list(parts.values())).unique()) == 1797
        for part in parts.values():
            counts = np.bincount(BUNDLE.target[part], minlength=10)
            assert np.abs(counts - len(part) * np.bincount(BUNDLE.target) / 1797).max() <= 1


@pytest.mark.parametrize("rate", [0.97, 0.5, 1.0, 0.0])
def test_the_shortcut_tells_the_label_at_exactly_the_rate(rate):
    train = load("shortcut-digits", rate=rate, seed=4).train
    for label in (0, 1):
        members = train.labels == label
        wrong = (train.attributes["edge"][members] != label).sum()
        assert wrong == round((1 - rate) * int(members.sum()))


def test_groups_are_label_and_edge_and_validation_and_test_show_every_image_with_both_edges(shortcut):
    assert shortcut.group_names == ["0-4, left edge", "0-4, right edge", "5-9, left edge", "5-9, right edge"]
    for split in shortcut.splits.values():
        assert torch.equal(split.groups, 2 * split.labels + split.attributes["edge"])
    for split in (shortcut.validation, shortcut.test):
        edges = set(zip(sources(split).tolist(), split.attributes["edge"].tolist(), strict=True))
        assert len(edges) == len(split) == 2 * len(sources(split).unique())
        assert torch.equal(torch.bincount(split.groups)[[0, 2]], torch.bincount(split.groups)[[1, 3]])


def test_partial_digits_lack_the_edge_in_an_exact_share_of_every_split(partial):
    for split in partial.splits.values():
        lacks = split.attributes["edge"] == NONE
        assert torch.equal(split.attributes["edge"][~lacks], split.labels[~lacks])
        assert torch.equal(split.groups, 2 * split.labels + lacks)
        assert torch.equal(split.inputs[lacks][:, 0], ORIGINALS[sources(split)[lacks]])
        for label in (0, 1):
            members = split.labels == label
            assert lacks[members].sum() == round(0.2 * int(members.sum()))


def test_the_seed_decides_the_data():
    for name in ("shortcut-digits", "partial-digits"):
        prints = [load(name, seed=seed).fingerprint() for seed in (0, 0, 1)]
        assert prints[0] == prints[1] != prints[2]


def test_both_edges_of_an_image_and_all_seeds_have_its_number(shortcut):
    """So that intervals over test examples take them for one."""
    numbers = shortcut.test.places.identities
    assert numbers.tolist() == [int(number) for number in sources(shortcut.test)]
    assert sorted(np.bincount(numbers)[np.unique(numbers)]) == [2] * (len(numbers) // 2)
