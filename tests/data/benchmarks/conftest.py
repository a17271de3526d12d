"""Small published data sets that several readers share."""

import numpy as np
import pytest


def _idx(values):
    return bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape) + values.tobytes()


class Sources:
    """Small MNIST, Fashion-MNIST and CIFAR-10 under one folder; every image is noise, so that it can be told again."""

    def __init__(self, folder):
        self.folder = folder
        self.images = {}
        self.labels = {}
        random = np.random.default_rng(0)
        for number, name in enumerate(("mnist", "fashion-mnist", "cifar10")):
            (folder / name).mkdir(parents=True)
            for part, count in (("train", 600 + 50 * number), ("test", 200)):
                shape = (count, 3, 32, 32) if name == "cifar10" else (count, 28, 28)
                self.images[name, part] = random.integers(1, 256, shape, dtype=np.uint8)
                # uneven classes, not sorted; two in three are among the classes that are used
                likely = 2 if name == "cifar10" else 5
                usual = random.random(count) < 2 / 3
                labels = np.where(usual, random.integers(0, likely, count), random.integers(0, 10, count))
                self.labels[name, part] = labels.astype(np.uint8)
                if name != "cifar10":
                    stem = "train" if part == "train" else "t10k"
                    (folder / name / f"{stem}-images-idx3-ubyte").write_bytes(_idx(self.images[name, part]))
                    (folder / name / f"{stem}-labels-idx1-ubyte").write_bytes(_idx(self.labels[name, part]))
        for part, files in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", ["test_batch.bin"])):
            records = np.concatenate(
                [self.labels["cifar10", part][:, None], self.images["cifar10", part].reshape(-1, 3072)], axis=1
            )
            for file, some in zip(files, np.array_split(records, len(files)), strict=True):
                (folder / "cifar10" / file).write_bytes(some.tobytes())

    def where(self, name, part, images):
        """The places in storage of images of a source's shape."""
        place = {image.tobytes(): i for i, image in enumerate(self.images[name, part])}
        return [place[np.ascontiguousarray(image).tobytes()] for image in images]


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    return Sources(tmp_path_factory.mktemp("sources"))
