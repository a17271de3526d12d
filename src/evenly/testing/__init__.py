"""The contract of methods, data sets and optimizers, for evenly's own and for those of other packages.

>>> from evenly.testing import check_method
>>> check_method("useful", options={"separating_epoch": 2})

A check takes a few seconds and needs no pytest. A broken promise is an AssertionError that says which, and what to do.
"""

from evenly.testing.datasets import check_dataset
from evenly.testing.methods import check_method
from evenly.testing.optimizers import check_optimizer

__all__ = ["check_dataset", "check_method", "check_optimizer"]
