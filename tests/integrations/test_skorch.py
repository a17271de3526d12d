"""evenly's optimizers in a skorch net."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

skorch = pytest.importorskip("skorch", reason="needs skorch: pip install 'evenly[skorch]'")

from sklearn.base import clone  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from skorch.callbacks import Callback, GradientNormClipping, LRScheduler  # noqa: E402

from evenly.integrations.skorch import SAMClassifier, SAMMixin, SAMRegressor, sam_optimizer  # noqa: E402


class Net(nn.Module):
    def __init__(self, hidden=6):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, 3))

    def forward(self, X):  # skorch's name
        return self.net(X)


class Notes(Callback):
    """Seeds each step with its number, as the plain loop does, and counts its notifications."""

    def __init__(self):
        self.steps, self.notified, self.ascended = 0, 0, []

    def on_batch_begin(self, net, batch=None, training=False, **kwargs):
        if training:
            torch.manual_seed(self.steps)
            self.steps += 1

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.notified += 1
        self.ascended.append(net.optimizer_.ascended)


class ClipByValue(Callback):
    def on_grad_computed(self, net, named_parameters, **kwargs):
        nn.utils.clip_grad_value_([p for _, p in named_parameters], 0.02)


@pytest.fixture
def data(plain):
    x, y = plain.data()
    return x.numpy(), y.numpy()


@pytest.fixture
def batches(plain):
    x, y = plain.data()
    return list(zip(x.split(8), y.split(8), strict=True))


def compare(net, plain, wrap, batches, **options):
    """Compare the fitted weights with the plain loop's over the same batches, with wrap(model); its losses."""
    model = Net()
    losses = plain.loop(model, wrap(model), batches, loss_of, **options)
    assert plain.same(net.module_, model)
    return losses


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sgd(params, **settings):
    return torch.optim.SGD(params, **{"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01} | settings)


def sam(model):
    return SAM(sgd(model.parameters()), rho=0.3)


def make(optimizer=None, cls=SAMClassifier, **options):
    settings = {"criterion": nn.CrossEntropyLoss, "batch_size": 8, "train_split": None, "verbose": 0, "lr": 0.2}
    settings |= {"max_epochs": 2, "optimizer__momentum": 0.9, "optimizer__weight_decay": 0.01} | options
    return cls(Net, optimizer=optimizer or sam_optimizer(rho=0.3), **settings)


METHODS = {"sam": (SAM, {"rho": 0.3}), "asam": (ASAM, {"rho": 0.8}), "random": (RandomPerturbation, {"sigma": 0.05})}


@pytest.mark.parametrize("cls", [SAMClassifier, skorch.NeuralNetClassifier])
@pytest.mark.parametrize("method", METHODS)
def test_the_weights_are_the_plain_loops(plain, data, batches, method, cls):
    kind, settings = METHODS[method]
    net = make(sam_optimizer(method=kind, **settings), cls, callbacks=[Notes()])
    net.fit(*data)
    losses = compare(net, plain, lambda model: kind(sgd(model.parameters()), **settings), batches * 2)
    recorded = [row["train_loss"] for epoch in net.history for row in epoch["batches"]]
    assert recorded == losses
    assert len(recorded) == 10


def test_adamw_and_settings_in_the_factory(plain, data, batches):
    net = make(
        sam_optimizer(torch.optim.AdamW, ASAM, rho=0.5, eta=0.1, betas=(0.8, 0.9)), lr=0.01, optimizer__momentum=1
    )
    delattr(net, "optimizer__momentum")
    net.fit(*data)

    def wrap(model):
        base = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.01)
        return ASAM(base, rho=0.5, eta=0.1)

    compare(net, plain, wrap, batches * 2)


def test_lsam_is_made_where_the_parameters_have_names(plain, data, batches):
    with pytest.raises(EvenlyError, match=r"LSAM needs the parameters.*initialize_optimizer"):
        sam_optimizer(method=LSAM)

    def wrap(model):
        return LSAM(sgd(model.parameters()), model.net[3].parameters(), rho=0.5)

    class LastLayer(SAMClassifier):
        def initialize_optimizer(self):
            self.optimizer_ = wrap(self.module_)
            return self

    compare(make(cls=LastLayer).fit(*data), plain, wrap, batches * 2)


def test_settings_by_the_names_of_skorch(data):
    net = make(sam_optimizer(rho=0.3), optimizer__rho=0.1, optimizer__lr=0.05).initialize()
    assert isinstance(net.optimizer_, SAM)
    assert (net.optimizer_.param_groups[0]["rho"], net.optimizer_.param_groups[0]["lr"]) == (0.1, 0.05)
    net.set_params(optimizer__rho=0.2, lr=0.01)
    assert (net.optimizer_.param_groups[0]["rho"], net.optimizer_.param_groups[0]["lr"]) == (0.2, 0.01)
    assert make().initialize().optimizer_.param_groups[0]["rho"] == 0.3
    assert make(sam_optimizer(check_finite=True)).initialize().optimizer_.check_finite
    groups = [("net.3.*", {"rho": 0.7})]
    net = make(optimizer__param_groups=groups).initialize()
    assert [group["rho"] for group in net.optimizer_.param_groups] == [0.7, 0.3]
    with pytest.raises(EvenlyError, match=r"`rho` of SAM must be a finite number above 0, got -1"):
        make(optimizer__rho=-1).fit(*data)


def test_rho_can_be_searched(data):
    net = make(max_epochs=1)
    search = GridSearchCV(net, {"optimizer__rho": [0.05, 0.5]}, cv=2, refit=True, scoring="accuracy", n_jobs=1)
    search.fit(*data)
    assert search.best_estimator_.optimizer_.param_groups[0]["rho"] in (0.05, 0.5)


@pytest.mark.parametrize("clip", ["value", "norm"])
def test_clipping_acts_on_the_last_pass_only(plain, data, batches, clip):
    callback = ClipByValue() if clip == "value" else GradientNormClipping(0.02)
    net = make(callbacks=[callback]).fit(*data)
    clip_gradients = nn.utils.clip_grad_value_ if clip == "value" else nn.utils.clip_grad_norm_
    compare(net, plain, sam, batches * 2, clip=lambda params: clip_gradients(params, 0.02))


def test_gradients_are_notified_once_with_the_weights_restored(data):
    notes = Notes()
    make(callbacks=[notes]).fit(*data)
    assert notes.notified == notes.steps == 10
    assert notes.ascended == [False] * 10


def test_without_the_mixin_they_are_notified_in_both_passes(data):
    """What the mixin is for."""
    notes = Notes()
    make(cls=skorch.NeuralNetClassifier, callbacks=[notes]).fit(*data)
    assert notes.notified == 20


@pytest.mark.parametrize("method", ["sam", "asam"])
def test_saved_and_loaded_parameters_go_on_exactly(plain, data, tmp_path, method):
    kind, settings = METHODS[method]
    files = {"f_params": tmp_path / "w.pt", "f_optimizer": tmp_path / "o.pt", "f_history": tmp_path / "h.json"}
    whole = make(sam_optimizer(method=kind, **settings), max_epochs=2).fit(*data)
    whole.save_params(**files)
    whole.partial_fit(*data)
    resumed = make(sam_optimizer(method=kind, rho=9.0)).initialize()
    resumed.load_params(**files)
    assert resumed.optimizer_.param_groups[0]["rho"] == settings["rho"]
    resumed.partial_fit(*data)
    assert plain.same(whole.module_, resumed.module_)
    assert len(resumed.history) == 4


def test_a_pickled_net_goes_on_exactly(plain, data):
    net = make().fit(*data)
    other = pickle.loads(pickle.dumps(net))
    net.partial_fit(*data)
    other.partial_fit(*data)
    assert plain.same(net.module_, other.module_)
    assert repr(clone(net).optimizer) == repr(net.optimizer)


def test_the_learning_rate_schedule(plain, data, batches):
    schedule = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    net = make(callbacks=[schedule]).fit(*data)
    model = Net()
    opt = sam(model)
    for epoch in range(2):
        opt.param_groups[0]["lr"] = 0.2 * 0.5**epoch
        plain.loop(model, opt, batches, loss_of)
    assert plain.same(net.module_, model)


def test_a_regressor(plain):
    x, _ = plain.data()
    y = (x[:, :3] * 2).numpy()
    net = make(cls=SAMRegressor, criterion=nn.MSELoss, max_epochs=40, lr=0.05)
    net.fit(x.numpy(), y)
    assert net.history[-1, "train_loss"] < 0.3 * net.history[0, "train_loss"]


def test_other_optimizers_are_left_alone(plain, data, batches):
    class Counts(Callback):
        times = 0

        def on_grad_computed(self, net, named_parameters, **kwargs):
            self.times += 1

    counts = Counts()
    net = make(torch.optim.SGD, callbacks=[counts]).fit(*data)
    model = Net()
    opt = sgd(model.parameters())
    for batch in batches * 2:
        opt.zero_grad()
        loss_of(model, batch).backward()
        opt.step()
    assert plain.same(net.module_, model)
    assert counts.times == 10


def test_what_cannot_work_is_refused(data):
    with pytest.raises(EvenlyError, match=r"`method` must be evenly.SAM, ASAM or RandomPerturbation, got"):
        sam_optimizer(method=torch.optim.SGD)

    class Two(SAMMixin, skorch.NeuralNetClassifier):
        def initialize_optimizer(self):
            super().initialize_optimizer()
            self.second_ = torch.optim.SGD(self.module_.parameters(), lr=0.1)
            return self

    with pytest.raises(EvenlyError, match=r"optimizers \['optimizer', 'second'\]"):
        make(cls=Two).fit(*data)

    class Hidden:  # as accelerate's AcceleratedOptimizer
        def __init__(self, optimizer):
            self.optimizer = optimizer

    net = make().initialize()
    net.optimizer_ = Hidden(net.optimizer_)
    with pytest.raises(EvenlyError, match="AccelerateMixin steps without a closure"):
        net.partial_fit(*data)


def test_predictions_have_the_shape_of_the_labels(data):
    net = make().fit(*data)
    assert net.predict(data[0]).shape == data[1].shape
    assert np.isfinite(net.predict_proba(data[0])).all()


def test_the_example_runs(plain):
    assert "accuracy" in plain.example("skorch_sam.py")


def test_a_net_that_is_given_no_optimizer_trains_with_sam(data):
    net = SAMClassifier(
        nn.Linear, module__in_features=data[0].shape[1], module__out_features=3, max_epochs=1, verbose=0
    )
    net.fit(*data)
    assert type(net.optimizer_) is SAM
    assert net.optimizer_.base.param_groups[0]["lr"] == net.lr
