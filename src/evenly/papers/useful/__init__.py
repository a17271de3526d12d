"""Nguyen et al. 2024, Make the Most of Your Data: USEFUL, and how features grow under GD and SAM."""

from evenly.papers.useful import growth as growth
