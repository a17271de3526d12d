"""evenly's methods in scikit-learn: a grid search that chooses the method by its worst group.

python examples/sklearn_search.py
"""

import numpy as np
import sklearn
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, train_test_split

import evenly

rng = np.random.default_rng(0)
bird = rng.integers(0, 2, 2000)
place = np.where(rng.random(2000) < 0.95, bird, 1 - bird)  # most birds are where one expects them
X = np.stack([rng.normal(2 * bird - 1, 1.0), rng.normal(2 * place - 1, 0.3), rng.normal(0, 1, 2000)], axis=1)
y, places = np.array(["land bird", "water bird"])[bird], np.array(["land", "water"])[place]
groups = np.char.add(np.char.add(y, " on "), places)
X, X_test, y, y_test, groups, groups_test = train_test_split(X, y, groups, stratify=groups, random_state=0)

sklearn.set_config(enable_metadata_routing=True)  # so that the search passes groups on
worst_group = make_scorer(evenly.worst_group_accuracy).set_score_request(groups=True)
methods = {"method": ["erm", "useful", "jtt", "pde"]}
search = GridSearchCV(evenly.Classifier(epochs=20), methods, scoring=worst_group, cv=3).fit(X, y, groups=groups)
for method, score in zip(methods["method"], search.cv_results_["mean_test_score"], strict=True):
    print(f"{method:8} worst group {score:6.1%} on average over the folds")

predicted = search.predict(X_test)
worst = evenly.worst_group_accuracy(y_test, predicted, groups=groups_test)
print(f"{search.best_params_['method']} on test: worst group {worst:.1%}, accuracy {np.mean(predicted == y_test):.1%}")
