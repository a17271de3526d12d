"""cleanlab's CleanLearning around `evenly.Classifier`."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs

import evenly

pytest.importorskip("cleanlab", reason="needs cleanlab: pip install cleanlab")

from cleanlab.classification import CleanLearning


def test_planted_label_errors_are_found_and_left_out():
    X, y = make_blobs(300, n_features=4, centers=3, cluster_std=1.0, random_state=0)
    wrong = np.random.default_rng(0).choice(300, 15, replace=False)
    labels = y.copy()
    labels[wrong] = (y[wrong] + 1) % 3
    cleaner = CleanLearning(
        evenly.Classifier(epochs=20), cv_n_folds=3, seed=0, find_label_issues_kwargs={"n_jobs": 1}, verbose=False
    )
    issues = cleaner.find_label_issues(X, labels)
    found = np.flatnonzero(issues["is_label_issue"])
    assert len(set(found) & set(wrong)) >= 12
    assert len(set(found) - set(wrong)) <= 3
    cleaner.fit(X, labels, label_issues=issues)
    assert cleaner.clf.run_.results.data.sizes["train"] == 300 - len(found)
    assert cleaner.score(X, y) > 0.95
    np.testing.assert_array_equal(cleaner.predict_proba(X).argmax(1), cleaner.predict(X))
