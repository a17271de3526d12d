"""Nguyen et al. 2024, Make the Most of Your Data: USEFUL, and how features grow under GD and SAM."""

# the order of the claims is that of the paper
# isort: off
from evenly.papers.useful import setting as setting
from evenly.papers.useful import growth as growth
from evenly.papers.useful import theorems as theorems
from evenly.papers.useful import upsampling as upsampling
from evenly.papers.useful import recursions as recursions
from evenly.papers.useful import noise as noise
from evenly.papers.useful import figures as figures
from evenly.papers.useful import selection as selection
from evenly.papers.useful import images as images
from evenly.papers.useful import comparisons as comparisons
from evenly.papers.useful import sweeps as sweeps
from evenly.papers.useful import forgetting as forgetting
from evenly.papers.useful import recipes as recipes
