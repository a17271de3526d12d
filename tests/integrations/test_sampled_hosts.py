"""In Trainer, accelerate and a plain DDP loop every example is seen as often as the sampler says, in one process and in
several, across an expansion of PDE and across a resume with another number of processes. Counted in the model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import evenly
from evenly.errors import EvenlyError

transformers = pytest.importorskip(
    "transformers", reason="needs transformers and accelerate: pip install 'evenly[transformers]'"
)
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'evenly[transformers]'")

from accelerate import Accelerator  # noqa: E402

from evenly.integrations.accelerate import prepare_loader  # noqa: E402
from evenly.integrations.transformers import SampledTrainer  # noqa: E402

WORKER = Path(__file__).with_name("sampled_worker.py")
spec = importlib.util.spec_from_file_location("sampled_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

HOSTS = ("trainer", "prepare_loader", "accelerate", "plain")
WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By number of processes, what each of them noted."""
    folder = tmp_path_factory.mktemp("sampled")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenly.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, WORKER, folder], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return {
        world: [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
        for world in WORLDS
    }


def steps(results, world, name, stop, host):
    """The examples of each step, of all processes together."""
    seen = [rank[name, stop][host] for rank in results[world]]
    return [list(chain(*parts)) for parts in zip(*seen, strict=True)]


def expected(name, world, host, epoch):
    """The sampler's epoch, and the padding: of accelerate's own sharding up to the last whole step, else up to a
    multiple of the number of processes."""
    sampler = worker.SAMPLERS[name]()
    sampler.set_epoch(epoch)
    indices = sampler.indices().tolist()
    multiple = worker.TOGETHER if host == "accelerate" and world > 1 else world
    return Counter(indices + indices[: -len(indices) % multiple])


def counted(name, steps):
    """Counts by epoch of a run's steps."""
    lengths, epochs = worker.lengths(worker.SAMPLERS[name]()), []
    for length in lengths:
        count = -(-length // worker.TOGETHER)
        epochs.append(Counter(chain(*steps[:count])))
        steps = steps[count:]
    assert not steps
    return epochs


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", worker.SAMPLERS)
def test_every_example_is_seen_as_often_as_the_sampler_says(results, name, world, host):
    epochs = counted(name, steps(results, world, name, None, host))
    assert epochs == [expected(name, world, host, epoch) for epoch in range(worker.EPOCHS)]


def test_the_epochs_of_pde_grow_in_these_runs():
    lengths = worker.lengths(worker.SAMPLERS["pde"]())
    assert lengths[worker.WARMUP - 1] < lengths[worker.WARMUP] < lengths[-1]
    assert [worker.place_of(worker.SAMPLERS["pde"](), stop)[0] for stop in worker.STOPS] == [1, 2]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("stop", worker.STOPS)
def test_a_run_of_two_processes_goes_on_with_one_two_or_four(results, stop, world, host):
    before = steps(results, 2, "pde", None, host)[:stop]
    epochs = counted("pde", before + steps(results, world, "pde", stop, host))
    first, _ = worker.place_of(worker.SAMPLERS["pde"](), stop)
    assert epochs == [expected("pde", 2 if e < first else world, host, e) for e in range(worker.EPOCHS)]


@pytest.mark.parametrize("host", ["trainer", "prepare_loader", "plain"])
def test_a_step_of_two_processes_has_the_examples_of_one(results, host):
    one, two = (steps(results, world, "pde", None, host) for world in (1, 2))
    assert all(not Counter(a) - Counter(b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("world", [1, 2])
def test_metrics_are_those_of_group_accuracy(results, world):
    model = worker.Model().eval()
    for rank in results[world]:
        for (count, by_name), reported in rank["metrics"].items():
            data = worker.rows(count)
            outputs = torch.stack([model.net(row["x"]) for row in data])
            labels = torch.tensor([row["labels"] for row in data])
            result = evenly.group_accuracy(outputs, labels, torch.arange(count) % 3, worker.GROUPS)
            assert reported["eval_worst_group"] == result.worst
            assert reported["eval_mean"] == result.mean
            assert by_name or reported["eval_weighted"] == result.weighted


def test_useful_chooses_the_same_with_any_number_of_processes(results):
    """And what evenly.train chooses; resumed from the middle of an early epoch of two processes."""
    [first, second] = results[2]
    run = worker.methods().in_evenly("useful", select="last", evaluate_every=None)
    assert torch.equal(first["useful"]["chosen"], torch.as_tensor(run.selection.indices))
    assert (200 + len(first["useful"]["chosen"])) % 4 == 2
    assert torch.equal(first["useful"]["chosen"], second["useful"]["chosen"])
    assert torch.equal(first["useful"]["weights"], second["useful"]["weights"])
    for world in WORLDS:
        for rank in results[world]:
            assert torch.equal(rank["resumed useful"]["chosen"], first["useful"]["chosen"])
            assert rank["resumed useful"]["losses"] == pytest.approx(first["useful"]["losses"], rel=1e-5)
            if world < 4:  # whose epochs have padding
                near = {"rtol": 1e-4, "atol": 1e-6}
                assert torch.allclose(rank["resumed useful"]["weights"], first["useful"]["weights"], **near)


def sampled(folder, data=None, sampler=None, batch=4, **options):
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": batch, "num_train_epochs": 2, "report_to": [],
        "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False,
        "save_strategy": "steps", "save_steps": 3,
    } | options  # fmt: skip
    args = transformers.TrainingArguments(**settings)
    sampler = worker.SAMPLERS["pde"]() if sampler is None else sampler
    trainer = SampledTrainer(worker.Model(), args, train_dataset=data or worker.rows(), train_sampler=sampler)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


class Stream(IterableDataset):
    def __iter__(self):
        return iter(worker.rows())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy='group_by_length' would change"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last=True would change"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True would change"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True would change"),
        ({"data": Stream(), "max_steps": 3}, "a Stream is read in its own order"),
        ({"data": worker.rows(10)}, "train_sampler is of 40 examples, and train_dataset has 10"),
        ({"sampler": torch.utils.data.SequentialSampler(range(3))}, "a SequentialSampler cannot be divided"),
        ({"sampler": evenly.Upsample([], total=0)}, "an epoch of train_sampler has no examples"),
    ],
)
def test_what_would_change_the_counts_is_refused(tmp_path, options, message):
    with pytest.raises(EvenlyError, match=message) as caught:
        sampled(tmp_path, **options).train()
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    sampled(tmp_path).train()
    checkpoint = tmp_path / "checkpoint-3"
    other = evenly.ProgressiveExpansion(worker.GROUPS, warmup_epochs=2, every=1, add=5, seed=9)
    with pytest.raises(EvenlyError, match="had 4 examples per step and this run has 6"):
        sampled(tmp_path, batch=6).train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(EvenlyError, match=r"draws other examples than this run's ProgressiveExpansion \(seed 9\)"):
        sampled(tmp_path, sampler=other).train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(EvenlyError, match="ignore_data_skip=True would show the first 12 examples of epoch 0"):
        sampled(tmp_path, ignore_data_skip=True).train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "sampler.json").unlink()
    with pytest.raises(EvenlyError, match=r"has no sampler.json"):
        sampled(tmp_path).train(resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [({"num_train_epochs": 2.5}, 3, 6 + 6 + 4), ({"max_steps": 14}, 3, 14), ({"max_steps": 12}, 2, 12)],
)
def test_a_run_may_end_within_an_epoch(tmp_path, options, epochs, steps):
    trainer = sampled(tmp_path, save_strategy="no", **options)  # epochs of 24, 24 and 29 examples, 4 in a step
    trainer.train()
    assert (trainer.state.num_train_epochs, trainer.state.global_step) == (epochs, steps)
    assert len(trainer.model.seen) == steps


def test_what_prepare_loader_refuses():
    sampler, accelerator = evenly.Upsample([], total=40), Accelerator(cpu=True)
    with pytest.raises(EvenlyError, match="got a Upsample; give DataLoader"):
        prepare_loader(accelerator, DataLoader(worker.rows(), sampler=sampler))
    with pytest.raises(EvenlyError, match="drop_last=True would change how often"):
        prepare_loader(accelerator, DataLoader(worker.rows(), 3, sampler=evenly.Sharded(sampler), drop_last=True))
    with pytest.raises(EvenlyError, match="is for 2 processes and the accelerator has 1"):
        prepare_loader(accelerator, DataLoader(worker.rows(), sampler=evenly.Sharded(sampler, 0, 2)))


@pytest.mark.parametrize("name", ["accelerate_loop.py", "ddp_loop.py", "transformers_useful.py"])
def test_the_examples_run(plain, name):
    assert "worst group" in plain.example(name)
