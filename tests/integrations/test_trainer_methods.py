"""USEFUL and PDE in transformers' Trainer choose the examples that `evenly.train` chooses, also across a resume."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import evenly
from evenly.errors import EvenlyError

transformers = pytest.importorskip(
    "transformers", reason="needs transformers and accelerate: pip install 'evenly[transformers]'"
)
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'evenly[transformers]'")

from evenly.integrations.transformers import PDETrainer, SAMMixin, UsefulMixin, UsefulTrainer  # noqa: E402

EPOCHS, BATCH, LR, SEED = 6, 16, 0.1, 3


def split(count, seed):
    """Two classes by an easy feature, which a fifth of the examples lacks, and a difficult one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    lacking = torch.arange(count) % 10 < 2
    sign = (2.0 * labels - 1)[:, None]
    easy = torch.where(lacking[:, None], 0.0, 3.0) * sign + 0.2 * torch.randn(count, 2, generator=generator)
    difficult = 0.5 * sign + 0.2 * torch.randn(count, 2, generator=generator)
    groups = 2 * labels + lacking
    return torch.cat([easy, difficult], 1), labels, groups


TRAIN, VALIDATION = split(200, seed=1), split(80, seed=2)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Model(nn.Module):
    """The same network, as Trainer wants it; it notes the examples of its training passes."""

    def __init__(self):
        super().__init__()
        self.net, self.seen = network(), []

    def forward(self, x, labels, index):
        if self.training:
            self.seen.append(index.tolist())
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(part):
    return [{"x": x, "labels": int(y), "index": i} for i, (x, y) in enumerate(zip(*part[:2], strict=True))]


def sgd(params, lr=LR):
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


def arguments(folder, **options):
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": BATCH, "num_train_epochs": EPOCHS, "seed": SEED,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": [], "save_strategy": "epoch",
        "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False,
    } | options  # fmt: skip
    return transformers.TrainingArguments(**settings)


def build(trainer, folder, *, given=False, arguments_of=None, **options):
    model = Model()
    extra = {"optimizers": (sgd(model.parameters()), None)} if given else {}
    settings = {"optim": "sgd", "learning_rate": LR, "optim_args": "momentum=0.9"} | (arguments_of or {})
    built = trainer(model, arguments(folder, **settings), train_dataset=rows(TRAIN), **extra, **options)
    built.remove_callback(transformers.PrinterCallback)
    return built


def data():
    return evenly.Data(train=TRAIN, validation=VALIDATION)


def in_evenly(method, lr=LR, **options):
    settings = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": "constant", "augment": "none"} | options
    optimizer = partial(sgd, lr=lr)
    return evenly.train(data(), model=network(), method=method, optimizer=optimizer, seed=SEED, **settings)


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.fixture(scope="module")
def useful_run():
    return in_evenly("useful", select="last", evaluate_every=None)


@pytest.mark.parametrize("given", [True, False], ids=["an optimizer given", "the arguments' optimizer"])
def test_useful_chooses_and_reaches_what_evenly_train_does(tmp_path, useful_run, given):
    trainer = build(UsefulTrainer, tmp_path, given=given)
    trainer.train()
    chosen, theirs = trainer.selection, useful_run.selection
    assert 0 < len(chosen.indices) < 100
    assert torch.equal(chosen.indices, torch.as_tensor(theirs.indices))
    assert chosen.details["separating_epoch"] == theirs.details["separating_epoch"] < EPOCHS
    assert chosen.details["early_losses"] == pytest.approx(list(theirs.details["early_losses"]), rel=1e-5)
    assert torch.allclose(weights(trainer.model.net), weights(useful_run.model), rtol=1e-4, atol=1e-6)
    saved = np.load(tmp_path / "selection.npz")
    assert saved["indices"].tolist() == chosen.indices.tolist()


def test_useful_shows_each_stage_what_it_should(tmp_path):
    trainer = build(UsefulTrainer, tmp_path, arguments_of={"save_strategy": "no"}, separating_epoch=2, factor=3)
    trainer.train()
    early, hard = 2 * -(-200 // BATCH), trainer.selection.indices
    seen = trainer.model.seen
    counts = torch.bincount(torch.tensor(list(chain(*seen[:early]))), minlength=200)
    assert counts.tolist() == [2] * 200
    counts = torch.bincount(torch.tensor(list(chain(*seen[early:]))), minlength=200)
    expected = torch.full((200,), EPOCHS)
    expected[hard] *= 3
    assert torch.equal(counts, expected)
    assert trainer.state.max_steps == trainer.state.global_step == len(seen) - early
    assert not (tmp_path / "early").exists()


STEPWISE = {"save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that keeps a checkpoint of every step."""
    trainer = build(UsefulTrainer, tmp_path_factory.mktemp("whole"), arguments_of=STEPWISE, separating_epoch=2)
    trainer.train()
    return trainer


@pytest.mark.parametrize("step", ["early/checkpoint-5", "early/checkpoint-13", "early/checkpoint-26", "checkpoint-20"])
def test_useful_resumes_in_either_stage(tmp_path, whole, step):
    """Within an early epoch, at the last step of one, after the last step of the stage, and in the second stage."""
    checkpoint = Path(whole.args.output_dir) / step
    early = checkpoint.parent.name == "early"
    folder = tmp_path / ("early" if early else "")
    shutil.copytree(checkpoint, folder / checkpoint.name)
    if early:
        shutil.copy(checkpoint.parent / "initial.pt", folder)
    resumed = build(UsefulTrainer, tmp_path, arguments_of={"save_strategy": "no"}, separating_epoch=2)
    with torch.no_grad():
        resumed.model.net[0].weight.add_(1.0)  # the weights to begin with are the saved ones
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(resumed.selection.indices, whole.selection.indices)
    assert resumed.selection.details["early_losses"] == whole.selection.details["early_losses"]
    assert torch.equal(weights(resumed.model), weights(whole.model))
    done = int(checkpoint.name.rpartition("-")[2]) + (0 if early else 26)
    assert resumed.model.seen == whole.model.seen[done:]


def test_useful_with_sam_and_accumulation_observes_the_first_pass(tmp_path):
    class Both(UsefulMixin, SAMMixin, transformers.Trainer):
        pass

    options = {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    trainer = build(Both, tmp_path, arguments_of=options, perturb=lambda base: evenly.SAM(base, rho=0.05))
    trainer.train()

    def sam(params):
        return evenly.SAM(sgd(params), rho=0.05)

    settings = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": "constant", "select": "last", "evaluate_every": None}
    run = evenly.train(data(), model=network(), method="useful", optimizer=sam, seed=SEED, **settings)
    assert torch.equal(trainer.selection.indices, torch.as_tensor(run.selection.indices))
    assert trainer.selection.details["early_losses"] == pytest.approx(
        list(run.selection.details["early_losses"]), rel=1e-5
    )


EXPANSIONS = {"warmup_epochs": 2, "every": 1, "add": 20}
SLOW = 0.01
"""A learning rate with which the worst group of validation is best after three expansions."""


def pde(folder, **options):
    selecting = {
        "learning_rate": SLOW, "eval_strategy": "epoch", "load_best_model_at_end": True,
        "metric_for_best_model": "worst_group",
    } | options  # fmt: skip
    return build(
        PDETrainer, folder, arguments_of=selecting, eval_dataset=rows(VALIDATION), groups=TRAIN[2],
        validation_groups=VALIDATION[2], **EXPANSIONS,
    )  # fmt: skip


def test_pde_selects_what_evenly_train_does(tmp_path):
    trainer = pde(tmp_path)
    trainer.train()
    run = in_evenly("pde", lr=SLOW, select="worst-group-argmax", **EXPANSIONS)
    assert trainer._begun(trainer.state.best_global_step) == 5
    assert len(trainer.selection.indices) == 4 * 20 + 3 * 20
    assert torch.equal(trainer.selection.indices, torch.as_tensor(run.selection.indices))
    for name in ("entered_at_epoch", "ever_added", "ever_added_at_epoch"):
        assert trainer.selection.details[name].tolist() == list(run.selection.details[name])
    validation = [row["validation"] for row in run.history]
    logged = [row for row in trainer.state.log_history if "eval_worst_group" in row]
    assert [row["eval_worst_group"] for row in logged] == [row["worst_group"] for row in validation]
    assert [row["eval_mean"] for row in logged] == [row["accuracy"] for row in validation]
    assert [row["eval_weighted"] for row in logged] == [row["train_weighted"] for row in validation]
    assert torch.allclose(weights(trainer.model.net), weights(run.model), rtol=1e-4, atol=1e-6)


def test_pde_breaks_ties_by_the_average(tmp_path):
    trainer = pde(tmp_path)
    values = iter([(0.5, 0.6), (0.5, 0.8), (0.5, 0.7), (0.4, 0.9), (0.5, 0.8), (0.5, 0.8)])

    def metrics(prediction):
        return dict(zip(("worst_group", "mean"), next(values), strict=True))

    trainer.compute_metrics = metrics
    trainer.train()
    epoch = trainer._begun(trainer.state.best_global_step)
    assert epoch == 2
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{trainer.state.best_global_step}")
    assert len(trainer.selection.indices) == 4 * 20  # the balanced set: the smallest group has 20


def test_what_cannot_work_is_refused(tmp_path):
    class Wrong(SAMMixin, UsefulMixin, transformers.Trainer):
        pass

    with pytest.raises(EvenlyError, match="put UsefulMixin first"):
        build(Wrong, tmp_path)
    with pytest.raises(EvenlyError, match="auto_find_batch_size=True cannot go back"):
        build(UsefulTrainer, tmp_path, arguments_of={"auto_find_batch_size": True})
    with pytest.raises(EvenlyError, match="at most 6, the number of epochs"):
        build(UsefulTrainer, tmp_path, separating_epoch=7).train()
    with pytest.raises(EvenlyError, match="there is no checkpoint in"):
        build(UsefulTrainer, tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(EvenlyError, match="give load_best_model_at_end=True, metric_for_best_model='worst_group'"):
        pde(tmp_path, load_best_model_at_end=False)
    with pytest.raises(EvenlyError, match="max_steps cannot be used"):
        pde(tmp_path, max_steps=3)
    with pytest.raises(EvenlyError, match="10 groups for 200 training examples"):
        build(PDETrainer, tmp_path, groups=TRAIN[2][:10])
