"""The one contract for a data set: inputs, labels, groups and attributes in up to three splits.

Inputs are a tensor held in memory (uint8 images stay uint8), any `torch.utils.data.Dataset` that returns ``(x, y)``, or
`Texts`, which the model's own encoder turns into numbers before training.
Groups and attributes are arrays beside the inputs, in the same order. Nothing assumes that storage is sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from evenly.data.mapped import MappedRows, pieces
from evenly.data.preprocessing import Preprocessing
from evenly.data.texts import Texts
from evenly.errors import EvenlyError, shortened
from evenly.settings import at_least, at_most

MOST_GROUPS = 100_000
SPLITS = ("train", "validation", "test")
Share = Annotated[float, at_least(0), at_most(1)]
Count = Annotated[int, at_least(1)]


@dataclass(frozen=True)
class Places:
    """Where examples are from, so that a user finds them again: names of files, or numbers of what `word` says.

    Within one data set, what has the same place is the same example, also where seeds divide the set differently.
    """

    values: Sequence[Any] | np.ndarray[Any, Any]
    word: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> str:
        return f"{self.word} {self.values[i]}".strip()

    @property
    def identities(self) -> np.ndarray[Any, Any]:
        """(N,) whole numbers, equal where the places are: the numbers there are, or eight bytes of a hash of a name."""
        values = np.asarray(self.values) if isinstance(self.values, np.ndarray | range) else self.values
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.min(initial=0) >= 0:
            return values
        names = (str(value).encode("utf-8", "surrogatepass") for value in values)
        digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
        return np.frombuffer(digests, dtype=np.uint64)

    def at(self, index: np.ndarray[Any, Any]) -> Places:
        """Those of the examples at `index` (M,)."""
        values = self.values
        return Places(
            values[index] if isinstance(values, np.ndarray) else [values[i] for i in index.tolist()], self.word
        )


class Split:
    """One split: ``inputs`` (N, ...) or a Dataset, ``labels`` (N,) in 0..K-1, ``groups`` (N,) or boolean (N, G).

    Args:
        inputs: a tensor, an array (float64 arrays become float32), a Dataset of ``(x, y)`` or `Texts`.
        labels: (N,) integers. May be left out for a Dataset, which is then read through once to collect them.
        groups: (N,) integers from 0, or boolean (N, G) where groups overlap (these serve evaluation only).
        attributes: integer (N,) columns by name.
        evaluation_groups: what accuracy is measured by where that is not `groups`, in the same form: the 16 overlapping
            groups of CivilComments, say, beside the 512 distinct ones that a method can balance.
        texts: (N,) what the inputs were before they were turned into numbers; shown on pages.
        places: (N,) where the examples are from; shown on pages, and by them test sets of several seeds know the
            examples that they share.
    """

    def __init__(
        self,
        inputs: Any,
        labels: Any = None,
        groups: Any = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        name: str = "train",
        evaluation_groups: Any = None,
        texts: Sequence[str] | None = None,
        places: Places | None = None,
    ) -> None:
        self.name, self.places = name, places
        self.inputs: Tensor | Dataset[Any] | Texts = _as_inputs(inputs, name)
        count = len(self.inputs)
        if count == 0:
            raise EvenlyError(f"the {name} set is empty; give it at least one example")
        if labels is None:
            if isinstance(self.inputs, Tensor | Texts):
                raise EvenlyError(f"the {name} set has inputs but no labels; give labels of shape ({count},)")
            labels = _labels_of(self.inputs)
        self.labels = as_integers(labels, f"{name} labels", count)
        self.groups = None if groups is None else as_groups(groups, f"{name} groups", count)
        self.evaluation_groups = (
            None if evaluation_groups is None else as_groups(evaluation_groups, f"{name} groups", count)
        )
        self.texts = self.inputs.texts if isinstance(self.inputs, Texts) else texts
        self.attributes = {
            key: as_integers(column, f"{name} attribute {key!r}", count) for key, column in (attributes or {}).items()
        }

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = tuple(self.inputs.shape[1:]) if isinstance(self.inputs, Tensor) else type(self.inputs).__name__
        return f"Split({self.name}: {len(self)} examples of {kind})"

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one input; () of texts."""
        if isinstance(self.inputs, Texts):
            return ()
        if isinstance(self.inputs, Tensor):
            return tuple(self.inputs.shape[1:])
        try:
            return tuple(torch.as_tensor(self.inputs[0][0]).shape)
        except (TypeError, IndexError, KeyError, RuntimeError):
            raise EvenlyError(
                f"example 0 of the {self.name} inputs is no pair of input and label; give a Dataset of (x, y)"
            ) from None

    @property
    def measured_groups(self) -> Tensor | None:
        """What accuracy is measured by: the evaluation groups where there are any, else the groups."""
        return self.groups if self.evaluation_groups is None else self.evaluation_groups

    def to(self, device: torch.device, *, inputs: bool = True) -> Split:
        """This split with its tensors on a device, the inputs on request; a Dataset stays where it is."""
        moved = object.__new__(Split)
        moved.name, moved.attributes, moved.texts, moved.places = self.name, self.attributes, self.texts, self.places
        moved.inputs = self.inputs
        if inputs and isinstance(self.inputs, MappedRows):
            moved.inputs = self.inputs.at(torch.arange(len(self.inputs))).to(device)
        elif inputs and isinstance(self.inputs, Tensor):
            moved.inputs = self.inputs.to(device)
        moved.labels = self.labels.to(device)
        moved.groups = None if self.groups is None else self.groups.to(device)
        moved.evaluation_groups = None if self.evaluation_groups is None else self.evaluation_groups.to(device)
        return moved


@dataclass
class Data:
    """A data set. Each split is a `Split`, a tuple ``(inputs, labels[, groups])`` or a Dataset of ``(x, y)``.

    Args:
        train, validation, test: the splits; only `train` is needed to train, `test` to report.
        name: how reports call it.
        about: what it is, in a sentence or two, for those who read a report.
        class_names, group_names, evaluation_group_names: how reports call label k and group g.
        observe: called with the network after every epoch; what it returns goes into the metrics
            (the patch data reports alignments with its planted directions).
        recipe: settings of `evenly.train` that suit this data, used where the user gives none; those of
            single methods stand under "options", by the method's name.
        options: how the data was made; stored with every run.
        preprocessing: how the inputs were made of files or rows; stored with every run, for new ones.
        notes: what the user should know before training, a line each: which column of a table is used as what.
    """

    train: Any
    validation: Any = None
    test: Any = None
    name: str = "data"
    about: str = ""
    class_names: Sequence[str] | None = None
    group_names: Sequence[str] | None = None
    evaluation_group_names: Sequence[str] | None = field(default=None, kw_only=True)
    observe: Callable[[nn.Module], dict[str, float]] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Preprocessing | None = field(default=None, kw_only=True)
    notes: Sequence[str] = field(default=(), kw_only=True)
    from_pandas: ClassVar[Callable[..., Data]]  # these two are in `evenly.data.tables`
    from_datasets: ClassVar[Callable[..., Data]]

    def __post_init__(self) -> None:
        self.train = _as_split(self.train, "train")
        self.validation = None if self.validation is None else _as_split(self.validation, "validation")
        self.test = None if self.test is None else _as_split(self.test, "test")
        present = self.train.labels.unique()
        if not torch.equal(present, torch.arange(len(present))):
            values = ", ".join(str(k) for k in present[:6].tolist()) + (", ..." if len(present) > 6 else "")
            raise EvenlyError(
                f"training labels must be 0..K-1 with every class present, got {values}; "
                "renumber them, e.g. numpy.unique(labels, return_inverse=True)[1]"
            )
        if len(present) < 2:
            raise EvenlyError("the training set has one class only; there is nothing to tell apart")
        for split in self.splits.values():
            if bool((unseen := (split.labels < 0) | (split.labels >= self.classes)).any()):
                raise EvenlyError(
                    f"{split.name} label {int(split.labels[unseen][0])} never occurs in training "
                    f"(classes 0..{self.classes - 1}); remove these examples or add the class to the training set"
                )
            if split.example_shape != self.train.example_shape and isinstance(split.inputs, Tensor | Texts):
                raise EvenlyError(
                    f"{split.name} inputs have shape {split.example_shape}, training inputs {self.train.example_shape};"
                    " bring them to one shape"
                )
            for field_name, what in (("groups", "groups"), ("evaluation_groups", "evaluation groups")):
                if _kind(getattr(split, field_name)) != _kind(getattr(self.train, field_name)):
                    raise EvenlyError(f"{what} are given for one of train and {split.name} only; give both or neither")
        for names, count, what in (
            (self.class_names, self.classes, "class"),
            (self.group_names, self.group_count, "group"),
            (self.evaluation_group_names, self._count("evaluation_groups"), "evaluation group"),
        ):
            if not isinstance(names, Sequence | None):
                raise EvenlyError(f"{what} names must be a list of names, got {shortened(names)}")
            if names is not None and (len(names) < count or (what == "class" and len(names) > count)):
                raise EvenlyError(f"{len(names)} {what} names for {count}; give one name for each")

    @property
    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        return {name: split for name in SPLITS if (split := getattr(self, name)) is not None}

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return int(self.train.labels.max()) + 1

    @property
    def group_count(self) -> int:
        """The number of groups over all splits; 0 where there are none."""
        return self._count("groups", self.group_names)

    @property
    def measured_names(self) -> list[str]:
        """How the groups that accuracy is measured by are called; [] where there are none."""
        has_own = self.train.evaluation_groups is not None
        names = self.evaluation_group_names if has_own else self.group_names
        count = self._count("evaluation_groups" if has_own else "groups", names)
        return [str(names[g]) if names else f"group {g}" for g in range(count)]

    def _count(self, which: str, names: Sequence[str] | None = None) -> int:
        columns = [groups for split in self.splits.values() if (groups := getattr(split, which)) is not None]
        counts = [groups.shape[1] if groups.dtype == torch.bool else int(groups.max()) + 1 for groups in columns]
        return max([*counts, len(names or ())] if counts else [0])

    def fingerprint(self, *names: str) -> str:
        """Sixteen hex digits that change when any input, label or group does, in all splits or in those named.

        Of a Dataset that has a method `fingerprint`, as evenly's own readers do, that; of another its length only.
        """
        return fingerprint({name: split for name, split in self.splits.items() if not names or name in names})


def fingerprint(splits: Mapping[str, Split]) -> str:
    """Sixteen hex digits of splits by name; `Data.fingerprint` says what changes them."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(name.encode())
        if callable(own := getattr(split.inputs, "fingerprint", None)):
            digest.update(str(own()).encode())
        for array in (split.inputs, split.labels, split.groups, split.evaluation_groups):
            if isinstance(array, Tensor | MappedRows):
                digest.update(str((array.dtype, tuple(array.shape))).encode())
                for part in pieces(array):
                    digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _kind(groups: Tensor | None) -> str:
    if groups is None:
        return "no groups"
    return "one group per example" if groups.ndim == 1 else f"{groups.shape[1]} overlapping groups"


def _as_split(value: Any, name: str) -> Split:
    if isinstance(value, Split):
        value.name = name
        return value
    if isinstance(value, tuple | list):
        if len(value) not in (2, 3):
            raise EvenlyError(
                f"the {name} set is a tuple of {len(value)}; give (inputs, labels) or (inputs, labels, groups)"
            )
        return Split(*value, name=name)
    return Split(value, name=name)


def _as_inputs(inputs: Any, name: str) -> Any:
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(np.ascontiguousarray(_native(inputs, f"the {name} inputs are")))
        inputs = inputs.float() if inputs.dtype == torch.float64 else inputs
    if isinstance(inputs, Tensor):
        check_dense(inputs, f"the {name} inputs")
        if inputs.ndim < 2:
            raise EvenlyError(f"the {name} inputs have shape {tuple(inputs.shape)}; give (N, features) or (N, C, H, W)")
        if inputs.is_floating_point() and not all(bool(part.isfinite().all()) for part in pieces(inputs)):
            bad = (~torch.isfinite(inputs)).flatten(1).any(1).nonzero().flatten()
            raise EvenlyError(
                f"{len(bad)} of {len(inputs)} {name} inputs hold NaN or infinity, the first at index {int(bad[0])}; "
                "fill or drop them"
            )
        return inputs
    if isinstance(inputs, list | tuple | str | Mapping) or not (
        hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")
    ):
        raise EvenlyError(
            f"the {name} inputs are a {type(inputs).__name__}; give a tensor, an array, a Dataset with a length, or "
            "evenly.Texts of strings"
        )
    return inputs


def _labels_of(dataset: Any) -> Tensor:
    targets = getattr(dataset, "targets", None)
    if targets is not None and len(targets) == len(dataset):
        return torch.as_tensor(targets)
    return torch.tensor([_label_of(dataset, i) for i in range(len(dataset))])


def _label_of(dataset: Any, i: int) -> int:
    try:
        return int(dataset[i][1])
    except (TypeError, ValueError, IndexError, KeyError):
        raise EvenlyError(f"example {i} of the data is no pair of input and label; give a Dataset of (x, y)") from None
    except OSError as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(f"example {i} of the data cannot be read ({reason}); repair it, or leave it out") from error


def _native(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """An array of numbers in the machine's own byte order and of a type that torch has."""
    if array.dtype.kind not in "fiub":
        raise EvenlyError(f"{what} of type {array.dtype}; give numbers")
    is_wide = array.dtype.kind == "f" and array.dtype.itemsize > 8  # long double
    return array.astype(np.float64 if is_wide else array.dtype.newbyteorder("="), copy=False)


def check_dense(tensor: Tensor, what: str) -> None:
    """Refuse a tensor that torch cannot compute with as with any other: sparse, without values, floats of 8 bits."""
    layout = str(tensor.layout).removeprefix("torch.")
    kind = layout if layout != "strided" else "on the meta device" if tensor.is_meta else str(tensor.dtype)
    if layout != "strided" or tensor.is_meta or (tensor.is_floating_point() and tensor.itemsize == 1):
        raise EvenlyError(f"{what} are {kind}; give a dense tensor with values, e.g. .to_dense().float()")


def as_tensor(values: Any, what: str) -> Tensor:
    """Values of a user's, perhaps a list, an array or a column of pandas, as a tensor on the CPU."""
    if hasattr(values, "__array__") and not isinstance(values, Tensor | np.ndarray):
        values = np.array(values)  # what pandas holds cannot be written to, and torch warns of that
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OSU":
        values = _native(values, f"{what} are")
    try:
        tensor: Tensor = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise EvenlyError(
            f"{what} cannot be read as numbers; give integers, e.g. numpy.unique(names, return_inverse=True)[1]"
        ) from None
    check_dense(tensor, what)
    return tensor


def as_integers(values: Any, what: str, count: int) -> Tensor:
    """Whole numbers (N,), one for each example; anything else is refused."""
    tensor = as_tensor(values, what)
    if tensor.shape != (count,):
        raise EvenlyError(f"{what} have shape {tuple(tensor.shape)} for {count} examples; give one integer for each")
    if tensor.is_floating_point() and not bool((tensor == tensor.round()).all()):
        raise EvenlyError(
            f"{what} are not whole numbers (e.g. {float(tensor[tensor != tensor.round()][0])}); give integers"
        )
    return tensor.long()


def as_groups(groups: Any, what: str, count: int) -> Tensor:
    """Groups as integers (N,) from 0, or boolean (N, G); anything else is refused."""
    tensor = as_tensor(groups, what)
    if tensor.dtype == torch.bool and tensor.ndim == 2:
        if len(tensor) != count:
            raise EvenlyError(f"{what} have {len(tensor)} rows for {count} examples; give one row for each")
        if not bool(tensor.any()):
            raise EvenlyError(
                f"no {what.removesuffix('groups')}example is in any of the {tensor.shape[1]} overlapping groups, so "
                "nothing can be measured by them; give other groups, or none"
            )
        return tensor
    tensor = as_integers(tensor, what, count)
    if int(tensor.min()) < 0:
        raise EvenlyError(f"{what} hold {int(tensor.min())}; number the groups from 0")
    if int(tensor.max()) >= MOST_GROUPS:
        raise EvenlyError(
            f"{what} hold {int(tensor.max())}; number them from 0 without gaps, "
            "e.g. numpy.unique(groups, return_inverse=True)[1]"
        )
    return tensor
