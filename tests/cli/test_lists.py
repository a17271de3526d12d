"""`evenly methods`, `datasets`, `models`, `optimizers` and `cache`."""

import json

import numpy as np
import pytest
from PIL import Image

from evenly.data import DATASETS
from evenly.methods import METHODS
from evenly.models import MODELS, TEXT_MODELS
from evenly.optim.registry import BASES, PERTURBED


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("methods", set(METHODS)),
        ("datasets", {*DATASETS, "FILE.csv", "FILE.npz", "FOLDER"}),
        ("models", {*MODELS, *TEXT_MODELS, "hf:FOLDER", "torchvision:NAME", "timm:NAME"}),
        ("optimizers", {*BASES, *PERTURBED, "sam:adamw"}),
    ],
)
def test_lists(done, verb, names):
    assert {line.split()[0] for line in done(verb).splitlines() if line[0] != " "} == names
    summaries = json.loads(done(f"{verb} --json"))
    assert set(summaries) == names
    assert all(len(summary) > 10 for summary in summaries.values())


def test_decoded_images_are_listed_and_cleared_and_none_lie_beside_the_images(done, evenly, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENLY_CACHE", str(tmp_path / "kept"))
    assert done("cache") == f"      0.0 MB  in {tmp_path}/kept\n"
    for i in range(20):
        (folder := tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(folder / f"{i}.png")
    done("train photos --epochs 1 --device cpu --out run")
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["a", "b"]
    (array,) = json.loads(done("cache --json"))
    assert array["data"] == str(tmp_path / "photos")
    assert array["data"] in done("cache")
    assert f"cleared from {tmp_path}/kept" in done("cache --clear")
    assert json.loads(done("cache --json")) == []
    (tmp_path / "kept").rmdir()
    (tmp_path / "kept").write_text("")
    code, _, err = evenly(*["train", "photos", "--epochs", "1", "--device", "cpu", "--out", "other"])
    assert code == 0
    assert err.startswith(f"evenly: decoded images cannot be kept in {tmp_path}/kept/images (Not a directory)")
    assert err.count("evenly: ") == 1
