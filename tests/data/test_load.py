"""Data sets by name or path: what is found, and what is refused."""

import pytest
from PIL import Image

from evenly.data import DATASETS, benchmarks, load

JOINED = ("cifar-mnist", "fashion-mnist-mnist", "coloured-mnist")  # made of other data sets


def test_unknown_names_and_options_are_met_with_the_nearest(refused):
    refused("there is no file, folder or data set 'patchs'; did you mean 'patches'", load, "patchs")
    refused("no option of patches is called 'alhpa'; did you mean 'alpha'", load, "patches", alhpa=0.5)
    refused("no option of patches is called 'zzz'; there are: alpha, beta_d", load, "patches", zzz=1)
    refused("no file, folder or data set 'photos/birds'; check the path, or see `evenly", load, "photos/birds")
    refused(r"no file, folder or data set 'table\.parquet'", load, "table.parquet")
    refused("evenly does not read files like", load, __file__)


@pytest.mark.parametrize("name", [name for name in benchmarks.READERS if name not in JOINED])
def test_published_sets_say_where_they_were_searched_for(name, tmp_path, refused):
    refused(rf"{name} needs a folder and EVENLY_DATA is not set; give folder=", load, name)
    refused(rf"{name} was not found: searched for .*{tmp_path}", load, name, folder=str(tmp_path))


def test_a_path_with_a_slip_is_met_with_the_nearest(tmp_path, monkeypatch, refused):
    (tmp_path / "photos").mkdir()
    refused(
        f"no file, folder or data set '{tmp_path}/photo'; did you mean '{tmp_path}/photos'", load, tmp_path / "photo"
    )
    monkeypatch.chdir(tmp_path)
    refused("no file, folder or data set 'photo'; did you mean 'photos'", load, "photo")


def test_a_folder_of_images_is_loaded_by_its_path(tmp_path, refused):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(5):
            Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(tmp_path / label / f"{i}.png")
    data = load(tmp_path, seed=1, size=4)
    assert data.train.example_shape == (3, 4, 4)
    assert data.classes == 2
    refused("no option of a folder of images is called 'sise'", load, tmp_path, sise=4)


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in benchmarks.READERS])
def test_every_synthetic_set_says_what_it_is_and_how_it_was_made(name):
    data = load(name, seed=2)
    assert data.name == name
    assert DATASETS[name].__doc__
    assert data.options["seed"] == 2
    assert list(data.splits) == ["train", "validation", "test"]
    assert data.group_count == len(data.group_names) == 4
    assert "model" in data.recipe
