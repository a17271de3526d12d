"""Deng et al. 2023, Robust Learning with Progressive Data Expansion: PDE, and why ERM learns a spurious feature."""

# in the order of the paper
from evenly.papers.pde import data as data  # isort: skip
from evenly.papers.pde import theory as theory  # isort: skip
from evenly.papers.pde import times as times  # isort: skip
from evenly.papers.pde import lemmas as lemmas  # isort: skip
from evenly.papers.pde import algorithm as algorithm  # isort: skip
from evenly.papers.pde import patches as patches  # isort: skip
from evenly.papers.pde import curves as curves  # isort: skip
from evenly.papers.pde import images as images  # isort: skip
from evenly.papers.pde import sweeps as sweeps  # isort: skip
from evenly.papers.pde import group_dro as group_dro  # isort: skip
from evenly.papers.pde import attention as attention  # isort: skip
from evenly.papers.pde import groups as groups  # isort: skip
