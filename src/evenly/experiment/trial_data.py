"""The data of `evenly improve` as its runs see it: of one seed, with the groups decided on, and without the test set.

Every run has the same examples, whatever its own seed: a test set that another seed trained on would be no test.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from attrs import field, frozen
from torch import Tensor

from evenly.data import Data, Split
from evenly.data.completing import completed
from evenly.experiment.request import Source
from evenly.methods.inferred import with_groups
from evenly.runs.plan import DataSpec


@frozen
class TrialSource(Source):
    """The data of a job.

    Args:
        seed: draws or divides the data, whatever seed a run has.
        groups: (N,) by split, in place of the data's own; None leaves these.
        no_groups: whether the data's own groups are left out.
    """

    seed: int = 0
    groups: Mapping[str, Tensor] | None = field(default=None, eq=False)
    group_names: tuple[str, ...] = ()
    no_groups: bool = False

    def data(self, seed: int) -> Data:
        """The data without the test set; the seed of a run changes nothing."""
        return replace(self.whole()[0], test=None)

    def whole(self) -> tuple[Data, tuple[str, ...]]:
        """The data with its test set, and the names of the splits that it lacked and that were drawn."""
        data, drawn = completed(super().data(self.seed), self.seed)
        if self.groups is not None:
            data = with_groups(data, self.groups, self.group_names)  # a split that has none yet is left out
        elif self.no_groups:
            data = without_groups(data)
        return data, drawn

    def spec(self, data: Data) -> DataSpec:
        """By what it holds: no name or file alone says which groups were decided on, nor that the test set is out."""
        return DataSpec(data.name, fingerprint=data.fingerprint())

    def spec_of_whole(self, data: Data, drawn: tuple[str, ...]) -> DataSpec:
        """The data with its test set as a file or a name brings it back, where one does."""
        if drawn or not isinstance(self.given, str | Path):
            return DataSpec(data.name, fingerprint=data.fingerprint())
        spec = super().spec(data)
        return DataSpec(spec.name, spec.options, spec.place, kind=spec.kind, seed=self.seed)


def without_groups(data: Data) -> Data:
    """The data without its groups."""

    def bare(split: Split | None) -> Split | None:
        if split is None:
            return None
        changed = copy.copy(split)
        changed.groups = changed.evaluation_groups = None
        return changed

    train, validation, test = map(bare, (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test, group_names=None, evaluation_group_names=None)
