"""What USEFUL's and PDE's callbacks do to the rest of a Lightning run, and what they refuse."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly.errors import EvenlyError

pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")

from evenly.integrations.lightning import (  # noqa: E402
    HardExamples,
    PDECallback,
    SAMCallback,
    SamplerCallback,
    UsefulCallback,
    WorstGroupAccuracy,
)

spec = importlib.util.spec_from_file_location("lightning_worker", Path(__file__).with_name("lightning_worker.py"))
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
Net, loader, plain, trainer, validation = worker.Net, worker.loader, worker.plain, worker.trainer, worker.validation
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


@pytest.fixture
def data():
    return worker.make_data()


def net(**options):
    return Net(worker.make_net(), **options)


def test_schedules_begin_again_and_have_the_length_of_the_retraining(data):
    useful = UsefulCallback(plain(data), separating_epoch=2)
    module = net(schedule=lambda optimizer: StepLR(optimizer, 1, 0.5))
    t = trainer(useful, epochs=3)
    t.fit(module, loader(data, useful))
    assert module.rates == pytest.approx([0.1, 0.05, 0.1, 0.05, 0.025])
    assert t.max_epochs == 3  # as it was given
    assert t.current_epoch == 5

    useful, steps = UsefulCallback(plain(data), separating_epoch=2), []

    def one_cycle(optimizer):
        steps.append(module.trainer.estimated_stepping_batches)
        return {"scheduler": OneCycleLR(optimizer, 0.2, total_steps=steps[-1]), "interval": "step"}

    module = net(schedule=one_cycle)
    trainer(useful, epochs=3).fit(module, loader(data, useful))
    assert steps == [3 * 3, 3 * 4]  # 60 examples, then 72, in batches of 20


def test_the_callback_serves_a_second_run(data):
    useful, chosen = UsefulCallback(plain(data), separating_epoch=2), []
    for _ in range(2):
        module = net()
        trainer(useful, epochs=3).fit(module, loader(data, useful))
        chosen.append(useful.selection.indices.tolist())
        assert [len(module.seen[epoch]) for epoch in range(5)] == [60, 60, 72, 72, 72]
    assert chosen[0] == chosen[1]


def test_the_best_checkpoint_is_of_the_retraining_and_early_stopping_waits_for_it(data, tmp_path):
    def logged(self, batch, batch_idx):
        value = -1.0 if self.trainer.current_epoch < 3 else 10.0 - min(self.trainer.current_epoch, 5)
        self.log("loss_on_validation", value)

    module = net()
    module.validation_step = logged.__get__(module)
    useful = UsefulCallback(plain(data), separating_epoch=3)
    best = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", monitor="loss_on_validation", save_last=True)
    stop = pl.callbacks.EarlyStopping("loss_on_validation", patience=2)
    t = trainer(useful, best, stop, epochs=10, enable_checkpointing=True)
    t.fit(module, loader(data, useful), validation(data))
    assert Path(best.best_model_path).name == "epoch=5.ckpt"
    assert t.current_epoch == 8  # two epochs without a better one
    saved = torch.load(tmp_path / "epoch=5.ckpt", weights_only=False)["callbacks"]["UsefulCallback"]
    assert saved["sampler"]["selection"][0].tolist() == useful.selection.indices.tolist()
    assert saved["initial"] is None  # not needed any more


def test_sam_is_prepared_again(data):
    made = []

    def sam(params):
        made.append(evenly.SAM(worker.sgd(params), rho=0.05))
        return made[-1]

    useful = UsefulCallback(plain(data), separating_epoch=1)
    module = net(optimizer=sam)
    trainer(useful, SAMCallback(), epochs=2).fit(module, loader(data, useful))
    assert len(made) == 2
    assert [optimizer._models for optimizer in made] == [[module], [module]]
    assert {len(module.seen[epoch]) for epoch in range(3)} == {2 * 60, 2 * 72}  # both passes of each step


def test_the_decay_of_pde_goes_with_a_schedule(data):
    def rates(decay):
        pde = PDECallback(data.train.groups, warmup_epochs=2, decay=decay, select="last")
        module = net(schedule=lambda optimizer: LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)))
        trainer(pde, epochs=4).fit(module, loader(data, pde))
        return module.rates

    assert rates(0.1) == pytest.approx([rate * factor for rate, factor in zip(rates(1), (1, 1, 0.1, 0.1), strict=True)])
    pde = PDECallback(data.train.groups, warmup_epochs=1, decay=0.5, select="last")
    module = net(schedule=lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=9))
    with pytest.raises(EvenlyError, match=r"decay=0\.5 with a OneCycleLR, which sets its rates by itself; give 1"):
        trainer(pde, epochs=2).fit(module, loader(data, pde))


def test_pde_stops_when_its_patience_is_out(data):
    run = evenly.train(
        data, model=worker.make_net(), method="pde", optimizer="sgd", seed=5, epochs=30, batch_size=worker.BATCH,
        lr=0.1, momentum=0.9, weight_decay=0.0, patience=2, warmup_epochs=3,
    )  # fmt: skip
    pde = PDECallback(data.train.groups, patience=2, warmup_epochs=3, seed=5)
    t = trainer(pde, WorstGroupAccuracy(data.validation.groups), epochs=30)
    t.fit(net(), loader(data, pde), validation(data))
    assert (t.current_epoch, pde.selected_epoch) == (len(run.history), run.results.selected_epoch)
    assert t.current_epoch < 30


def test_settings_that_would_change_the_counts_are_refused(data):
    def refused(match, callback=None, batches=None, **options):
        callback = callback or SamplerCallback(evenly.Upsample([], 60))
        with pytest.raises(EvenlyError, match=match):
            trainer(callback, **options).fit(net(), batches or loader(data, callback), validation(data))

    refused("limit_train_batches=0.5 leaves out part of what the sampler says; remove it", limit_train_batches=0.5)
    refused("overfit_batches=2 replaces the sampler; leave it out, or the callback", overfit_batches=2)
    other = DataLoader(plain(data), batch_size=4)
    refused("has a SequentialSampler and not the sampler of SamplerCallback; give one loader", batches=other)
    sampling = SamplerCallback(evenly.Upsample([], 60))
    refused("drop_last=True leaves out", sampling, loader(data, sampling, drop_last=True))
    refused("has a list and not the sampler", batches=[other, other])

    useful = UsefulCallback(plain(data))
    refused("counted in epochs, got max_epochs=3 and max_steps=7; give max_epochs alone", useful, max_steps=7)
    useful = UsefulCallback(TensorDataset(*plain(data)[:40]))
    refused("the sampler of UsefulCallback is of 40 examples and the training set has 60", useful, loader(data, useful))
    useful = UsefulCallback(plain(data), separating_epoch=4)
    refused("separating_epoch must be at most 3, the number of epochs, got 4", useful)
    useful, averaging = UsefulCallback(plain(data)), pl.callbacks.StochasticWeightAveraging(0.1)
    with pytest.raises(EvenlyError, match="StochasticWeightAveraging acts at an epoch by its number"):
        trainer(useful, averaging).fit(net(), loader(data, useful))
    with pytest.raises(EvenlyError, match="the loader for UsefulCallback shuffles, samples or drops"):
        UsefulCallback(DataLoader(plain(data), shuffle=True))

    groups = data.train.groups
    refused("needs the callback WorstGroupAccuracy", PDECallback(groups))
    refused(
        "warmup_epochs must be at most 3, the number of epochs, got 5",
        PDECallback(groups, warmup_epochs=5, select="last"),
    )
    with pytest.raises(EvenlyError, match="warmup_epochs must be at least 1, got 0"):
        PDECallback(groups, warmup_epochs=0)
    pde = PDECallback(groups)
    with pytest.raises(EvenlyError, match="needs validation and there is none; give fit a validation loader"):
        trainer(pde, WorstGroupAccuracy(data.validation.groups)).fit(net(), loader(data, pde))
    with pytest.raises(EvenlyError, match="PDE's sets depend on the number of epochs; give epochs="):
        len(PDECallback(groups).sampler)


def test_an_epoch_is_not_continued_with_batches_of_another_size(data, tmp_path):
    def run(size, ckpt_path=None):
        sampling = SamplerCallback(evenly.Upsample([], 60))
        save = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2)
        t = trainer(sampling, *([] if ckpt_path else [save]), epochs=1, enable_checkpointing=not ckpt_path)
        t.fit(net(), loader(data, sampling, batch_size=size), ckpt_path=ckpt_path)

    run(20)
    with (
        pytest.warns(UserWarning, match="callbacks used to create the checkpoint"),
        pytest.raises(EvenlyError, match="from the middle of an epoch with batches of 20 over all processes"),
    ):
        run(10, tmp_path / "step=2.ckpt")


def test_hard_examples_and_useful_choose_alike(data):
    torch.manual_seed(0)
    useful = UsefulCallback(plain(data), separating_epoch=2, seed=5)
    trainer(useful, epochs=2).fit(net(), loader(data, useful))
    hard = HardExamples(plain(data), epoch=2, seed=5)
    sampling = SamplerCallback(evenly.Upsample([], 60, seed=5))
    trainer(hard, sampling, epochs=2).fit(net(), loader(data, sampling))
    assert hard.hard.tolist() == useful.selection.indices.tolist()


def test_the_example_runs(request):
    assert "PDE used" in request.getfixturevalue("plain").example("lightning_methods.py")


def test_a_sampler_of_another_set_is_refused(data, refused_call):
    """Too few groups would leave examples out without a word."""
    for made in (PDECallback(data.train.groups[:-2], select="last"), SamplerCallback(evenly.Upsample([0], 500))):
        batches = loader(data, made)
        refused_call("is of .* examples and the training set has", trainer(made).fit, Net(worker.make_net()), batches)


def test_pde_without_validation_is_refused_at_the_start(data, refused_call):
    pde = PDECallback(data.train.groups)
    batches = loader(data, pde)
    fit = trainer(pde, WorstGroupAccuracy(data.validation.groups)).fit
    refused_call("needs validation and there is none", fit, Net(worker.make_net()), batches)
