"""Theorems as functions: coherence and linear stability of minima, constructed networks, growth of features."""
