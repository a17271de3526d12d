"""CIFAR-10 and CIFAR-100 from small files of the official layouts; a pickle that would run code is refused."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

from evenly.data.benchmarks.cifar import cifar10, cifar100

PER_FILE = 20
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def batch(number, classes=10, count=PER_FILE):
    """Images (N, 3, 32, 32) that differ in every file, channel, row and column, and labels that are not sorted."""
    pixels = np.random.default_rng(number).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return pixels, [(7 * i + number) % classes for i in range(count)]


def python2_pickle(content, fortran=False):
    """What Python 2's cPickle wrote with protocol 2: texts are byte strings, an array is rebuilt from a raw one."""

    def text(value):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)

    def array(value):
        kind = (
            b"cnumpy\ndtype\n"
            + text(b"u1")
            + b"K\x00K\x01\x87R(K\x03"
            + text(b"|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        raw = text(value.tobytes(order="F" if fortran else "C"))
        order = b"\x88" if fortran else b"\x89"
        return (
            empty + b"(K\x01" + number(value.shape[0]) + number(value.shape[1]) + b"\x86" + kind + order + raw + b"tb"
        )

    def item(value):
        if isinstance(value, np.ndarray):
            return array(value)
        if isinstance(value, list):
            return b"](" + b"".join(item(each) for each in value) + b"e"
        return number(value) if isinstance(value, int) else text(value.encode())

    pairs = b"".join(text(key.encode()) + item(value) for key, value in content.items())
    return b"\x80\x02}(" + pairs + b"u."


def python3_pickle(content):
    """The same re-saved by Python 3 with byte keys: bytes are written as latin-1 texts to be encoded."""
    return pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=2)


def write_cifar10(folder, write):
    for number in range(6):
        pixels, labels = batch(number)
        write(folder / ("test_batch" if number == 5 else f"data_batch_{number + 1}"), number, pixels, labels)


def as_pickle(dump):
    def write(path, number, pixels, labels):
        content = {"batch_label": f"batch {number}", "labels": labels, "data": pixels.reshape(-1, 3072)}
        path.write_bytes(dump(content))

    return write


def as_records(path, number, pixels, labels):
    rows = b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, pixels, strict=True))
    path.with_suffix(".bin").write_bytes(rows)


LAYOUTS = {
    "pickles of Python 2": ("cifar-10-batches-py", lambda f: write_cifar10(f, as_pickle(python2_pickle))),
    "column-major pickles": (
        "cifar-10-batches-py",
        lambda f: write_cifar10(f, as_pickle(lambda content: python2_pickle(content, fortran=True))),
    ),
    "pickles of Python 3": ("", lambda f: write_cifar10(f, as_pickle(python3_pickle))),
    "records": ("cifar-10-batches-bin", lambda f: write_cifar10(f, as_records)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_cifar10_in_its_official_order(tmp_path, layout):
    inner, write = LAYOUTS[layout]
    (tmp_path / inner).mkdir(exist_ok=True)
    write(tmp_path / inner)
    data = cifar10(tmp_path)
    assert data.train.inputs.dtype == torch.uint8
    assert torch.equal(data.train.inputs, torch.from_numpy(np.concatenate([batch(i)[0] for i in range(5)])))
    assert data.train.labels.tolist() == [label for i in range(5) for label in batch(i)[1]]
    assert torch.equal(data.test.inputs, torch.from_numpy(batch(5)[0]))
    assert data.test.labels.tolist() == batch(5)[1]
    assert data.validation is None
    assert list(data.class_names) == NAMES
    assert data.name == "cifar10"
    assert dict(data.recipe) == {"model": "preact_resnet18", "augment": "basic", "normalise": "data"}
    if inner:
        assert torch.equal(cifar10(tmp_path / inner).train.inputs, data.train.inputs)


def cifar100_batch(number):
    pixels, fine = batch(number, classes=6)
    return pixels, fine, [label // 2 for label in fine]


FINE, COARSE = ["apple", "bear", "cup", "door", "eel", "fox"], ["first", "second", "third"]


def write_cifar100(folder, layout):
    folder.mkdir()
    for number, name in enumerate(("train", "test")):
        pixels, fine, coarse = cifar100_batch(number)
        if layout == "records":
            pairs = zip(coarse, fine, pixels, strict=True)
            (folder / f"{name}.bin").write_bytes(b"".join(bytes([c, f]) + image.tobytes() for c, f, image in pairs))
        else:
            content = {"data": pixels.reshape(-1, 3072), "coarse_labels": coarse, "fine_labels": fine}
            (folder / name).write_bytes(python2_pickle(content))
    if layout == "records":
        (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    else:
        (folder / "meta").write_bytes(python2_pickle({"fine_label_names": FINE, "coarse_label_names": COARSE}))


@pytest.mark.parametrize("layout", ["pickles", "records"])
def test_reads_cifar100_with_its_superclasses(tmp_path, layout):
    write_cifar100(tmp_path / ("cifar-100-binary" if layout == "records" else "cifar-100-python"), layout)
    data = cifar100(tmp_path)
    for number, split in enumerate((data.train, data.test)):
        pixels, fine, coarse = cifar100_batch(number)
        assert torch.equal(split.inputs, torch.from_numpy(pixels))
        assert split.labels.tolist() == fine
        assert split.attributes["superclass"].tolist() == coarse
    assert list(data.class_names) == FINE
    assert list(data.attribute_names["superclass"]) == COARSE
    assert dict(data.recipe) == {"model": "preact_resnet34", "augment": "basic", "normalise": "data"}


def small(folder):
    write_cifar10(folder, as_records)
    return folder


def test_validation_is_a_stratified_part_of_train_drawn_from_the_seed(tmp_path):
    whole, data = cifar10(small(tmp_path)), cifar10(tmp_path, validation=0.2, seed=3)
    assert data.train.labels.bincount().tolist() == [8] * 10
    assert data.validation.labels.bincount().tolist() == [2] * 10
    sums = whole.train.inputs.flatten(1).long().sum(1).tolist()
    parts = [split.inputs.flatten(1).long().sum(1).tolist() for split in (data.train, data.validation)]
    assert sorted(parts[0] + parts[1]) == sorted(sums)
    assert parts[0] == [value for value in sums if value in set(parts[0])], "the order of storage is kept"
    again, other = cifar10(tmp_path, validation=0.2, seed=3), cifar10(tmp_path, validation=0.2, seed=4)
    assert torch.equal(again.validation.inputs, data.validation.inputs)
    assert not torch.equal(other.validation.inputs, data.validation.inputs)
    assert torch.equal(data.test.inputs, whole.test.inputs)


def test_n_takes_that_many_images_evenly_over_the_classes(tmp_path):
    whole, data = cifar10(small(tmp_path)), cifar10(tmp_path, n=35)
    assert len(data.train) == 35
    assert set(data.train.labels.bincount().tolist()) == {3, 4}
    assert len(data.test) == 20
    assert len(cifar10(tmp_path, n=10).test) == 10
    where = (data.train.inputs[:, None] == whole.train.inputs[None]).flatten(2).all(2).nonzero()[:, 1]
    assert where.tolist() == sorted(set(where.tolist()))
    assert torch.equal(whole.train.labels[where], data.train.labels)


class Creates:
    """Unpickled by Python itself, this would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Evaluates(Creates):
    def __reduce__(self):
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


@pytest.mark.parametrize("hostile", [Creates, Evaluates])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused_by_name(tmp_path, refused, hostile, protocol):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    trace = tmp_path / "trace"
    content = pickle.dumps({b"labels": [0], b"data": hostile(trace)}, protocol=protocol)
    (tmp_path / "data_batch_2").write_bytes(content)
    refused(r"data_batch_2 asks for '\S*(mkdir|eval)'.*not run", cifar10, tmp_path)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists(), "the pickle was not hostile"


def replaced(**changes):
    pixels, labels = batch(0)
    return python2_pickle({"labels": labels, "data": pixels.reshape(-1, 3072)} | changes)


SET = b"N}U\x05arrayK\x01s\x86b."  # attributes to set on the thing itself
DAMAGED = [
    (b"\x80\x02cnumpy\nload\n.", "asks for 'numpy.load'"),
    (b"\x80\x02cnumpy\nndarray.tofile\n.", "asks for 'numpy.ndarray.tofile'"),
    (b"\x80\x02cbuiltins\ngetattr\n.", "asks for 'builtins.getattr'"),
    (b"\x80\x02c_codecs\ndecode\n.", "asks for '_codecs.decode'"),
    *((b"\x80\x02c" + name + SET, "cannot be read as a CIFAR") for name in (b"numpy\ndtype\n", b"numpy\nndarray\n")),
    (b"\x80\x02c_codecs\nencode\n" + SET, "cannot be read as a CIFAR pickle"),
    (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.", "cannot be read"),
    (replaced()[:-900], "cannot be read as a CIFAR pickle"),
    (b"", "cannot be read as a CIFAR pickle"),
    (b"\x80\x02].", "holds a list"),
    (python2_pickle({"labels": [1]}), r"no uint8 array \(N, 3072\)"),
    (replaced(data=np.zeros((20, 3071), np.uint8)), r"no uint8 array \(N, 3072\)"),
    (replaced().replace(b"J\x00\x0c\x00\x00", b"J\x00\x0d\x00\x00"), "no uint8 array"),  # fewer bytes than its shape
    (replaced(labels=[1] * 19), "19 labels for 20 images"),
    (python2_pickle({"data": np.zeros((20, 3072), np.uint8)}), "labels in .* are not whole numbers"),
    (replaced(labels=[10] * 20), "labels in .* from 0 to 9"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED)
def test_a_damaged_pickle_is_refused_and_changes_no_other(tmp_path, refused, content, message):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    (tmp_path / "data_batch_1").write_bytes(content)
    refused(f"data_batch_1 .*{message}|{message}.*data_batch_1|labels in .*data_batch_1", cifar10, tmp_path)
    as_pickle(python2_pickle)(tmp_path / "data_batch_1", 0, *batch(0))
    assert len(cifar10(tmp_path).train) == 100


def test_refusals_of_records_shares_and_missing_files(tmp_path, monkeypatch, refused):
    refused(r"EVENLY_DATA is not set; give folder=.*download\('cifar10', 'FOLDER'\)", cifar10)
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    inner = "cifar-10-batches-py and cifar-10-batches-bin"
    message = f"data_batch_1.bin or train_0.webp in '{tmp_path / 'cifar10'}' and its {inner}; .*download\\("
    refused(message, cifar10)
    (tmp_path / "cifar10").mkdir()
    small(tmp_path / "cifar10")
    assert len(cifar10().train) == 100
    for name, value in (("validation", 1.0), ("validation", -0.1), ("n", 9), ("n", 101)):
        refused(f"{name} {value} (is not a share|cannot be used)", cifar10, **{name: value})
    refused("validation 0.01 of 100 cifar10 images leaves a class without", cifar10, validation=0.01)
    path = tmp_path / "cifar10" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    refused("data_batch_4.bin has 61459 bytes, not records of 3073", cifar10)
    path.write_bytes(b"\x0a" + b"\0" * 3072)
    refused("labels in .*data_batch_4.bin are not whole numbers from 0 to 9", cifar10)
    path.unlink()
    refused("cifar10 in .* lacks data_batch_4.bin", cifar10)
