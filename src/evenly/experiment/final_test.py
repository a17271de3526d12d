"""The test set, used once, after the choice: ERM, the chosen method and its control; then the model to hand back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from attrs import evolve
from torch import Tensor

from evenly.data import Data
from evenly.data.preprocessing import TablePreprocessing
from evenly.diagnose.findings import LARGEST_IMAGE, heated
from evenly.diagnose.saliency import grad_cam
from evenly.engine import predictions, probabilities
from evenly.errors import EvenlyError
from evenly.experiment.execute import correct_on, measured_on, save_predictions
from evenly.files import atomic, make_folder, write_json
from evenly.models import encoded
from evenly.report import write_report
from evenly.runs.examples import is_image, snippet, thumbnail
from evenly.runs.folder import FORMAT, read_config, read_results
from evenly.runs.improvement import BEST, CHANGED, RUNS, TESTED, Changed
from evenly.runs.plan import DataSpec
from evenly.runs.results import DataSummary
from evenly.runs.run import InMemory, Run, load, read_correct, validation_outputs

SHOWN = 8
"""Examples shown that are right now and were wrong, and as many of the other way round."""
MOST_FEATURES = 8
"""Numbers shown of a row."""


def tested_runs(out: Path, folders: Iterable[str], data: Data, device: torch.device, given: object) -> dict[str, Run]:
    """Runs of `runs/` with what they reach on the test set, by folder; each is evaluated once and kept in `tested/`.

    Args:
        data: with the test set.
        given: the model of the user's own, where the runs trained one.
    """
    return {name: _tested(out, name, data, device, given) for name in dict.fromkeys(folders)}


def _tested(out: Path, name: str, data: Data, device: torch.device, given: object) -> Run:
    source, target = out / RUNS / name, out / TESTED / name
    config = read_config(source)
    if not (target / "results.json").exists():
        run = load_run(source, given)
        run.model.to(device)
        read = encoded(data, run.model)
        test = run.outputs(read.test)
        splits = {**run.results.splits, "test": measured_on(test, read.test, read)}
        results = evolve(run.results, data=DataSummary.of(data), splits=splits)
        make_folder(target)
        outputs = {"test": test, **({} if read.validation is None else {"validation": validation_outputs(run)})}
        save_predictions(target, "test", read, outputs, correct_on(outputs, read, "test"))
        write_json(target / "config.json", config.to_dict())
        write_json(target / "results.json", {"format": FORMAT, **results.to_dict()})
    return Run(config, read_results(target), None, InMemory([], correct=read_correct(target, "test")))


def load_run(folder: Path, given: object) -> Run:
    """A run of the job; where it trained a module of the user's own, with that."""
    model = given() if callable(given) and not isinstance(given, torch.nn.Module) else given
    own = read_config(folder).network.own
    return load(folder, model if own and isinstance(model, torch.nn.Module) else None)


def hand_back(out: Path, name: str, data: Data, spec: DataSpec, original: str) -> Path:
    """Make `best/` of a run and of its test: whole or not at all.

    Args:
        spec: the data with its test set as a file or name brings it back.
        original: the fingerprint of that data.
    """
    best, partial = out / BEST, out / f"{BEST}.partial"
    if (best / "report.html").exists():
        return best
    for path in (partial, best):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(out / RUNS / name, partial, ignore=shutil.ignore_patterns("*tfevents*", "wandb"))  # its own log
    for each in (".lock", "report.html"):
        (partial / each).unlink(missing_ok=True)
    for each in ("results.json", "predictions.npz"):
        shutil.copyfile(out / TESTED / name / each, partial / each)
    config = read_config(partial)
    plan = evolve(config.plan, data=spec)
    config = evolve(config, plan=plan, fingerprints={**config.fingerprints, "data": original})
    write_json(partial / "config.json", config.to_dict())
    write_report(partial)
    os.replace(partial, best)
    return best


def changed_examples(
    before: Run, after: Run, data: Data, out: Path
) -> tuple[tuple[Changed, ...], tuple[Changed, ...], int, int]:
    """Validation examples that are right now and were wrong, the other way round, and how many of each there are.

    Images and where the new model looks are written into `changed/`.
    """
    split, names = data.validation, [str(name) for name in DataSummary.of(data).class_names]
    old, new = (validation_outputs(run) for run in (before, after))
    was, now = (predictions(outputs) == split.labels for outputs in (old, new))
    gained, lost = ((now & ~was).nonzero().flatten(), (was & ~now).nonzero().flatten())
    sure = probabilities(new.double()).max(1).values
    order = [members[sure[members].argsort(descending=True, stable=True)] for members in (gained, lost)]
    chosen = [each[:SHOWN].tolist() for each in order]
    heat = _heat(after, data, [*chosen[0], *chosen[1]])
    labels = [[names[k] for k in predictions(outputs).tolist()] for outputs in (old, new)]

    def shown(i: int) -> Changed:
        images = _images(data, i, heat)
        for suffix, image in images.items():
            make_folder(out / CHANGED)
            with atomic(out / CHANGED / f"{i}{suffix}.png", sync=False) as file:
                file.write(image)
        groups = split.measured_groups
        group = "" if groups is None or groups.ndim == 2 else data.measured_names[int(groups[i])]
        place = "" if split.places is None else split.places[i]
        return Changed(i, names[int(split.labels[i])], labels[0][i], labels[1][i], group, place, _words(data, i))

    sets = [tuple(shown(i) for i in indices) for indices in chosen]
    return sets[0], sets[1], len(gained), len(lost)


def _heat(run: Run, data: Data, indices: list[int]) -> Mapping[int, Tensor]:
    """Grad-CAM (H, W) of images, by index; none where there are no images or the network has no map."""
    if not indices or data.validation.texts is not None or not is_image(data.validation.example_shape):
        return {}
    try:
        heat = grad_cam(run.model, torch.stack([_image(data, i) for i in indices]))
        return dict(zip(indices, heat, strict=True))
    except EvenlyError:
        return {}


def _image(data: Data, i: int) -> Tensor:
    inputs = data.validation.inputs
    return inputs[i].cpu() if isinstance(inputs, Tensor) else torch.as_tensor(inputs[i][0])


def _images(data: Data, i: int, heat: Mapping[int, Tensor]) -> dict[str, bytes]:
    """The image and its heat map as PNGs, by the ending of their names."""
    if data.validation.texts is not None or not is_image(data.validation.example_shape):
        return {}
    image = _image(data, i)
    images = {"": thumbnail(image, LARGEST_IMAGE)}
    if i in heat:
        images["-heat"] = thumbnail(heated(image, heat[i]), LARGEST_IMAGE)
    return images


def _words(data: Data, i: int) -> str:
    """The beginning of a text, or the numbers of a row as the user has them."""
    split = data.validation
    if split.texts is not None:
        return snippet(split.texts[i])
    preprocessing = data.preprocessing
    if not isinstance(preprocessing, TablePreprocessing) or not isinstance(split.inputs, Tensor):
        return ""
    row = split.inputs[i].tolist()
    scales = zip(preprocessing.features, row, preprocessing.mean, preprocessing.std, strict=False)
    words = [f"{name} {value * std + mean:.4g}" for name, value, mean, std in scales]
    at = len(preprocessing.features) + len(preprocessing.indicators)
    for name, values in preprocessing.categories.items():
        on = [value for k, value in enumerate(values) if row[at + k]]
        words, at = [*words, *(f"{name} {value}" for value in on)], at + len(values)
    more = len(words) - MOST_FEATURES
    return ", ".join(words[:MOST_FEATURES]) + (f", {more} more" if more > 0 else "")
