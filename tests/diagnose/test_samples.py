"""Parts of a split: drawn at random, or class by class; Hessians are of the latter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import evenly
from evenly import Data, Split
from evenly.diagnose.samples import part_of

COUNTS = torch.tensor([500, 40, 300, 3])
Y = torch.repeat_interleave(torch.arange(4), COUNTS)
X = torch.randn(len(Y), 2, generator=torch.Generator().manual_seed(0)) + Y[:, None]


@pytest.mark.parametrize("most", [8, 13, 103, 600, 843])
@pytest.mark.parametrize("inputs", [X, TensorDataset(X, Y)])
def test_a_stratified_part_has_equal_numbers_of_each_class_as_far_as_it_has_them(inputs, most):
    part = part_of(Split(inputs, Y), most, 0, stratified=True)
    counts = torch.bincount(part.labels, minlength=4)
    assert int(counts.sum()) == len(part) == most
    expected = torch.minimum(COUNTS, counts.max())
    assert bool((expected - counts <= 1).all())  # what is left over after equal numbers goes one to a class
    rows = (
        part.inputs if isinstance(part.inputs, torch.Tensor) else torch.stack([part.inputs[i][0] for i in range(most)])
    )
    places = (X[:, None] == rows).all(2).nonzero()[:, 0]
    assert torch.equal(Y[places], part.labels)
    assert places.tolist() == sorted(places.tolist())
    plain = torch.bincount(part_of(Split(X, Y), 100, 0).labels, minlength=4)
    assert plain[0] > plain[2] > plain[1]


def test_hessians_are_of_equal_numbers_of_each_class():
    """With an output layer of zeros the top eigenvalue is that of the inputs' second moment, halved by the softmax."""
    x = torch.cat([torch.full((900, 1), 1.0), torch.full((100, 1), 3.0)]).double()
    y = torch.repeat_interleave(torch.tensor([0, 1]), torch.tensor([900, 100]))
    model = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    found = evenly.audit(model, Data(train=(x, y)), top=1, samples=100)
    assert float(found.spectrum.eigenvalues[0]) == pytest.approx((0.5 * 1 + 0.5 * 9) / 2)
    many = Split(x.repeat(2, 1), y.repeat(2))
    row = evenly.Recorder(many, spectrum=1)(model)
    assert row["lambda_1"] == pytest.approx((0.8 * 1 + 0.2 * 9) / 2)  # 1,000 of 2,000: all 200 of the second class
