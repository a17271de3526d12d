"""Coloured MNIST from a small MNIST: strokes in one channel, and every share counted."""

from itertools import product

import numpy as np
import pytest
import torch

from evenly.data import load
from evenly.data.benchmarks.coloured import coloured_mnist


def read(sources, **options):
    return coloured_mnist(sources.folder / "mnist", **options)


def columns(split):
    return {"label": split.labels.numpy()} | {key: column.numpy() for key, column in split.attributes.items()}


def test_strokes_are_red_or_green_and_all_else_black(sources):
    data = read(sources, seed=3)
    seen = {"train": [], "test": []}
    for split in data.splits.values():
        part = "test" if split.name == "test" else "train"
        column = columns(split)
        channel = np.where(column["colour"] == data.attribute_names["colour"].index("red"), 0, 1)
        images = split.inputs.numpy()
        rest = images.copy()
        rest[np.arange(len(split)), channel] = 0
        assert not rest.any()
        places = sources.where("mnist", part, images[np.arange(len(split)), channel])
        assert places == sorted(places), "in the order of storage"
        seen[part] += places
        assert column["digit"].tolist() == sources.labels["mnist", part][places].tolist()
        assert column["half"].tolist() == [int(digit > 4) for digit in column["digit"]]
        assert split.groups.tolist() == (2 * column["label"] + column["colour"]).tolist()
    for part, places in seen.items():
        assert sorted(places) == list(range(len(sources.images["mnist", part])))


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, (0.25, (0.9, 0.8), 0.1)),
        ({"correlations": (0.6,), "test_correlation": 0.5, "noise": 0.0}, (0.0, (0.6,), 0.5)),
        ({"correlations": [1.0, 0.7, 0.0], "noise": 0.1}, (0.1, (1.0, 0.7, 0.0), 0.1)),
    ],
)
def test_noise_and_colours_have_their_shares_in_every_environment(sources, options, rates):
    noise, correlations, last = rates
    data = read(sources, seed=1, validation=0.3, **options)
    for split in data.splits.values():
        column = columns(split)
        wrong, against = column["label"] != column["half"], column["colour"] != column["label"]
        environments = [len(correlations)] if split.name == "test" else range(len(correlations))
        assert sorted(set(column["environment"].tolist())) == list(environments)
        for k in environments:
            here = column["environment"] == k
            assert abs(here.sum() - len(split) / len(environments)) <= 10, "to within one image of each digit"
            rate = 1 - (*correlations, last)[k]
            for half in (0, 1):
                some = here & (column["half"] == half)
                assert abs(wrong[some].sum() - noise * some.sum()) <= 1
            for label, flipped in product((0, 1), (False, True)):
                some = here & (column["label"] == label) & (wrong == flipped)
                assert abs(against[some].sum() - rate * some.sum()) <= 1


def test_the_seed_decides_and_names_are_given(sources, monkeypatch):
    first, again, other = (read(sources, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert (len(first.train), len(first.validation), len(first.test)) == (500, 100, 200)
    assert first.group_names == ["0-4, green", "0-4, red", "5-9, green", "5-9, red"]
    assert first.attribute_names["environment"] == ["0.9", "0.8", "test 0.1"]
    assert first.recipe["model"] == "convnet_3"
    monkeypatch.setenv("EVENLY_DATA", str(sources.folder))
    small = load("coloured-mnist", n=60, validation=0.0, correlations=[0.75])
    assert [len(split) for split in small.splits.values()] == [60, 60]
    assert small.name == "coloured-mnist"
    assert torch.equal(small.train.attributes["environment"], torch.zeros(60, dtype=torch.int64))


def test_refusals(sources, tmp_path, refused):
    refused(
        "correlations must be a share from 0 to 1 for each training environment",
        read,
        sources,
        correlations=(0.9, -1.0),
    )
    refused("correlations must be a share from 0 to 1 for each training", read, sources, correlations=())
    refused("validation -1 is not a share to hold out", read, sources, validation=-1)
    refused("mnist was not found: searched for train-images.*download it", coloured_mnist, tmp_path)
