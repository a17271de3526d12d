"""evenly's optimizers in Lightning's own loop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset

from evenly.errors import EvenlyError

pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")
torchmetrics = pytest.importorskip("torchmetrics", reason="comes with Lightning: pip install 'evenly[lightning]'")

from lightning.pytorch.plugins import MixedPrecision, Precision  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision  # noqa: E402

from evenly.integrations.lightning import SAMCallback, callbacks  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
]


def loss_of(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


class Net(pl.LightningModule):
    """Logs and counts in training_step as users do, and records what its hooks see."""

    def __init__(self, net, method="sam", base=None, schedule=False):
        super().__init__()
        self.net, self.method, self.schedule = net, method, schedule
        self.base = base or (lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=0.01))
        self.methods = {}
        self.accuracy = MulticlassAccuracy(3, average="micro")
        several = {"a": MulticlassAccuracy(3, average="macro"), "b": MulticlassPrecision(3, average="macro")}
        self.several = torchmetrics.MetricCollection(several)
        self.listed = torchmetrics.CatMetric()
        self.runs, self.clipped, self.before_step, self.returned, self.second = 0, 0, [], [], []

    def on_train_batch_start(self, batch, batch_idx):
        torch.manual_seed(self.global_step)

    def training_step(self, batch, batch_idx):
        self.runs += 1
        self.second.append(getattr(self.optimizers(), "ascended", False))
        x, y = batch
        outputs = self.net(x)
        loss = nn.functional.cross_entropy(outputs, y)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(y))
        self.log("sum", torch.tensor(float(len(y))), on_step=False, on_epoch=True, reduce_fx="sum")
        self.accuracy(outputs, y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log_dict(self.several(outputs, y))
        self.listed.update(loss.detach())
        return {"loss": loss, "run": self.runs}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.returned.append((float(outputs["loss"]), outputs["run"]))

    def on_before_optimizer_step(self, optimizer):
        self.before_step.append((optimizer.ascended, torch.is_grad_enabled()))

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clipped += 1
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self):
        opt = self.methods[self.method](self.base(self.net.parameters()), self.net[-1])
        if not self.schedule:
            return opt
        scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.9)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Notes(pl.Callback):
    """The metrics after each batch, as a logger would get them."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rows.append({name: float(value) for name, value in trainer.logged_metrics.items()})


@pytest.fixture
def problem(plain):
    """Five batches of eight, a Lightning module and a plain network with the same start, and a Trainer."""

    def make(method="sam", callback=True, epochs=1, **options):
        module_options = {name: options.pop(name) for name in ("base", "schedule") if name in options}
        module = Net(plain.net(), method, **module_options)
        module.methods = plain.methods
        x, y = plain.data()
        dtype = torch.float64 if options.get("precision") == "64-true" else torch.float32
        x = x.to(dtype)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        extra = options.pop("callbacks", [])
        settings = {"max_epochs": epochs, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        settings |= {"enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1} | options
        trainer = pl.Trainer(callbacks=[*([SAMCallback()] if callback else []), *extra], **settings)
        net = plain.net().to(dtype)
        opt = plain.methods[method](module.base(net.parameters()), net[-1])
        return SimpleNamespace(
            module=module, trainer=trainer, loader=loader, net=net, opt=opt, batches=list(loader) * epochs
        )

    return make


def fit(p, **kwargs):
    p.trainer.fit(p.module, p.loader, **kwargs)


def compare(p, plain, loss=None, **options):
    """Fit, and compare the weights with the plain loop's over the same batches; its losses."""
    fit(p)
    losses = plain.loop(p.net, p.opt, p.batches, loss or loss_of, **options)
    assert plain.same(p.module.net, p.net)
    return losses


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("method", ["sam", "asam", "lsam", "random"])
def test_the_weights_are_the_plain_loops(problem, plain, method, precision):
    p = problem(method, precision=precision, epochs=2)
    autocast = {"autocast": lambda: torch.autocast("cpu", torch.bfloat16)} if precision == "bf16-mixed" else {}
    compare(p, plain, **autocast)
    assert not torch.equal(p.net[0].weight, plain.net().to(p.net[0].weight.dtype)[0].weight)


def test_adamw_and_asam_over_groups_with_their_own_rho(problem, plain):
    def base(params):
        params = list(params)
        groups = [{"params": params[:2], "rho": 0.1}, {"params": params[2:], "weight_decay": 0.1}]
        return torch.optim.AdamW(groups, lr=0.05)

    p = problem("asam", base=base, epochs=2)
    compare(p, plain)


@pytest.mark.parametrize("method", ["sam", "lsam"])
def test_accumulation_is_the_plain_loops_over_the_same_batches(problem, plain, method):
    """Five batches in twos: the last step has one, and Lightning divides it by two as well."""
    p = problem(method, accumulate_grad_batches=2, epochs=2)
    fit(p)
    for _ in range(2):
        plain.loop(p.net, p.opt, p.batches[:5], loss_of, accumulate=2)
    assert plain.same(p.module.net, p.net)
    assert p.trainer.global_step == 6


CLIPS = {
    "value": lambda params: nn.utils.clip_grad_value_(params, 0.02),
    "norm": lambda params: nn.utils.clip_grad_norm_(params, 0.02),
}


@pytest.mark.parametrize("how", CLIPS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_clipping_acts_on_the_second_pass_only(problem, plain, how, accumulate):
    p = problem(gradient_clip_val=0.02, gradient_clip_algorithm=how, accumulate_grad_batches=accumulate)
    compare(p, plain, clip=CLIPS[how], accumulate=accumulate)
    assert p.module.clipped == p.trainer.global_step


def test_without_the_callback_clipping_by_value_would_act_on_both(problem, plain):
    """What the callback is for; if Lightning ever changes this, it can go."""
    p = problem(gradient_clip_val=0.02, gradient_clip_algorithm="value", callback=False)
    fit(p)
    plain.loop(p.net, p.opt, p.batches, loss_of, clip=CLIPS["value"])
    assert not plain.same(p.module.net, p.net)


def test_on_before_optimizer_step_runs_once_with_the_weights_in_place(problem):
    p = problem()
    fit(p)
    assert p.module.before_step == [(False, True)] * 5
    assert p.module.second == [False, True] * 5


def test_what_is_logged_and_returned_is_the_first_pass_once(problem, plain):
    notes = Notes()
    p = problem(callbacks=[notes])
    losses = compare(p, plain)
    assert [row["loss_step"] for row in notes.rows] == losses
    assert p.module.returned == [(loss, 2 * i + 1) for i, loss in enumerate(losses)]
    logged = p.trainer.logged_metrics
    assert float(logged["loss_epoch"]) == pytest.approx(sum(losses) / 5, abs=1e-6)
    assert float(logged["sum"]) == 40
    assert p.module.listed.compute().tolist() == losses


def test_metrics_count_each_example_once(problem, plain):
    p = problem()
    first = torchmetrics.MetricCollection({"a": MulticlassAccuracy(3, average="macro")})
    micro = MulticlassAccuracy(3, average="micro")

    def noting(model, batch):
        outputs = model(batch[0])
        if not p.opt.ascended:
            first.update(outputs, batch[1])
            micro.update(outputs, batch[1])
        return nn.functional.cross_entropy(outputs, batch[1])

    compare(p, plain, noting)
    assert float(p.trainer.logged_metrics["accuracy"]) == pytest.approx(float(micro.compute()), abs=1e-7)
    assert torch.equal(p.module.several.compute()["a"], first.compute()["a"])
    stat = p.module.several["a"]
    assert int(stat.tp.sum() + stat.fn.sum()) == 40
    assert stat.update_count == 5


def test_a_step_counts_once_and_so_does_the_scheduler(problem, plain):
    p = problem(schedule=True)
    scheduler = torch.optim.lr_scheduler.StepLR(p.opt, step_size=1, gamma=0.9)
    compare(p, plain, after_step=scheduler.step)
    assert p.trainer.global_step == 5
    assert p.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.2 * 0.9**5)


def half_precision(**scaler):
    return MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu", **scaler))


def in_float16(**scaler):
    """The same for the plain loop."""
    return {"scaler": GradScaler("cpu", **scaler), "autocast": lambda: torch.autocast("cpu", torch.float16)}


@pytest.mark.parametrize("method", ["sam", "asam"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_16_mixed_is_the_plain_loop_with_a_scaler(problem, plain, method, accumulate):
    clip = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}
    p = problem(method, plugins=[half_precision(init_scale=1024.0)], accumulate_grad_batches=accumulate, **clip)
    by_value = {"clip": lambda params: nn.utils.clip_grad_value_(params, 0.1)}
    compare(p, plain, accumulate=accumulate, **in_float16(init_scale=1024.0), **by_value)


@pytest.mark.parametrize("overflow_in", [1, 2])
def test_16_mixed_skips_the_step_and_lowers_the_scale(problem, plain, overflow_in):
    plugin = half_precision(init_scale=2.0, growth_interval=1000)
    p = problem(plugins=[plugin], limit_train_batches=1)
    plain_step = p.module.training_step

    def training_step(batch, batch_idx):
        output = plain_step(batch, batch_idx)
        if p.module.runs == overflow_in:
            output["loss"] = output["loss"] * float("inf")
        return output

    p.module.training_step = training_step
    fit(p)
    assert [p_.tolist() for p_ in p.module.net.parameters()] == [p_.tolist() for p_ in plain.net().parameters()]
    assert plugin.scaler.get_scale() == 1.0
    assert p.module.runs == overflow_in
    assert not p.trainer.optimizers[0].state


def test_16_mixed_around_a_fused_base_is_refused(problem):
    p = problem(plugins=[half_precision()], base=lambda params: torch.optim.AdamW(params, fused=True))
    with pytest.raises(EvenlyError, match=r"fused AdamW.*fused=False"):
        fit(p)


@pytest.mark.parametrize("method", ["sam", "asam"])
def test_resuming_is_exact(problem, plain, method, tmp_path):
    whole = problem(method, epochs=4, schedule=True)
    fit(whole)
    half = problem(method, epochs=2, schedule=True)
    fit(half)
    half.trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = problem(method, epochs=4, schedule=True)
    fit(resumed, ckpt_path=tmp_path / "half.ckpt")
    assert plain.same(resumed.module.net, whole.module.net)
    assert resumed.trainer.global_step == 20


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_resuming_between_accumulated_batches_starts_a_step_anew(problem, plain, tmp_path):
    """The gradients before the checkpoint are lost, as Lightning has it: the first step has the second batch alone."""

    class Save(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 0:
                trainer.save_checkpoint(tmp_path / "between.ckpt")

    fit(problem(accumulate_grad_batches=2, callbacks=[Save()]))
    p = problem(accumulate_grad_batches=2)
    seen = {}
    p.module.on_train_batch_start = lambda batch, batch_idx: seen.setdefault(batch_idx // 2, []).append(batch)
    fit(p, ckpt_path=tmp_path / "between.ckpt")
    assert [len(window) for window in seen.values()] == [1, 2, 1]
    state = torch.load(tmp_path / "between.ckpt", weights_only=True)["state_dict"]
    p.net.load_state_dict({name[4:]: value for name, value in state.items() if name.startswith("net.")})
    for window in seen.values():
        plain.loop(p.net, p.opt, window, loss_of, accumulate=2)
    assert plain.same(p.module.net, p.net)


class Manual(Net):
    """Manual optimization: the module calls step(closure) itself, and its closure returns nothing, as in the docs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()

        def closure():
            self.runs += 1
            opt.zero_grad()
            loss = loss_of(self.net, batch)
            self.log("loss", loss, on_epoch=True, on_step=True)
            self.manual_backward(loss)

        opt.step(closure=closure)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


@pytest.mark.parametrize("half", [False, True])
def test_manual_optimization_is_the_plain_loop(problem, plain, half):
    notes = Notes()
    p = problem(callbacks=[notes], **({"plugins": [half_precision(init_scale=256.0)]} if half else {}))
    p.module = Manual(p.module.net)
    p.module.methods = plain.methods
    losses = compare(p, plain, **(in_float16(init_scale=256.0) if half else {}))
    assert p.trainer.global_step == 5
    assert [row["loss_step"] for row in notes.rows] == losses


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_training_step_skips_is_skipped(problem, plain, accumulate):
    p = problem(accumulate_grad_batches=accumulate, limit_train_batches=4)
    plain_step = p.module.training_step

    def training_step(batch, batch_idx):
        return None if batch_idx in (1, 2) else plain_step(batch, batch_idx)

    p.module.training_step = training_step
    p.module.on_train_batch_end = lambda *_: None
    fit(p)
    # batches 0 and 3 are each alone in their window
    plain.loop(p.net, p.opt, [p.batches[0], p.batches[3]], loss_of, normalize=lambda _: accumulate)
    assert plain.same(p.module.net, p.net)


def test_accumulation_with_random_perturbation_is_refused(problem, plain):
    p = problem("random", accumulate_grad_batches=2)
    with pytest.raises(EvenlyError, match="accumulate_grad_batches=2 with RandomPerturbation"):
        fit(p)
    assert plain.same(p.module.net, plain.net())


def test_a_training_step_that_fetches_for_itself_is_refused(problem):
    p = problem()
    p.module.training_step = lambda dataloader_iter: None
    with pytest.raises(EvenlyError, match=r"training_step\(dataloader_iter\)"):
        fit(p)


def test_a_precision_plugin_that_steps_its_own_way_is_refused(problem):
    class Own(Precision):
        def optimizer_step(self, optimizer, model, closure, **kwargs):
            return super().optimizer_step(optimizer, model, closure, **kwargs)

    with pytest.raises(EvenlyError, match="precision plugin Own"):
        fit(problem(plugins=[Own()]))


def test_weights_split_over_devices_are_refused(plain):
    class FSDPStrategy:  # building Lightning's own needs a GPU
        precision_plugin = Precision()

    opt = plain.methods["sam"](torch.optim.SGD(plain.net().parameters()), None)
    trainer = SimpleNamespace(optimizers=[opt], strategy=FSDPStrategy())
    with pytest.raises(EvenlyError, match=r"SAM with FSDPStrategy.*'ddp'"):
        SAMCallback().on_fit_start(trainer, Net(plain.net()))


def test_twice_in_the_list_is_as_once_and_nothing_is_left_behind(problem, plain):
    p = problem(callbacks=callbacks())
    compare(p, plain)
    assert "optimizer_step" not in vars(p.trainer.strategy.precision_plugin)
    assert "log" not in vars(p.module)


def test_as_an_entry_point_every_trainer_has_it(tmp_path, monkeypatch):
    """As an installed evenly may declare it: Lightning looks for factories of callbacks."""
    folder = tmp_path / "declares-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: declares\nVersion: 0\n")
    entry = "[lightning.pytorch.callbacks_factory]\nevenly = evenly.integrations.lightning:callbacks\n"
    (folder / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert any(isinstance(callback, SAMCallback) for callback in trainer.callbacks)


def test_nothing_is_left_behind_by_a_run_that_fails(problem):
    p = problem()
    plain_step = p.module.training_step

    def training_step(batch, batch_idx):
        if p.module.runs == 3:
            raise ValueError("in the second pass of the second step")
        return plain_step(batch, batch_idx)

    p.module.training_step = training_step
    with pytest.raises(ValueError, match="second pass"):
        fit(p)
    assert "optimizer_step" not in vars(p.trainer.strategy.precision_plugin)
    assert "log" not in vars(p.module)
    assert p.module.accuracy.update_count == 2
    assert not p.trainer.optimizers[0].ascended


def test_other_optimizers_are_left_alone(problem, plain):
    p = problem(gradient_clip_val=0.1)
    p.module.configure_optimizers = lambda: torch.optim.SGD(p.module.net.parameters(), lr=0.2)
    p.module.on_before_optimizer_step = lambda *_: None
    fit(p)
    opt = torch.optim.SGD(p.net.parameters(), lr=0.2)
    for batch in p.batches:
        opt.zero_grad()
        loss_of(p.net, batch).backward()
        nn.utils.clip_grad_norm_(p.net.parameters(), 0.1)
        opt.step()
    assert plain.same(p.module.net, p.net)


def test_the_example_runs(plain):
    assert "worst group" in plain.example("lightning_sam.py")


def test_stochastic_weight_averaging_updates_normalization(problem):
    averaging = pl.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=2)
    p = problem(callbacks=[averaging], epochs=4)
    p.module.on_train_batch_end = lambda *_: None  # there is no result to note in the epoch without training
    fit(p)
    assert all(parameter.isfinite().all() for parameter in p.module.net.parameters())
