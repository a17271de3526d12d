"""One plan to one run: the only place that knows every room it stands on."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from evenly.data import Data, Split, Texts
from evenly.data.examples import preprocessing_of
from evenly.data.images.parts import SMALL_SIDE
from evenly.diagnose.recording import Recorder
from evenly.engine import Fit, Trained, measure, predictions
from evenly.engine.accuracy import intervals, usage
from evenly.engine.batches import Batches
from evenly.engine.checkpoints import Checkpoints, Row
from evenly.engine.evaluation import outputs_of
from evenly.engine.progress import Progress, log
from evenly.engine.world import ALONE, World, current, own_device
from evenly.errors import EvenlyError, EvenlyWarning, lack_of_memory
from evenly.experiment.packages import check_packages
from evenly.experiment.request import uses_inferred
from evenly.files import atomic
from evenly.integrations.loggers import live_log
from evenly.launch import local_processes
from evenly.methods import Inferred, find, infer_groups
from evenly.methods.inferred import Infer, by_class
from evenly.models import Factory, encoded, factory
from evenly.models.standardised import Standardised, scaled
from evenly.optim.registry import builder
from evenly.parallel.processes import cores
from evenly.randomness import derive, isolated, on_threads
from evenly.runs.example_intervals import Correct
from evenly.runs.examples import save_examples
from evenly.runs.folder import Config, RunFolder
from evenly.runs.network import WEIGHTS, NetworkSpec, read_state, save_network
from evenly.runs.plan import Plan
from evenly.runs.results import DataSummary, Measured, RunResult
from evenly.runs.run import InMemory, Recorded, Run, load
from evenly.settings import Execution

Show = Callable[[float, str], None]
OnRow = Callable[[Row], None]
WORTH_THREADS, MOST_THREADS = 1_000_000, 4
"""A network of fewer weights is no faster on several threads; more than these gain little."""


@frozen
class Prepared:
    """A plan's data as its network reads it, what builds the network and how large it is, and the configuration."""

    data: Data
    fresh: Factory
    config: Config
    weights: int


def execute(
    prepared: Prepared,
    out: Path | None,
    execution: Execution,
    progress: Show | None = None,
    keep_failure: bool = False,
    callback: OnRow | None = None,
) -> Run:
    """Run a plan, or go on with it, or read it back where it is finished.

    Args:
        out: the run's folder; None keeps the run in memory.
        progress: called with the share done and a note; a bar on the terminal where not given.
        keep_failure: write the reason into the folder where the run fails.
        callback: called with each row of the metrics as it is written, in the first of several processes.
    """
    device = device_named(execution.device)
    world = current(device)
    threads = world.shared(lambda: prepared.config.threads)  # other machines may have other numbers of cores
    prepared = evolve(prepared, config=evolve(prepared.config, threads=threads))
    _check_alike(prepared.config, world)
    folder = None if out is None else world.on_first(lambda: RunFolder(out, prepared.config))
    log = live_log(execution.log if world.first and execution.engine == "local" else None, out)
    with nullcontext() if folder is None else closing(folder), log as observer:
        on_row = _all_of(observer, callback if world.first else None)
        try:
            return _executed(prepared, out, folder, _Where(device, world, execution, on_row), progress)
        except Exception as error:
            if folder is not None and keep_failure:
                folder.fail(error)
            raise


@frozen
class _Where:
    """Where a run is computed: on which device, with which other processes; and what is called with each row."""

    device: torch.device
    world: World
    execution: Execution
    on_row: OnRow = lambda row: None


def _all_of(*observers: OnRow | None) -> OnRow:
    """A function that calls each of them with a copy of a row, which is then theirs."""

    def on_row(row: Row) -> None:
        for observer in observers:
            if observer is not None:
                observer(deepcopy(row))

    return on_row


def _executed(
    prepared: Prepared, out: Path | None, folder: RunFolder | None, where: _Where, progress: Show | None
) -> Run:
    """The run; of several processes that train it together, the first one has the folder."""
    data, plan, world = prepared.data, prepared.config.plan, where.world
    threads = world.shared(lambda: (prepared.config if folder is None else folder.config).threads)
    config = evolve(prepared.config, threads=threads) if folder is None else folder.config
    if world.shared(lambda: folder is not None and folder.finished):
        assert out is not None
        return world.on_first(lambda: _read_back(prepared, folder, progress)) or load(out, _own_network(prepared))
    with (
        isolated(derive(plan.seed, "train")),
        on_threads(threads),
        Progress(show=progress is None and world.first) as bar,
        memory_explained(plan.settings.batch_size),
    ):
        prepare_folder = (lambda: None) if folder is None else folder.prepare
        checkpoints = None if out is None else Checkpoints(out, prepare_folder, world)
        fit = _fit(plan, prepared, checkpoints, where, progress or bar)
        check_method(plan, data)
        if progress is None:
            from evenly.report.run_words import start_words

            network = f"{config.network.name} ({prepared.weights:,} weights)"
            what = f"{network}, {plan.method.name} with {plan.optimizer.name}"
            log.info("\n".join(start_words(plan, data, what, where.device.type, threads, world.size)))
        trained, inferred = _trained(plan, prepared, fit)
        outputs = _outputs(trained, data, plan)
        results = _results(plan, prepared, trained, outputs, inferred)
        correct = correct_on(outputs, data, results.judged)
    memory = InMemory(trained.history, trained.selection, _recorded(trained), trained.model, correct)
    run = Run(config, results, out, memory)
    world.on_first(lambda: folder and _completed(_kept(folder, run, data, outputs, correct), run))
    return run


def _read_back(prepared: Prepared, folder: RunFolder | None, progress: Show | None) -> Run:
    """A run that is finished in its folder."""
    assert folder is not None
    if progress is None:
        read_state(folder.path / WEIGHTS)  # refused where they are damaged: the run would be of no use
        log.info("read from %s, where this run is finished", folder.path)
    return _completed(folder, load(folder.path, _own_network(prepared)))


def _own_network(prepared: Prepared) -> nn.Module | None:
    """A network of the user's own, which a folder cannot build."""
    return prepared.fresh() if prepared.config.network.own else None


def _check_alike(config: Config, world: World) -> None:
    """Refuse processes that were given different data, models or settings: they would not compute one run."""
    digests = world.gathered(config.digest)
    if others := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        raise EvenlyError(
            f"process {others[0]} of {world.size} has other data, another model or other settings than the first; "
            "start all with the same command on the same data"
        )


def prepare(plan: Plan, data: Data, threads: int | None = None) -> Prepared:
    """Build the network of a plan and try it on the data, so that what does not go together is refused at once.

    Args:
        threads: of a plan that leaves them open; by the network's size where not given.
    """
    check_packages(plan)
    with isolated(derive(plan.seed, "train")), on_threads(1):
        texts = data.train.texts if isinstance(data.train.inputs, Texts) else None
        shape = data.train.example_shape
        fresh, name = factory(plan.model.model, shape, data.classes, plan.seed, texts=texts, **plan.model.options)
        read = encoded(data, fresh()) if texts is not None else data
        fresh = fresh if plan.model.own else scaled(fresh, plan.settings.normalise, read)
        network = fresh()
        _check_network(network, read)
        channels = len(network.mean) if isinstance(network, Standardised) else None
        weights = sum(parameter.numel() for parameter in network.parameters())
        config = Config(
            plan=plan,
            network=NetworkSpec(name, plan.model.options, tuple(shape), data.classes, channels, plan.model.own),
            preprocessing=preprocessing_of(read).to_dict(),
            class_names=DataSummary.of(data).class_names,
            group_names=tuple(data.measured_names),
            fingerprints={"data": data.fingerprint(), "model": fingerprint(network)},
            threads=plan.settings.threads or threads or _threads_for(weights),
        )
    return Prepared(read, fresh, config, weights)


def _threads_for(weights: int) -> int:
    """For a network of so many weights; processes that `torchrun` started share the cores."""
    return 1 if weights < WORTH_THREADS else max(1, min(MOST_THREADS, cores() // local_processes()))


def device_named(name: str) -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        return own_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = own_device(torch.device(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EvenlyError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}); use cpu or auto") from None
    return device


def device_for(execution: Execution) -> torch.device:
    """Where runs are computed. On Ray it is the workers that have GPUs: this machine need not."""
    elsewhere = execution.engine == "ray" and execution.device == "cuda"
    return torch.device("cuda") if elsewhere else device_named(execution.device)


def largest_images(execution: Execution) -> int | None:
    """On a CPU, the side that larger images are brought to where size and network are left open: for a small one."""
    return SMALL_SIDE if device_for(execution).type == "cpu" else None


def _fit(plan: Plan, prepared: Prepared, checkpoints: Checkpoints | None, where: _Where, progress: Show) -> Fit:
    settings = plan.settings
    rates = {name: getattr(settings, name) for name in ("lr", "momentum", "weight_decay", "rho")}
    record = None
    if plan.record is not None:
        Recorder(prepared.data, plan.record).check(prepared.fresh())
        record = partial(Recorder, recording=plan.record)
    return Fit(
        settings,
        builder(plan.optimizer.given or plan.optimizer.name, **rates),
        seed=plan.seed,
        device=where.device,
        execution=where.execution,
        checkpoints=checkpoints,
        budget=plan.budget,
        record=record,
        progress=progress,
        on_row=where.on_row,
        world=where.world,
    )


def _trained(plan: Plan, prepared: Prepared, fit: Fit) -> tuple[Trained, Inferred | None]:
    """What the method trained, and the groups that were inferred for it."""
    method, options, data = find(plan.method.name), dict(plan.method.options), prepared.data
    if not uses_inferred(plan.method.name, plan.settings):
        returned: Any = method(prepared.fresh, data, fit, **options)
        if not isinstance(returned, Trained):  # by a method of another package
            kind = type(returned).__name__
            raise EvenlyError(f"{method.name} returned a {kind}; a method returns what fit(...) trained")
        return returned, None
    inferred = infer_groups(prepared.fresh, data, fit, plan.settings.infer)
    for doubt in inferred.doubts(plan.settings.select):
        warnings.warn(doubt, EvenlyWarning, stacklevel=2)
    # for a method that asks for no groups they are part of the evaluation
    fit = evolve(fit, spent=inferred.cost if method.needs_groups else 0.0, inferred=True)
    trained = method(prepared.fresh, inferred.data, fit, **options)
    if not method.needs_groups:
        trained.evaluation_cost += inferred.cost
    return trained, inferred


def inferred_for(prepared: Prepared, folder: Path, execution: Execution, rule: Infer) -> Inferred:
    """Groups inferred once for all runs on some data; the early network is kept in the folder and read back there."""
    plan = prepared.config.plan
    with isolated(derive(plan.seed, "train")), on_threads(prepared.config.threads), Progress() as bar:
        where = _Where(device_named(execution.device), ALONE, execution)
        fit = _fit(plan, prepared, Checkpoints(folder), where, bar)
        return infer_groups(prepared.fresh, prepared.data, fit, rule)


def check_method(plan: Plan, data: Data) -> None:
    """Refuse what a plan's method cannot do on this data; where groups will be inferred, by the classes as groups."""
    method, settings = find(plan.method.name), plan.settings
    if uses_inferred(plan.method.name, settings):
        settings = evolve(settings, groups="given", infer="useful")
        if data.validation is not None:  # whether it holds every group is known once they are inferred
            settings = evolve(settings, select="last", patience=None)
        data = by_class(data)
    method.check(data, settings, plan.method.options, plan.seed)


def _outputs(trained: Trained, data: Data, plan: Plan) -> dict[str, Tensor]:
    """The network's outputs on every split."""
    device = next((parameter.device for parameter in trained.model.parameters()), torch.device("cpu"))
    outputs = {}
    for name, split in data.splits.items():
        size, precision = plan.settings.batch_size, trained.precision
        batches = Batches(split, size, device, trained.workers, precision=precision, world=trained.world)
        with isolated(derive(plan.seed, "results", name)):
            outputs[name] = outputs_of(trained.model, batches).cpu()
    return outputs


def _results(
    plan: Plan, prepared: Prepared, trained: Trained, outputs: dict[str, Tensor], inferred: Inferred | None
) -> RunResult:
    data, selection, total = prepared.data, trained.selection, len(prepared.data.train)
    device = next((p.device for p in trained.model.parameters()), torch.device("cpu"))
    return RunResult(
        data=DataSummary.of(data),
        method=plan.method.name,
        optimizer=plan.optimizer.name,
        seed=plan.seed,
        model=prepared.config.network.name,
        rule=trained.rule,
        selected_epoch=trained.selected_epoch,
        selected_after_epochs=trained.selected_cost / total,
        epochs=len(trained.history),
        cost=trained.cost,
        unit=float(plan.reference_epochs * total),
        evaluation_cost=trained.evaluation_cost,
        seconds=round(trained.seconds, 3),
        device=device.type,
        step=trained.step,
        processes=trained.world.size,
        splits={name: measured_on(outputs[name], split, data) for name, split in data.splits.items()},
        chosen=None if selection is None else len(selection.indices),
        factor=1 if selection is None else selection.factor,
        chosen_by_the_end=None if selection is None else selection.chosen_by_the_end,
        used=None if trained.seen_counts is None else usage(trained.seen_counts, data),
        inferred_groups=None if inferred is None else inferred.summary(),
        remarks=trained.remarks,
        packages=plan.packages,
    )


def measured_on(outputs: Tensor, split: Split, data: Data) -> Measured:
    """What outputs (N, K) reach on a split, with the groups' intervals."""
    reached = measure(outputs, split, data)
    return evolve(reached, group_intervals=intervals(reached.groups, reached.group_counts))


def correct_on(outputs: dict[str, Tensor], data: Data, judged: str) -> Correct:
    """Which examples of the split that is judged the network gets right."""
    split = data.splits[judged]
    groups = None if split.measured_groups is None else split.measured_groups.numpy()
    right = (predictions(outputs[judged]) == split.labels).numpy()
    identities = None if split.places is None else split.places.identities
    return Correct(right, split.labels.numpy(), groups, data.fingerprint(judged), identities)


def _recorded(trained: Trained) -> Recorded | None:
    if trained.record is None:
        return None
    tracker = trained.record.forgetting
    return Recorded(trained.record.history, None if tracker is None else tracker.scores)


def _kept(folder: RunFolder, run: Run, data: Data, outputs: dict[str, Tensor], correct: Correct) -> RunFolder:
    """Write what a finished run leaves: model, predictions, selection, record, examples, then the results."""
    folder.prepare()
    save_network(run.model, folder.path)
    save_predictions(folder.path, run.results.judged, data, outputs, correct)
    if run.selection is not None:
        run.selection.save(folder.path / "selection.npz")
        save_examples(data, run.selection, folder.path)
    if run.record is not None:
        run.record.save(folder.path / "record.npz")
    folder.finish(run.results)
    return folder


def save_predictions(folder: Path, judged: str, data: Data, outputs: Mapping[str, Tensor], correct: Correct) -> None:
    """Write `predictions.npz`: outputs and labels of validation and test, and what is right on the judged split."""
    arrays: dict[str, Any] = {f"{judged}_labels": correct.labels, **correct.arrays()}
    for name in ("validation", "test"):
        if name in outputs:
            arrays |= {f"{name}_outputs": outputs[name].numpy(), f"{name}_labels": data.splits[name].labels.numpy()}
    with atomic(folder / "predictions.npz") as file:
        np.savez(file, **arrays)


def _completed(folder: RunFolder, run: Run) -> Run:
    """Do what a kill after the results may have left undone: the page, and removing the checkpoint."""
    if not (folder.path / "report.html").exists():
        from evenly.report import write_report

        write_report(folder.path)
    folder.remove_checkpoint()
    return run


def fingerprint(model: nn.Module) -> str:
    """Sixteen hex digits that change when any initial weight does."""
    digest = hashlib.sha256()
    for key, value in model.state_dict().items():
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def memory_explained(batch_size: int | None) -> Iterator[None]:
    """Where memory does not suffice, or a batch is too small, say which setting to change."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise EvenlyError(
            f"a batch of one example, at batch size {batch_size}, is too few for the model's batch normalisation; "
            "raise batch_size"
        ) from None
    except (RuntimeError, MemoryError) as error:
        if "DataLoader worker" in str(error):
            raise EvenlyError(
                "a process that reads data was killed, perhaps for lack of memory; the same command goes on, and fewer "
                "workers need less"
            ) from None
        if (memory := lack_of_memory(error)) is None:
            raise
        if not isinstance(error, torch.OutOfMemoryError):
            raise EvenlyError(
                f"the memory does not suffice at batch size {batch_size or 'full'} ({memory}); lower batch_size, or "
                "choose a smaller model"
            ) from None
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30
        raise EvenlyError(
            f"the GPU's {total:.0f} GiB do not suffice at batch size {batch_size or 'full'} "
            f"({str(error).split('. ')[0]}); lower batch_size, use precision bf16, or run fewer seeds side by side"
        ) from None


def _check_network(model: nn.Module, data: Data) -> None:
    """Try two examples, so that a network that does not go with the data is refused in one line."""
    split = data.train
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise EvenlyError("the model has no parameter that requires gradients; there is nothing to train")
    if isinstance(split.inputs, torch.Tensor):
        x = split.inputs[:2].clone()
    else:
        x = torch.stack([torch.as_tensor(split.inputs[i][0]) for i in range(min(2, len(split)))])
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    try:
        with torch.no_grad():
            outputs = model.eval()(x)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"the model cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({cause}); "
            "convert them, e.g. x.float(), or choose another"
        ) from error
    expected = "(N,) or (N, 1) or (N, 2)" if data.classes == 2 else f"(N, {data.classes})"
    good = isinstance(outputs, torch.Tensor) and (
        outputs.shape == (len(x), data.classes) or (data.classes == 2 and outputs.shape in ((len(x),), (len(x), 1)))
    )
    if not good:
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise EvenlyError(
            f"the model returns {got} for {len(x)} examples of {data.classes} classes; it must return {expected}"
        )
