"""Waterbirds from a small folder of the official layout."""

import numpy as np
import pytest
from PIL import Image

from evenly.data import load
from evenly.data.benchmarks.waterbirds import waterbirds

HEADER = "img_id,img_filename,y,split,place,place_filename"


def rows(count=24):
    """File, bird, split and place of each image, in an order that is none of them."""
    return [(f"00{i % 3}.Bird/{i:02d}.jpg", i % 2, (i // 4) % 3, (i // 2) % 2) for i in range(count)]


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)


def written(root):
    lines = [HEADER]
    for i, (file, y, split, place) in enumerate(rows()):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(i)).save(path.with_suffix(".png"))
        path.with_suffix(".png").rename(path)  # lossless, so that pixels can be compared
        lines.append(f"{i + 1},{file},{y},{split},{place},/f/forest/{i}.jpg")
    (root / "metadata.csv").write_text("\n".join(lines))
    return root


def customary(i, size, whole):
    edge = (whole - size) // 2
    image = np.asarray(Image.fromarray(pixels(i)).resize((whole, whole), Image.Resampling.BILINEAR))
    return image[edge : edge + size, edge : edge + size].transpose(2, 0, 1)


@pytest.mark.parametrize("inner", ["", "waterbird_complete95_forest2water2", "waterbirds_v1.0"])
@pytest.mark.parametrize("memory", [4.0, 0.0])
def test_birds_places_and_splits_are_the_files(tmp_path, inner, memory):
    written(tmp_path / inner)
    data = waterbirds(tmp_path, size=28, memory=memory, seed=7)
    assert list(data.splits) == ["train", "validation", "test"]
    for number, split in enumerate(data.splits.values()):
        here = [(i, row) for i, row in enumerate(rows()) if row[2] == number]
        assert split.labels.tolist() == [y for _, (_, y, _, _) in here]
        assert split.attributes["place"].tolist() == [place for _, (_, _, _, place) in here]
        assert split.groups.tolist() == [2 * y + place for _, (_, y, _, place) in here]
        for j, (i, _) in enumerate(here):
            image = split.inputs[j] if memory else split.inputs[j][0]
            assert np.array_equal(image.numpy(), customary(i, 28, 32)), "256/224 of the size, the middle cut out"
    assert data.class_names == ["landbird", "waterbird"]
    assert data.group_names == ["landbird on land", "landbird on water", "waterbird on land", "waterbird on water"]
    assert data.attribute_names == {"place": ("land", "water")}
    assert data.fingerprint() == waterbirds(tmp_path, size=28, memory=memory, seed=8).fingerprint()


def test_it_has_a_name_a_usual_size_and_the_papers_settings(tmp_path, monkeypatch):
    written(tmp_path / "waterbirds")
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    data = load("waterbirds")
    assert data.name == "waterbirds"
    assert data.train.example_shape == (3, 224, 224)
    assert np.array_equal(data.train.inputs[0].numpy(), customary(0, 224, 256))
    wanted = {"model": "resnet18", "epochs": 100, "batch_size": 128, "weight_decay": 1e-4, "schedule": "cosine"}
    assert {key: data.recipe[key] for key in wanted} == wanted
    assert data.recipe["select"] == "worst-group-argmax"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (",0,/f", ",2,/f", r"place '2' in line 2 of .*metadata.csv is none of 0, 1; unpack its archive again"),
        ("001.Bird/01.jpg,1,0", "001.Bird/01.jpg,1,3", "split '3' in line 3 of .* is none of 0, 1, 2"),
        ("001.Bird/01.jpg", "../../01.jpg", r"line 3 of .* names '../../01.jpg', which lies outside .*; correct it"),
        ("img_filename", "filename", r"has no column 'img_filename' \(found: 'img_id', 'filename'"),
        ("001.Bird/01.jpg", "gone.jpg", r"1 of 24 images .* cannot be read: 'gone.jpg' \(no such file\)"),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path, before, after, message, refused):
    table = written(tmp_path) / "metadata.csv"
    table.write_text(table.read_text().replace(before, after, 1))
    refused(message, waterbirds, tmp_path, size=8)
