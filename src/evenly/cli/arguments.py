"""What is typed on the command line, as values; and options that are made from a class of settings."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evenly.errors import EvenlyError, EvenlyWarning, unknown
from evenly.files import CHECKSUM, sealed
from evenly.settings import Execution, Option, Settings, settings_of

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results.", metavar="FOLDER", show_default=False)
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 or auto.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
PAIR = "NAME=VALUE"
NOT_IN_NAMES = ("method", "methods", "optimizer", "optimizers", "seed", "seeds", "sweep", "record")
"""What is named apart in a folder's name, or may be added in a folder."""
DATA_HELP = (
    "A name from `evenly datasets`, a folder of images, a .csv file of texts or numbers, or an .npz file with arrays "
    "x and y, and perhaps groups and split."
)
ModelName = Annotated[
    str | None,
    typer.Option(help="A name from `evenly models`; by default the data decides.", metavar="NAME", show_default=False),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option",
        help="An option of the model, e.g. weights=FILE. Repeatable.",
        metavar=PAIR,
        show_default=False,
    ),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--data-option", "-d", help="An option of the data set. Repeatable.", metavar=PAIR, show_default=False
    ),
]
RecordOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--record",
        help="What to measure during training: forgetting=true, probes=true, importance=0.05, spectrum=5, l1=true; "
        "every=5 for every fifth epoch only. Repeatable.",
        metavar=PAIR,
        show_default=False,
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="Settings of a paper for this data set, e.g. pde-paper for waterbirds; `evenly datasets` names them. What "
        "you type here takes precedence.",
        metavar="NAME",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A .toml or .json file with any of these settings, or the config.json of a run. What you type here takes "
        "precedence over the file.",
        metavar="FILE",
        show_default=False,
    ),
]


COMMON = ("data", "model", "model_options", "options", "record", "data_options", "recipe", "out")
"""What a config file can have beside settings, for train and compare alike."""


def takes(*settings: Any | tuple[Any, Collection[str]]) -> Callable[[Callable[..., Any]], Any]:
    """Add an option for every setting of these classes to a verb, which gets what was typed as keyword arguments.

    Args:
        settings: classes of settings; beside a class may stand the names of those to take.
    """
    options: dict[str, Option] = {}
    for each in settings:
        cls, names = each if isinstance(each, tuple) else (each, settings_of(each))
        options |= {name: settings_of(cls)[name] for name in names}

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(**typed: Any) -> Any:
            values = {name: typed.pop(name) for name in options}
            given = {
                name: (not options[name].default if isinstance(value, bool) else options[name].parsed(value))
                for name, value in values.items()
                if value is not None and value is not False
            }
            return verb(**typed, **given)

        *own, _ = inspect.signature(verb, eval_str=True).parameters.values()  # the last gets the settings
        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(each))
            for name, each in options.items()
        ]
        parameters = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *made]
        vars(call)["__signature__"] = inspect.Signature(parameters)
        call.__name__, call.__doc__ = verb.__name__, verb.__doc__
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def _annotation(option: Option) -> Any:
    text = f"{option.help[:1].upper()}{option.help[1:]}."
    flag = f"--{option.name.replace('_', '-')}"
    if isinstance(option.default, bool):
        flag = f"--no-{flag.removeprefix('--')}" if option.default else flag
        return Annotated[bool, typer.Option(flag, help=text)]
    text += f" [default: {option.text(option.default)}]"
    kinds = {option.kind, *typing.get_args(option.kind)}
    metavar = "INTEGER" if int in kinds else "NUMBER" if float in kinds else "NAME"
    metavar = "NUMBER,NUMBER" if Sequence[float] in kinds else metavar
    return Annotated[str | None, typer.Option(flag, help=text, metavar=metavar, show_default=False)]


def config_values(path: Path | None) -> dict[str, Any]:
    """The values in a config file, by name; a run's own config.json is returned as it is."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
        if path.suffix == ".toml":
            import tomllib

            content: Any = tomllib.loads(text)
        else:
            content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise EvenlyError(f"{path} cannot be read ({error}); give a .toml or .json file") from None
    if not isinstance(content, dict):
        raise EvenlyError(f"{path} holds no names and values; write e.g. epochs = 30")
    checksum = content.pop(CHECKSUM, None)
    if checksum is not None and sealed(content)[CHECKSUM] != checksum:
        message = f"{path} has changed since a run wrote it; it is used as it is now"
        warnings.warn(message, EvenlyWarning, stacklevel=2)
    return content


def check_names(path: Path | None, config: Mapping[str, Any], *others: str) -> None:
    """Refuse a name in a config file that is neither a setting nor what any verb takes nor among `others`."""
    known = {*COMMON, *others, *settings_of(Settings), *settings_of(Execution)}
    if strangers := [name for name in config if name not in known]:
        raise unknown(f"setting in {path}", strangers[0], known)


def is_of_a_run(config: Mapping[str, Any]) -> bool:
    """Whether a config file is one that a run left, of this version of evenly or of 0.1."""
    return "format" in config or isinstance(config.get("data"), Mapping)


def out_of(data: str, out: Path) -> Path:
    """Refuse results in the folder of images itself: they would be taken for a class of images next time."""
    if Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve()):
        raise EvenlyError(
            f"{out} lies in {data}, the folder of images, and would be taken for a class; give --out elsewhere"
        )
    return out


def default_folder(data: str, *words: object, typed: Mapping[str, Any] | None = None) -> Callable[..., Path]:
    """A function from a config, and what differs from the defaults, to its folder.

    What differs, or else what was typed, is for the reader; the digest is its identity.
    """
    path = Path(data)
    name = path.resolve().name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem

    def folder(config: Any, differs: Mapping[str, Any] = typed or {}) -> Path:
        values = {key: value for key, value in differs.items() if key not in (*NOT_IN_NAMES, *settings_of(Execution))}
        shown = re.sub(r"[^\w.+-]", "", "-".join(_flat(values)))[:50]
        content = json.dumps(config, sort_keys=True) if isinstance(config, Mapping) else config.digest
        digest = hashlib.sha256(content.encode()).hexdigest()[:6]
        parts = [name, *(str(word).replace(":", "-") for word in words), shown, digest]  # sam:adamw
        return out_of(data, Path("runs") / "-".join(filter(None, parts)))

    return folder


def _flat(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield str(value) if name == "model" else name if value is True else f"{name}{value}"


def only_given(**values: Any) -> dict[str, Any]:
    """Those that the user gave."""
    return {name: value for name, value in values.items() if value is not None}


def sweep_values(items: list[str] | None) -> dict[str, list[Any]]:
    """name=value,value,... pairs; a whole batch is called 'full' here as in --batch-size."""
    by_name = _by_name(items, "sweep", "swept", "value,value", "batch_size=128,256")
    return {name: Option(name, Any).parsed_list(text) for name, text in by_name.items()}


def search_spaces(items: list[str] | None) -> dict[str, str]:
    """name=space pairs."""
    return _by_name(items, "search", "searched", "space", "lr=log:1e-4:1e-1")


def _by_name(items: list[str] | None, verb: str, done: str, form: str, example: str) -> dict[str, str]:
    """What stands after each name and its equals sign."""
    texts: dict[str, str] = {}
    for item in items or []:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise EvenlyError(f"{verb} {item!r} is not name={form}; write e.g. {example}")
        if name in texts:
            raise EvenlyError(f"{name} is {done} twice; give all its values at once, {name}={form}")
        texts[name] = text
    return texts


def pairs(items: list[str] | None) -> dict[str, Any]:
    """name=value pairs."""
    values: dict[str, Any] = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise EvenlyError(f"option {item!r} is not name=value; write e.g. factor=3")
        values[name] = Option(name, Any).parsed(value)
    return values


def pairs_by_method(items: list[str] | None) -> dict[str, dict[str, Any]]:
    """method.name=value pairs."""
    by_method: dict[str, dict[str, Any]] = {}
    for name, value in pairs(items).items():
        owner, dot, own = name.partition(".")
        if not dot:
            raise EvenlyError(f"option {name!r} does not say whose it is; write method.{name}=..., e.g. pde.{name}=...")
        by_method.setdefault(owner, {})[own] = value
    return by_method


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_of(text: str) -> int | list[int]:
    """How many seeds, or which."""
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise EvenlyError(f"--seeds must be how many (3) or which (100,101,102), got {text!r}") from None
    if "," not in text and seeds[0] < 1:
        raise EvenlyError(f"--seeds must be how many (3) or which (100,101,102), got {text!r}")
    return seeds if "," in text else seeds[0]


def merged(config: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """What a config file and the command line say, table by table; the command line takes precedence."""
    inner = {
        name: merged(value, typed[name])
        for name, value in config.items()
        if isinstance(value, Mapping) and isinstance(typed.get(name), Mapping)
    }
    return {**config, **typed, **inner}
