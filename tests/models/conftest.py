"""What the tests of models share."""

import pytest
import torch

from evenly import EvenlyError
from evenly.models import factory


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def refused():
    """Make a call that must raise an EvenlyError of one line."""

    def check(message, call, *arguments, **options):
        with pytest.raises(EvenlyError, match=message) as refusal:
            call(*arguments, **options)
        text = str(refusal.value)
        del refusal  # whose traceback would keep what the call had open
        assert "\n" not in text

    return check


@pytest.fixture
def built():
    """Build a network as `factory` does."""
    return lambda *arguments, **options: factory(*arguments, **options)[0]()
