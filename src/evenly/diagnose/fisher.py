"""Fisher's exact test, one-sided: whether one set of examples is right less often than another."""

from __future__ import annotations

from typing import Any

import numpy as np


def fisher(right: Any, n: Any, other: Any, m: Any) -> Any:
    """The chance that, of `right` + `other` right answers, a set of n has `right` or fewer where a set of m has the
    rest, if both are alike. Of numbers a number; of arrays (S,), one for each set, an array (S,) float64."""
    from scipy.stats import hypergeom

    p = hypergeom.cdf(right, np.add(n, m), np.add(right, other), n)
    return float(p) if np.ndim(p) == 0 else p
