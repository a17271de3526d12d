"""Tiny-ImageNet from a small folder of its layout."""

import numpy as np
from PIL import Image

from evenly.data.benchmarks.tiny_imagenet import tiny_imagenet

WNIDS = ("n03", "n01", "n02")


def picture(path, *shape, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape or (64, 64, 3), value, np.uint8)).save(path, quality=100)


def write_tiny(root):
    """Three classes in unsorted order; validation images in another order than their labels; one gray image."""
    root.mkdir()
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane, bird\nn99\tunused\n")
    for wnid in WNIDS:
        for i in range(5):
            picture(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("n01_0.JPEG\t0\t0\t63\t63\n")
    labels = [2, 0, 1, 1, 2]
    for i in range(len(labels)):
        picture(root / "val" / "images" / f"val_{i}.JPEG", *((64, 64) if i == 0 else ()), value=50 * i)
    lines = [f"val_{i}.JPEG\t{sorted(WNIDS)[label]}\t0\t0\t62\t62\n" for i, label in enumerate(labels)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    picture(root / "test" / "images" / "test_0.JPEG")
    return labels


def test_reads_tiny_imagenet_with_its_annotations(tmp_path):
    labels = write_tiny(tmp_path / "tiny-imagenet-200")
    data = tiny_imagenet(tmp_path)
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.test.labels.tolist() == labels
    assert data.test.example_shape == (3, 64, 64)
    assert data.test.inputs.float().mean((1, 2, 3)).round().tolist() == [0, 50, 100, 150, 200]
    assert list(data.class_names) == ["goldfish", "n02", "n03"], "a word that two classes share names neither"
    assert set(data.splits) == {"train", "test"}
    assert dict(data.recipe) == {"model": "preact_resnet18", "augment": "basic", "normalise": "data"}
    held = tiny_imagenet(tmp_path, validation=0.2)
    assert held.validation.labels.tolist() == [0, 1, 2]
    assert len(held.train) == 12


def test_refuses_annotations_that_do_not_fit(tmp_path, refused):
    write_tiny(tmp_path / "tiny")
    path = tmp_path / "tiny" / "val" / "val_annotations.txt"
    path.write_text("val_0.JPEG\tn01\t0\t0\t1\t1\nval_1.JPEG\tn98\t0\t0\t1\t1\n")
    refused(r"line 2 of .* names class 'n98'", tiny_imagenet, tmp_path / "tiny")
    path.write_text("../../../secret.JPEG\tn01\t0\t0\t1\t1\n")
    refused(r"line 1 of .* lies outside", tiny_imagenet, tmp_path / "tiny")
