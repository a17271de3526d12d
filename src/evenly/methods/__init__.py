"""One file per method, each reading like its paper's algorithm box."""

from evenly.methods.dfr import dfr
from evenly.methods.eiil import eiil
from evenly.methods.erm import erm
from evenly.methods.group_dro import group_dro
from evenly.methods.inferred import Inferred, infer_groups
from evenly.methods.jtt import jtt
from evenly.methods.lff import lff
from evenly.methods.misclassification import misclassification
from evenly.methods.pde import pde
from evenly.methods.quantile import quantile
from evenly.methods.random_upsample import random_upsample
from evenly.methods.registry import METHODS, Method, find
from evenly.methods.reweight import reweight
from evenly.methods.subsample import subsample
from evenly.methods.upweight import upweight
from evenly.methods.useful import hard_examples, useful

__all__ = [
    "METHODS",
    "Inferred",
    "Method",
    "dfr",
    "eiil",
    "erm",
    "find",
    "group_dro",
    "hard_examples",
    "infer_groups",
    "jtt",
    "lff",
    "misclassification",
    "pde",
    "quantile",
    "random_upsample",
    "reweight",
    "subsample",
    "upweight",
    "useful",
]
