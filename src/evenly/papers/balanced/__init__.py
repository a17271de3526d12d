"""Springer et al. 2024: how SAM balances features. LSAM on the spiral, importance weights, features of real images.

The modules are imported in the order of the paper's sections, which is the order of the claims.
"""

# ruff: noqa: I001
from evenly.papers.balanced import updates as updates
from evenly.papers.balanced import real_data as real_data
from evenly.papers.balanced import distribution as distribution
from evenly.papers.balanced import spiral as spiral
from evenly.papers.balanced import importance as importance
from evenly.papers.balanced import importance_celeba as importance_celeba
from evenly.papers.balanced import interventions as interventions
from evenly.papers.balanced import variants as variants
from evenly.papers.balanced import gradient_norms as gradient_norms
from evenly.papers.balanced import recipes as recipes
