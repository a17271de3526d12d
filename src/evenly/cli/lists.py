"""evenly methods, datasets, models, optimizers and cache: what there is, one line each"""

from __future__ import annotations

import json
import warnings
from datetime import datetime
from typing import Annotated, Any

import typer

from evenly.cli.arguments import Json
from evenly.errors import EvenlyWarning
from evenly.plugins import Registry


def methods(as_json: Json = False) -> None:
    """List the methods and their options.

    Example: evenly methods --json
    """
    from evenly.methods import METHODS
    from evenly.report.console import with_options

    rows = {
        name: with_options(each.summary, {option: known.default for option, known in each.options.items()})
        + (" (needs groups)" if each.needs_groups else "")
        + (f" (prefers select={each.prefers})" if each.prefers else "")
        for name, each in sorted(METHODS.all_usable().items())
    }
    _show(rows, as_json, METHODS)


def datasets(as_json: Json = False) -> None:
    """List the data sets that evenly can read or make.

    Example: evenly datasets
    """
    from evenly.data import DATASETS, dataset_options
    from evenly.data.benchmarks import RECIPES
    from evenly.report.console import with_options

    rows = {
        name: with_options((make.__doc__ or "").splitlines()[0], dataset_options(name))
        + (f" (recipes: {', '.join(RECIPES[name])})" if name in RECIPES else "")
        for name, make in DATASETS.all_usable().items()
    }
    rows["FOLDER"] = "your own images: a folder for each class, or a file metadata.csv with file, label[, split, ...]"
    rows["FILE.csv"] = "your own texts (a column text), numbers and categories: label[, split, ...]; also .csv.gz"
    rows["FILE.npz"] = "your own arrays: x (N, ...), y (N,), optionally groups (N,) and split (N,)"
    _show(rows, as_json, DATASETS)


def models(as_json: Json = False) -> None:
    """List the models.

    Example: evenly models
    """
    from evenly.models import MODELS, TEXT_MODELS

    rows = {name: summary for name, (_, summary) in (MODELS.all_usable() | TEXT_MODELS).items()}
    rows["hf:FOLDER"] = "for texts: a sequence classifier of transformers and its tokenizer from a local folder"
    for library in ("torchvision", "timm"):
        rows[f"{library}:NAME"] = (
            f"any model of {library} where it is installed; weights from a local file with --model-option weights=FILE"
        )
    _show(rows, as_json, MODELS)


def optimizers(as_json: Json = False) -> None:
    """List the optimizers.

    Example: evenly optimizers
    """
    from evenly.optim.registry import REGISTRY, Base

    entries = REGISTRY.all_usable()
    bases = [name for name, each in entries.items() if isinstance(each, Base)]
    perturbing = [name for name in entries if name not in bases]
    rows = {name: entries[name].summary for name in bases}
    rows |= {name: f"{entries[name].summary}; over SGD" for name in perturbing}
    rows["sam:adamw"] = f"any of {', '.join(perturbing)} over any of {', '.join(bases)}"
    _show(rows, as_json, REGISTRY)


def _show(rows: dict[str, str], as_json: bool, registry: Registry[Any]) -> None:
    """The rows, those of other packages with the package; what of these cannot be used is a warning each."""
    from evenly.report.console import show_list

    packages = {name: registry.package(name) for name in rows}
    show_list(
        {name: text + (f" (of {packages[name]})" if packages[name] else "") for name, text in rows.items()}, as_json
    )
    for line in registry.problems():
        warnings.warn(line, EvenlyWarning, stacklevel=1)


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of it; it is made again where needed.")] = False,
    as_json: Json = False,
) -> None:
    """List or clear the decoded images kept for next time.

    They lie in the user's cache folder, or in the folder that the environment variable EVENLY_CACHE names.

    \b
    Examples:
      evenly cache
      evenly cache --clear
    """
    from attrs import asdict

    from evenly.data.images.cache import cache_folder, cached_arrays

    arrays = cached_arrays(clear=clear)
    if as_json:
        print(json.dumps([asdict(each) for each in arrays], indent=2))
        return
    for each in arrays:
        print(f"{each.size / 1e6:>9,.1f} MB  {datetime.fromtimestamp(each.written):%Y-%m-%d %H:%M}  {each.data}")
    total = sum(each.size for each in arrays) / 1e6
    print(f"{total:>9,.1f} MB  {'cleared from' if clear else 'in'} {cache_folder()}")
