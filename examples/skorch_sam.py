"""SAM in skorch: a net in a scikit-learn pipeline, the radius rho chosen by cross-validation like any other setting.

pip install 'evenly[skorch]'
python examples/skorch_sam.py
"""

import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import GradientNormClipping
from torch import nn

from evenly.integrations.skorch import SAMClassifier, sam_optimizer


class Net(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, X):
        return self.net(X)


X, y = make_moons(400, noise=0.3, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y, random_state=0)

torch.manual_seed(0)
net = SAMClassifier(
    Net, criterion=nn.CrossEntropyLoss, max_epochs=20, lr=0.1, batch_size=32, train_split=None, verbose=0,
    optimizer=sam_optimizer(torch.optim.SGD), optimizer__momentum=0.9,
    callbacks=[GradientNormClipping(5.0)],
)  # fmt: skip
search = GridSearchCV(make_pipeline(StandardScaler(), net), {"samclassifier__optimizer__rho": [0.02, 0.1, 0.5]}, cv=3)
search.fit(X_train, y_train)
print(f"rho {search.best_params_['samclassifier__optimizer__rho']}, test accuracy {search.score(X_test, y_test):.1%}")
