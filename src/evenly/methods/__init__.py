"""One file per method, each reading like its paper's algorithm box."""

from evenly.methods.erm import erm
from evenly.methods.group_dro import group_dro
from evenly.methods.misclassification import misclassification
from evenly.methods.pde import pde
from evenly.methods.quantile import quantile
from evenly.methods.random_upsample import random_upsample
from evenly.methods.registry import METHODS, Method, find
from evenly.methods.subsample import subsample
from evenly.methods.upweight import upweight
from evenly.methods.useful import hard_examples, useful

__all__ = [
    "METHODS",
    "Method",
    "erm",
    "find",
    "group_dro",
    "hard_examples",
    "misclassification",
    "pde",
    "quantile",
    "random_upsample",
    "subsample",
    "upweight",
    "useful",
]
