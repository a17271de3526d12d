"""CIFAR-10 and CIFAR-100 from small files of the official layouts; a pickle that would run code is refused."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from evenly import EvenlyError
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


def write_atlases(folder):
    """Tiles in 4 rows of 5."""
    labels = {"train": [], "test": []}
    for number in range(6):
        pixels, label = batch(number)
        atlas = np.zeros((4 * 32, 5 * 32, 3), np.uint8)
        for i, image in enumerate(pixels):
            row, column = divmod(i, 5)
            atlas[32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = np.moveaxis(image, 0, -1)
        part = "test" if number == 5 else "train"
        name = "test.webp" if number == 5 else f"train_{number}.webp"
        Image.fromarray(atlas).save(folder / name, lossless=True, quality=0, method=0)
        labels[part] += label
    for part, values in labels.items():
        np.save(folder / f"{part}_labels.npy", np.array(values, np.uint8))


LAYOUTS = {
    "pickles of Python 2": ("cifar-10-batches-py", lambda f: write_cifar10(f, as_pickle(python2_pickle))),
    "column-major pickles": (
        "cifar-10-batches-py",
        lambda f: write_cifar10(f, as_pickle(lambda content: python2_pickle(content, fortran=True))),
    ),
    "pickles of Python 3": ("", lambda f: write_cifar10(f, as_pickle(python3_pickle))),
    "records": ("cifar-10-batches-bin", lambda f: write_cifar10(f, as_records)),
    "atlases": ("", write_atlases),
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
def test_a_pickle_that_would_run_code_is_refused_by_name(tmp_path, hostile, protocol):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    trace = tmp_path / "trace"
    content = pickle.dumps({b"labels": [0], b"data": hostile(trace)}, protocol=protocol)
    (tmp_path / "data_batch_2").write_bytes(content)
    with pytest.raises(EvenlyError, match=r"data_batch_2 asks for '\S*(mkdir|eval)'.*not run") as refusal:
        cifar10(tmp_path)
    assert "\n" not in str(refusal.value)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists(), "the pickle was not hostile"


GLOBALS = {
    "a function of numpy": (b"cnumpy\nload\n", "numpy.load"),
    "a dotted name behind an admitted one": (b"cnumpy\nndarray.tofile\n", "numpy.ndarray.tofile"),
    "getattr": (b"cbuiltins\ngetattr\n", "builtins.getattr"),
    "another codec": (b"c_codecs\ndecode\n", "_codecs.decode"),
}


@pytest.mark.parametrize("case", GLOBALS)
def test_nothing_else_is_admitted(tmp_path, case):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    opcode, name = GLOBALS[case]
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02" + opcode + b".")
    with pytest.raises(EvenlyError, match=f"asks for '{name}'"):
        cifar10(tmp_path)


def test_the_stand_ins_cannot_be_changed_from_a_pickle(tmp_path):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    for name in (b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n"):
        changed = b"\x80\x02" + name + b"N}U\x05arrayK\x01s\x86b."  # attributes to set on the thing itself
        (tmp_path / "data_batch_1").write_bytes(changed)
        with pytest.raises(EvenlyError, match="cannot be read as a CIFAR pickle"):
            cifar10(tmp_path)
    as_pickle(python2_pickle)(tmp_path / "data_batch_1", 0, *batch(0))
    assert len(cifar10(tmp_path).train) == 100


def replaced(**changes):
    pixels, labels = batch(0)
    return python2_pickle({"labels": labels, "data": pixels.reshape(-1, 3072)} | changes)


DAMAGED = {
    "cut short": (replaced()[:-900], "cannot be read as a CIFAR pickle"),
    "empty": (b"", "cannot be read as a CIFAR pickle"),
    "a list": (b"\x80\x02].", "holds a list"),
    "no pixels": (python2_pickle({"labels": [1]}), r"no uint8 array \(N, 3072\)"),
    "another width": (replaced(data=np.zeros((20, 3071), np.uint8)), r"no uint8 array \(N, 3072\)"),
    "fewer bytes than its shape": (replaced().replace(b"J\x00\x0c\x00\x00", b"J\x00\x0d\x00\x00"), "no uint8 array"),
    "fewer labels": (replaced(labels=[1] * 19), "19 labels for 20 images"),
    "no labels": (python2_pickle({"data": np.zeros((20, 3072), np.uint8)}), "labels in .* are not whole numbers"),
    "a label too large": (replaced(labels=[10] * 20), "labels in .* from 0 to 9"),
    "another encoding": (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.", "cannot be read"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_pickle_is_refused(tmp_path, case):
    write_cifar10(tmp_path, as_pickle(python2_pickle))
    content, message = DAMAGED[case]
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(EvenlyError, match=message) as refusal:
        cifar10(tmp_path)
    assert "data_batch_1" in str(refusal.value)


def test_damaged_records_and_atlases_are_refused(tmp_path):
    path = small(tmp_path) / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EvenlyError, match=r"data_batch_3.bin has 61459 bytes, not records of 3073"):
        cifar10(tmp_path)
    path.write_bytes(b"\x0a" + b"\0" * 3072)
    with pytest.raises(EvenlyError, match=r"labels in .*data_batch_3.bin are not whole numbers from 0 to 9"):
        cifar10(tmp_path)
    (atlases := tmp_path / "atlases").mkdir()
    write_atlases(atlases)
    np.save(atlases / "test_labels.npy", np.zeros(19, np.uint8))
    with pytest.raises(EvenlyError, match=r"test_labels.npy is not 20 labels"):
        cifar10(atlases)
    np.save(atlases / "test_labels.npy", np.array([Creates(tmp_path / "trace")] * 20), allow_pickle=True)
    with pytest.raises(EvenlyError, match=r"test_labels.npy cannot be read as plain numbers"):
        cifar10(atlases)
    assert not (tmp_path / "trace").exists()
    Image.new("RGB", (160, 100)).save(atlases / "train_2.webp")
    with pytest.raises(EvenlyError, match=r"train_2.webp is 160 x 100, not tiles of 32"):
        cifar10(atlases)
    (atlases / "train_2.webp").write_bytes(b"RIFF")
    with pytest.raises(EvenlyError, match=r"train_2.webp cannot be read as an atlas"):
        cifar10(atlases)


def test_atlases_alone_may_be_larger_than_pillows_limit(tmp_path, monkeypatch):
    write_atlases(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert len(cifar10(tmp_path).train) == 100
    assert Image.MAX_IMAGE_PIXELS == 100


def test_says_where_it_looked_and_how_to_download(tmp_path, monkeypatch):
    with pytest.raises(EvenlyError, match=r"EVENLY_DATA is not set; give folder=.*download\('cifar10', 'FOLDER'\)"):
        cifar10()
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    with pytest.raises(EvenlyError) as refusal:
        cifar10()
    for part in ("data_batch_1.bin", "train_0.webp", f"'{tmp_path / 'cifar10'}'", "cifar-10-batches-py", "download("):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)
    (tmp_path / "cifar10").mkdir()
    small(tmp_path / "cifar10")
    assert len(cifar10().train) == 100
    (tmp_path / "cifar10" / "data_batch_4.bin").unlink()
    with pytest.raises(EvenlyError, match=r"cifar10 in .* lacks data_batch_4.bin"):
        cifar10()


@pytest.mark.parametrize("options", [{"validation": 1.0}, {"validation": -0.1}, {"n": 9}, {"n": 101}])
def test_refuses_shares_and_numbers_that_cannot_be(tmp_path, options):
    (name, value), *_ = options.items()
    with pytest.raises(EvenlyError, match=f"{name} {value} (is not a share|cannot be used)"):
        cifar10(small(tmp_path), **options)


def test_refuses_a_validation_share_without_every_class(tmp_path):
    with pytest.raises(EvenlyError, match=r"validation 0.01 of 100 cifar10 images leaves a class without"):
        cifar10(small(tmp_path), validation=0.01)
