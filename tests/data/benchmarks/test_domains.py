"""PACS, OfficeHome and VLCS from small folders in DomainBed's layout, PACS also from atlases; one domain left out."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import evenly
from evenly.data import load
from evenly.data.benchmarks.domains import office_home, pacs, target_parts, vlcs

CASES = {
    "pacs": (pacs, "PACS", ("art_painting", "cartoon", "photo", "sketch"), "sketch"),
    "office-home": (office_home, "office_home", ("Art", "Clipart", "Product", "Real World"), "Clipart"),
    "vlcs": (vlcs, "VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007"), "VOC2007"),
}
CLASSES = ("bird", "car", "dog")
COUNTS = np.array([[10, 15, 5], [5, 5, 10], [10, 10, 20], [15, 5, 10]])  # of each domain and class
TILE = 8


def pixels(domain, label, i):
    return np.random.default_rng((domain, label, i)).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)


def written(root, domains):
    for d, domain in enumerate(domains):
        for k, name in enumerate(CLASSES):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(COUNTS[d, k]):
                Image.fromarray(pixels(d, k, i)).save(folder / f"{i:02d}.png")
    return root


def atlases(root):
    root.mkdir(exist_ok=True)
    entries = []
    for d, domain in enumerate(CASES["pacs"][2]):
        labels = np.repeat(np.arange(3), COUNTS[d])
        n, columns = len(labels), 6
        atlas = np.zeros((-(-n // columns) * TILE, columns * TILE, 3), np.uint8)
        for at, image in enumerate(pixels(d, k, i) for k in range(3) for i in range(COUNTS[d, k])):
            row, column = divmod(at, columns)
            atlas[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE] = image
        Image.fromarray(atlas).save(root / f"{domain}.webp", lossless=True)
        np.save(root / f"{domain}_labels.npy", labels.astype(np.uint8))
        entries.append({"file": f"{domain}.webp", "n": n, "tile": TILE, "cols": columns})
    (root / "meta.json").write_text(json.dumps({"classes": CLASSES, "atlases": entries}))
    return root


def stored():
    """(domain, class, number) of each image, by its pixels (3, H, W)."""
    return {
        np.ascontiguousarray(pixels(d, k, i).transpose(2, 0, 1)).tobytes(): (d, k, i)
        for d in range(4)
        for k in range(3)
        for i in range(COUNTS[d, k])
    }


def is_left_out(data, target, validation, memory=True):
    """Everything about the splits, each image recognised by its pixels."""
    known, seen = stored(), []
    for split in data.splits.values():
        images = split.inputs if memory else [split.inputs[i][0] for i in range(len(split))]
        places = [known[image.numpy().tobytes()] for image in images]
        assert places == sorted(places), "in the order of storage"
        assert [k for _, k, _ in places] == split.labels.tolist()
        assert [d for d, _, _ in places] == split.groups.tolist() == split.attributes["domain"].tolist()
        assert {d == target for d, _, _ in places} == {split.name == "test"}
        seen += places
        if split.name == "validation":
            for d, k in np.ndindex(4, 3):
                here = sum((d, k) == place[:2] for place in places)
                assert here == (0 if d == target else validation * COUNTS[d, k])
    assert sorted(seen) == sorted(known.values()), "each image once"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("memory", [4.0, 0.0])
def test_the_target_is_the_test_set_and_a_share_of_each_cell_is_held_out(tmp_path, name, inner, memory):
    read, folder, domains, usual = CASES[name]
    written(tmp_path / folder if inner else tmp_path, domains)
    is_left_out(read(tmp_path, validation=0.2, size=TILE, memory=memory), domains.index(usual), 0.2, bool(memory))
    paper = read(tmp_path, size=TILE, memory=memory)
    assert len(paper.validation) == round(0.1 * (len(paper.train) + len(paper.validation)))
    data = read(tmp_path, target=domains[2], validation=0.4, size=TILE, memory=memory, seed=1)
    is_left_out(data, 2, 0.4, bool(memory))
    assert data.name == name
    assert list(data.class_names) == list(CLASSES)
    assert data.group_names == list(domains)
    assert domains[2] in data.about
    again, other = (read(tmp_path, target=domains[2], validation=0.4, size=TILE, memory=memory, seed=s) for s in (1, 2))
    assert data.fingerprint() == again.fingerprint() != other.fingerprint()


def test_the_whole_image_is_brought_to_the_size(tmp_path, monkeypatch):
    written(tmp_path / "pacs" / "kfold", CASES["pacs"][2])
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 20, 3), dtype=np.uint8))
    wide.save(tmp_path / "pacs" / "kfold" / "art_painting" / "bird" / "00.png")
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    data = load("pacs", size=10, validation=0.0)
    expected = np.asarray(wide.resize((10, 10), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(data.train.inputs[0].numpy(), expected)
    assert load("pacs").train.example_shape == (3, 128, 128)
    assert data.recipe["model"] == "resnet18"
    assert list(data.splits) == ["train", "test"]


@pytest.mark.parametrize("target", CASES["pacs"][2])
def test_pacs_from_atlases_is_pacs_from_folders(tmp_path, target, monkeypatch):
    atlases(tmp_path / "pacs128")
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    for _ in range(2):  # decoded, and from the cache
        data = load("pacs", target=target, size=TILE, validation=0.2)
        is_left_out(data, CASES["pacs"][2].index(target), 0.2)
    small = load("pacs", target=target, size=5)
    folders = pacs(written(tmp_path / "folders", CASES["pacs"][2]), target=target, size=5)
    assert small.fingerprint() == folders.fingerprint()


class Known(nn.Module):
    """Features that are the class of every image, by a table of sums."""

    def __init__(self):
        super().__init__()
        self.known = {int(np.frombuffer(raw, np.uint8).astype(int).sum()): k for raw, (_, k, _) in stored().items()}
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        sums = (255 * x.double()).round().flatten(1).sum(1).long().tolist()
        return self.fc(torch.eye(3)[torch.tensor([self.known[s] for s in sums])])


@pytest.mark.parametrize("memory", [4.0, 0.0])
def test_the_target_in_two_parts_serves_a_linear_probe(tmp_path, memory):
    written(tmp_path, CASES["vlcs"][2])
    data = vlcs(tmp_path, target="SUN09", size=TILE, memory=memory)

    def places(split):
        images = split.inputs if memory else [split.inputs[i][0] for i in range(len(split))]
        return [known[image.numpy().tobytes()] for image in images]

    fitted, measured = target_parts(data, share=0.5)
    assert fitted.labels.bincount().tolist() == measured.labels.bincount().tolist() == [5, 5, 10]
    known = stored()
    seen = places(fitted) + places(measured)
    assert sorted(seen) == sorted(place for place in known.values() if place[0] == 2), "each image in one part"
    assert [k for _, k, _ in seen] == [*fitted.labels.tolist(), *measured.labels.tolist()]
    assert set(fitted.groups.tolist()) == set(measured.attributes["domain"].tolist()) == {2}
    assert evenly.probe(Known(), fitted, "label", held_out=measured, against=()).error == 0.0
    again, other = (places(target_parts(data, share=0.5, seed=seed)[1]) for seed in (0, 1))
    assert places(measured) == again != other
    assert len(target_parts(data)[1]) == 8, "a fifth"


def test_refusals(tmp_path, refused):
    written(tmp_path, CASES["vlcs"][2])
    refused(r"no domain of vlcs is called 'SUN'; did you mean 'SUN09'\?", vlcs, tmp_path, target="SUN")
    refused("validation 1.0 is not a share", vlcs, tmp_path, validation=1.0)
    data = vlcs(tmp_path, size=TILE)
    refused("share 0.01 of 30 test images leaves none to measure; give a larger", target_parts, data, share=0.01)
    refused("share 1 is not a share to hold out", target_parts, data, share=1)
    data.test = None
    refused("vlcs has no test set to divide", target_parts, data)
    for domain in CASES["vlcs"][2]:
        (tmp_path / "empty" / domain).mkdir(parents=True)
    refused("there are no images in .*; unpack its archive again", vlcs, tmp_path / "empty")


def rewrite(**changes):
    def damage(folder):
        meta = json.loads((folder / "meta.json").read_text())
        meta["atlases"][0] |= changes
        (folder / "meta.json").write_text(json.dumps(meta))

    return damage


DAMAGED = [
    (lambda f: (f / "meta.json").write_text("{"), "meta.json cannot be read"),
    (lambda f: (f / "meta.json").write_text('{"classes": ["a"], "atlases": []}'), "json cannot be read"),
    (rewrite(n=0), "meta.json cannot be read .*numbers and tiles"),
    (rewrite(n=1000), "art_painting.webp has 30 tiles for 1000 images; get it again"),
    (rewrite(tile=7), "art_painting.webp is 48 x 40, not tiles of 7; get it again"),
    (
        lambda f: np.save(f / "photo_labels.npy", np.full(40, 3, np.uint8)),
        "photo_labels.npy is not 40 labels in 0..2",
    ),
    (lambda f: (f / "photo.webp").unlink(), "lacks photo.webp; unpack its archive again"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_damaged_atlases_are_refused(tmp_path, damage, message, refused):
    damage(atlases(tmp_path))
    refused(message, pacs, tmp_path, size=TILE)
