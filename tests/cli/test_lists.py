"""`evenly methods`, `evenly datasets` and `evenly models`."""

import json

import pytest

from evenly.data import DATASETS
from evenly.methods import METHODS
from evenly.models import MODELS, TEXT_MODELS


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("methods", set(METHODS)),
        ("datasets", {*DATASETS, "FILE.csv", "FILE.npz", "FOLDER"}),
        ("models", {*MODELS, *TEXT_MODELS, "hf:FOLDER", "torchvision:NAME", "timm:NAME"}),
    ],
)
def test_lists(done, verb, names):
    assert {line.split()[0] for line in done(verb).splitlines() if line[0] != " "} == names
    summaries = json.loads(done(f"{verb} --json"))
    assert set(summaries) == names
    assert all(len(summary) > 10 for summary in summaries.values())
