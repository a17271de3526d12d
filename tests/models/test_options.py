"""Options of models."""

import pytest
from torch import nn

from evenly import EvenlyError
from evenly.models import factory


@pytest.mark.parametrize("model", ["mlp", nn.Linear(5, 2), lambda: nn.Linear(5, 2)])
def test_an_option_that_the_model_does_not_have_is_refused(model):
    with pytest.raises(EvenlyError, match="hiden"):
        factory(model, (5,), 2, 0, hiden=(3,))[0]()
