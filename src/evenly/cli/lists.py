"""evenly methods, datasets, models, optimizers and cache: what there is, one line each"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from evenly.cli.arguments import Json


def methods(as_json: Json = False) -> None:
    """List the methods and their options.

    Example: evenly methods --json
    """
    from evenly.methods import METHODS
    from evenly.report.console import show_list, with_options

    rows = {
        name: with_options(each.summary, {option: known.default for option, known in each.options.items()})
        + (" (needs groups)" if each.needs_groups else "")
        + (f" (prefers select={each.prefers})" if each.prefers else "")
        for name, each in sorted(METHODS.items())
    }
    show_list(rows, as_json)


def datasets(as_json: Json = False) -> None:
    """List the data sets that evenly can read or make.

    Example: evenly datasets
    """
    from evenly.data import DATASETS, dataset_options
    from evenly.data.benchmarks import RECIPES
    from evenly.report.console import show_list, with_options

    rows = {
        name: with_options((make.__doc__ or "").splitlines()[0], dataset_options(name))
        + (f" (recipes: {', '.join(RECIPES[name])})" if name in RECIPES else "")
        for name, make in DATASETS.items()
    }
    rows["FOLDER"] = "your own images: a folder for each class, or a file metadata.csv with file, label[, split, ...]"
    rows["FILE.csv"] = "your own texts (a column text), numbers and categories: label[, split, ...]; also .csv.gz"
    rows["FILE.npz"] = "your own arrays: x (N, ...), y (N,), optionally groups (N,) and split (N,)"
    show_list(rows, as_json)


def models(as_json: Json = False) -> None:
    """List the models.

    Example: evenly models
    """
    from evenly.models import MODELS, TEXT_MODELS
    from evenly.report.console import show_list

    rows = {name: summary for name, (_, summary) in (MODELS | TEXT_MODELS).items()}
    rows["hf:FOLDER"] = "for texts: a sequence classifier of transformers and its tokenizer from a local folder"
    for library in ("torchvision", "timm"):
        rows[f"{library}:NAME"] = (
            f"any model of {library} where it is installed; weights from a local file with --model-option weights=FILE"
        )
    show_list(rows, as_json)


def optimizers(as_json: Json = False) -> None:
    """List the optimizers.

    Example: evenly optimizers
    """
    from evenly.optim.registry import BASES, PERTURBED
    from evenly.report.console import show_list

    rows = {name: summary for name, (_, summary) in BASES.items()}
    rows |= {name: f"{summary}; over SGD" for name, (*_, summary) in PERTURBED.items()}
    rows["sam:adamw"] = f"any of {', '.join(PERTURBED)} over any of {', '.join(BASES)}"
    show_list(rows, as_json)


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
