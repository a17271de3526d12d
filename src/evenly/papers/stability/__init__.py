"""Linear stability and coherence: which minima SGD, random perturbation and SAM can stay at."""

# ruff: noqa: I001 (the order of the claims is the paper's)

from evenly.papers.stability import coherence as coherence
from evenly.papers.stability import solutions as solutions
from evenly.papers.stability import training as training
from evenly.papers.stability import phases as phases
from evenly.papers.stability import local as local
from evenly.papers.stability import perturbation as perturbation
from evenly.papers.stability import bounds as bounds
from evenly.papers.stability import criteria as criteria
from evenly.papers.stability import parity_solutions as parity_solutions
