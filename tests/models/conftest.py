"""What the tests of models share."""

import pytest
import torch

from evenly.models import factory


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def refused(refused_call):
    return refused_call


@pytest.fixture
def built():
    """Build a network as `factory` does."""
    return lambda *arguments, **options: factory(*arguments, **options)[0]()
