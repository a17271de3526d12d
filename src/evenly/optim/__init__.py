"""Optimizers that take the gradient near the weights instead of at them.

Each wraps any torch optimizer and steps with a closure:

>>> opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
>>> loss = opt.step(closure)
"""

from evenly.optim.asam import ASAM
from evenly.optim.lsam import LSAM
from evenly.optim.random_perturbation import RandomPerturbation
from evenly.optim.sam import SAM

__all__ = ["ASAM", "LSAM", "SAM", "RandomPerturbation"]
