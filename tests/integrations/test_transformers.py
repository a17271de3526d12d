"""evenly's optimizers in transformers' Trainer."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

transformers = pytest.importorskip(
    "transformers", reason="needs transformers and accelerate: pip install 'evenly[transformers]'"
)
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'evenly[transformers]'")

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback  # noqa: E402

from evenly.integrations.transformers import SAMMixin, SAMTrainer  # noqa: E402


def tiny_bert(dropout=0.0):
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12, num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(3)
    return BertForSequenceClassification(config)


class Normalized(nn.Module):
    """Not a transformer: it has running statistics, and Trainer divides its loss by the number of batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, input_ids, labels):
        logits = self.net(input_ids.to(self.net[0].weight.dtype) / 30)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PerItem(Normalized):
    """Divides its loss itself, by the number of examples in all batches of the step, which Trainer tells it."""

    def forward(self, input_ids, labels, num_items_in_batch=None, **kwargs):
        logits = self.net(input_ids.to(self.net[0].weight.dtype) / 30)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": loss / num_items_in_batch, "logits": logits}


def examples(n=20):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 30, (n, 6), generator=generator)
    return [{"input_ids": row, "labels": int(row.sum()) % 3} for row in ids]


METHODS = {
    "sam": partial(SAM, rho=0.3),
    "asam": partial(ASAM, rho=0.8),
    "random": partial(RandomPerturbation, sigma=0.05),
}


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


class Seeded(TrainerCallback):
    """Seeds every step with its number, as the plain loop does."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.manual_seed(state.global_step)


@pytest.fixture
def make(tmp_path):
    """A trainer, the batches it saw in their order, and the loss that a plain loop computes from them."""

    def build(model=None, method="sam", n=20, trainer=SAMTrainer, perturbed=True, seeded=True, **options):
        model = tiny_bert() if model is None else model
        seen = []

        def collate(rows):
            batch = {
                "input_ids": torch.stack([row["input_ids"] for row in rows]),
                "labels": torch.tensor([row["labels"] for row in rows]),
            }
            seen.append({name: tensor.clone() for name, tensor in batch.items()})
            return batch

        extra = {name: options.pop(name) for name in ("optimizers", "perturb", "compute_loss_func", "model_init")
                 if name in options}  # fmt: skip
        if perturbed and not extra.keys() & {"optimizers", "perturb"}:
            extra["optimizers"] = (METHODS[method](sgd(model.parameters())), None)
        settings = {
            "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4, "num_train_epochs": 1,
            "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "report_to": [], "save_strategy": "no",
            "logging_steps": 1, "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False,
        } | options  # fmt: skip
        args = transformers.TrainingArguments(**settings)
        built = trainer(
            None if "model_init" in extra else model, args, train_dataset=examples(n), data_collator=collate,
            callbacks=[Seeded()] if seeded else [], **extra,
        )  # fmt: skip
        built.remove_callback(transformers.PrinterCallback)
        return SimpleNamespace(trainer=built, model=model, seen=seen)

    return build


def loss_of(model, batch):
    return model(**batch)["loss"]


def logged(p, name):
    return [row[name] for row in p.trainer.state.log_history if name in row]


def near(values):
    return pytest.approx(values, abs=1e-6)


def sam(net):
    return SAM(sgd(net.parameters()), rho=0.3)


def compare(p, plain, net=None, wrap=sam, loss=loss_of, **options):
    """Train, and compare the weights with the plain loop's over the same batches; its losses."""
    p.trainer.train()
    net = tiny_bert() if net is None else net
    losses = plain.loop(net, wrap(net), p.seen, loss, **options)
    assert plain.same(p.trainer.model, net)
    return losses


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_the_weights_are_the_plain_loops(make, plain, method, accumulate):
    """Trainer does not divide BERT's accumulated loss: its forward takes any keyword, so it might do so itself."""
    p = make(method=method, gradient_accumulation_steps=accumulate)
    options = {"accumulate": accumulate, "normalize": lambda _: 1}
    losses = compare(p, plain, wrap=lambda net: METHODS[method](sgd(net.parameters())), **options)
    assert not plain.same(p.trainer.model, tiny_bert())
    assert logged(p, "loss") == near(losses)
    assert p.trainer.state.global_step == len(losses)


def test_without_the_passes_the_weights_are_others(make, plain):
    """The comparison above can fail: plain SGD goes elsewhere."""
    p = make()
    p.trainer.train()
    plain_trainer = make(trainer=Trainer, perturbed=False, optimizers=(None, None), optim="sgd")
    plain_trainer.trainer.train()
    assert not plain.same(p.trainer.model, plain_trainer.trainer.model)


def test_the_number_of_items_is_that_of_all_batches_in_both_passes(make, plain):
    p = make(PerItem(), gradient_accumulation_steps=2)
    p.trainer.train()
    net = PerItem()
    counts = {id(batch): sum(len(b["labels"]) for b in p.seen[i - i % 2 : i - i % 2 + 2])
              for i, batch in enumerate(p.seen)}  # fmt: skip

    def per_item(model, batch):
        return model(**batch, num_items_in_batch=counts[id(batch)])["loss"]

    losses = plain.loop(net, sam(net), p.seen, per_item, accumulate=2, normalize=lambda _: 1)
    assert plain.same(p.trainer.model, net)
    assert logged(p, "loss") == near(losses)


def test_running_statistics_move_once_for_each_batch(make, plain):
    """20 examples in batches of 4: the last step has one batch and is divided by one."""
    p = make(Normalized(), gradient_accumulation_steps=2)
    compare(p, plain, Normalized(), accumulate=2, normalize=lambda n: n)
    assert int(p.trainer.model.net[1].num_batches_tracked) == 5


def test_lsam_perturbs_its_parameters(make, plain):
    def wrap(net):
        return LSAM(sgd(net.parameters()), net.classifier.parameters(), rho=0.5)

    model = tiny_bert()
    compare(make(model, optimizers=(wrap(model), None)), plain, wrap=wrap)


def test_the_optimizer_of_the_arguments_is_wrapped(make, plain):
    """Trainer's own AdamW, its groups for weight decay, its schedule; no optimizer given."""
    options = {"learning_rate": 0.01, "weight_decay": 0.1, "lr_scheduler_type": "linear", "optim": "adamw_torch"}
    p = make(perturb=partial(SAM, rho=0.2), **options)
    p.trainer.train()
    assert repr(p.trainer.perturbed).startswith("SAM(rho=0.2, base=AdamW")

    reference = make(trainer=Trainer, perturbed=False, **options)
    net = reference.model
    opt = SAM(reference.trainer.create_optimizer(), rho=0.2)
    scheduler = reference.trainer.create_scheduler(5, opt)
    plain.loop(net, opt, p.seen, loss_of, after_step=scheduler.step)
    assert plain.same(p.trainer.model, net)
    assert len(opt.param_groups) == 2
    assert opt.param_groups[0]["weight_decay"] == 0.1


def test_sam_is_the_default(make):
    p = make(perturbed=False)
    p.trainer.train()
    assert isinstance(p.trainer.perturbed, SAM)
    assert p.trainer.perturbed.defaults["rho"] == 0.05


def test_a_model_that_is_built_for_each_train_gets_an_optimizer_each_time(make, plain):
    def fresh():
        return tiny_bert()

    p = make(perturb=partial(SAM, rho=0.3), model_init=fresh, optim="sgd")
    p.trainer.train()
    first, opt = p.trainer.model, p.trainer.perturbed
    p.trainer.train()
    assert p.trainer.perturbed is not opt
    assert p.trainer.model is not first
    assert plain.same(p.trainer.model, first)


def test_a_second_train_goes_on_with_the_same_optimizer(make, plain):
    p = make()
    p.trainer.train()
    p.trainer.train()
    net = tiny_bert()
    opt = sam(net)
    for batches in (p.seen[:5], p.seen[5:]):
        plain.loop(net, opt, batches, loss_of)
    assert plain.same(p.trainer.model, net)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_clipping_acts_on_the_second_pass(make, plain, accumulate):
    p = make(max_grad_norm=0.05, gradient_accumulation_steps=accumulate)
    norms = []

    def clip(params):
        norms.append(float(nn.utils.clip_grad_norm_(params, 0.05)))

    compare(p, plain, accumulate=accumulate, normalize=lambda _: 1, clip=clip)
    assert logged(p, "grad_norm") == near(norms)
    assert min(norms) > 0.05


def test_the_scheduler_steps_once(make):
    p = make(lr_scheduler_type="linear", optimizers=(None, None), perturb=SAM, learning_rate=0.5)
    p.trainer.train()
    assert logged(p, "learning_rate") == near([0.5, 0.4, 0.3, 0.2, 0.1])


def test_a_scheduler_of_ones_own(make, plain):
    opt, mine = sam(model := tiny_bert()), sam(net := tiny_bert())
    p = make(model, optimizers=(opt, torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)))
    scheduler = torch.optim.lr_scheduler.StepLR(mine, 1, 0.5)
    compare(p, plain, net, lambda _: mine, after_step=scheduler.step)


def loss_in(dtype):
    def loss_of(model, batch):
        with torch.autocast("cpu", dtype):
            return model(**batch)["loss"].float()

    return loss_of


def test_bf16_is_the_plain_loop_under_autocast(make, plain):
    compare(make(bf16=True), plain, loss=loss_in(torch.bfloat16))


def scaled(p, **options):
    """fp16=True needs a GPU, says Accelerate; set from within it runs on the CPU as well."""
    accelerator = p.trainer.accelerator
    accelerator.scaler = GradScaler("cpu", **options)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    return accelerator.scaler


@pytest.fixture
def accelerate_as_before():
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("accelerate_as_before")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_fp16_is_the_plain_loop_with_a_scaler(make, plain, accumulate):
    p = make(max_grad_norm=0.05, gradient_accumulation_steps=accumulate)
    scaled(p, init_scale=512.0)
    options = {"scaler": GradScaler("cpu", init_scale=512.0), "accumulate": accumulate, "normalize": lambda _: 1}
    clip = {"clip": lambda params: nn.utils.clip_grad_norm_(params, 0.05)}
    compare(p, plain, loss=loss_in(torch.float16), **options, **clip)


@pytest.mark.usefixtures("accelerate_as_before")
@pytest.mark.parametrize("overflow_in", [1, 2])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_an_overflow_in_either_pass_skips_the_step(make, plain, overflow_in, max_grad_norm):
    runs = []

    def compute_loss(outputs, labels, num_items_in_batch=None):
        runs.append(True)
        loss = nn.functional.cross_entropy(outputs["logits"], labels)
        return loss * float("inf") if len(runs) == overflow_in else loss

    p = make(compute_loss_func=compute_loss, max_steps=1, max_grad_norm=max_grad_norm, lr_scheduler_type="linear")
    scaler = scaled(p, init_scale=4.0, growth_interval=1000)
    p.trainer.train()
    assert plain.same(p.trainer.model, tiny_bert())
    assert len(runs) == overflow_in
    assert scaler.get_scale() == 2.0
    assert not p.trainer.perturbed.state
    assert not p.trainer.perturbed.ascended
    assert p.trainer.lr_scheduler.last_epoch == 0


@pytest.mark.parametrize("method", ["sam", "random"])
def test_resuming_is_exact(make, plain, method):
    """With dropout, momentum, a schedule, accumulation and shuffled data, from the middle of an epoch."""
    options = {
        "num_train_epochs": 2, "lr_scheduler_type": "linear", "gradient_accumulation_steps": 2, "seeded": False,
        "save_strategy": "steps", "save_steps": 2, "n": 24, "method": method, "learning_rate": 0.1,
    }  # fmt: skip
    whole = make(tiny_bert(dropout=0.2), **options)
    whole.trainer.train()
    resumed = make(tiny_bert(dropout=0.2), **options)
    checkpoint = f"{resumed.trainer.args.output_dir}/checkpoint-2"
    state = torch.load(f"{checkpoint}/optimizer.pt", weights_only=True)
    name = "rho" if method == "sam" else "sigma"
    assert state["param_groups"][0][name] == METHODS[method].keywords[name]
    resumed.trainer.train(resume_from_checkpoint=checkpoint)
    assert whole.trainer.state.global_step == resumed.trainer.state.global_step == 6
    assert plain.same(whole.trainer.model, resumed.trainer.model)


def test_a_plain_trainers_checkpoint_can_be_continued(make, plain):
    """Train plainly, then with SAM: the momentum is loaded, rho is the new one."""
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    before = make(trainer=Trainer, perturbed=False, optim="sgd", optim_args="momentum=0.9", **options)
    before.trainer.train()
    p = make(perturb=partial(SAM, rho=0.3), optim="sgd", optim_args="momentum=0.9", **options | {"max_steps": 4})
    checkpoint = f"{p.trainer.args.output_dir}/checkpoint-2"
    p.trainer.train(resume_from_checkpoint=checkpoint)
    assert p.trainer.state.global_step == 4
    assert all(group["rho"] == 0.3 for group in p.trainer.perturbed.param_groups)


def test_an_epoch_that_ends_in_the_middle_of_a_step_leaves_its_batches_to_the_next_as_trainer_does(make, plain):
    class Ends(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            if state.global_step == 1 and not self.ended:
                self.ended = control.should_epoch_stop = True

    ends = Ends()
    ends.ended = False
    p = make(gradient_accumulation_steps=2, num_train_epochs=2, n=16)
    p.trainer.add_callback(ends)
    p.trainer.train()
    net = tiny_bert()
    opt = sam(net)
    # one step, one batch of the next, the two steps of the second epoch
    steps = [p.seen[0:2], [p.seen[2], *p.seen[-4:-2]], p.seen[-2:]]
    for window in steps:
        plain.loop(net, opt, window, loss_of, accumulate=len(window), normalize=lambda _: 1)
    assert plain.same(p.trainer.model, net)


def test_the_mixin_serves_other_trainers(make, plain):
    class Mine(SAMMixin, Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = nn.functional.cross_entropy(outputs["logits"], labels)
            return (loss, outputs) if return_outputs else loss

    compare(make(trainer=Mine), plain)


def test_what_cannot_work_is_refused(make, monkeypatch):
    with pytest.raises(EvenlyError, match="optim='galore_adamw_layerwise' steps inside backward"):
        make(perturbed=False, optim="galore_adamw_layerwise", optim_target_modules=["attn"])
    with pytest.raises(EvenlyError, match=r"perturb must return .*, got a SGD"):
        make(perturb=lambda base: base, optim="sgd").trainer.train()
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    for kind in ("DEEPSPEED", "FSDP"):
        monkeypatch.setattr(Accelerator, "distributed_type", property(lambda _, kind=kind: DistributedType[kind]))
        with pytest.raises(EvenlyError, match=f"SAMTrainer under {kind}"):
            make()


def test_the_example_runs(plain):
    assert "accuracy" in plain.example("transformers_sam.py")
