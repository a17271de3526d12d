"""Every setting once: what it is called, what it may be, what it is where nobody says otherwise.

`Settings` decides numbers and a run's identity. `Execution` decides where and how a run is computed and changes numbers
by rounding at most. The command line, config files, the engine, run folders and pages are made from these classes.

The options of methods, data sets and models are keyword parameters of their functions, annotated with the same
constraints (``epochs: Annotated[int, at_least(1)]``), and are checked by the same means.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from attrs import field, fields, frozen

from evenly.errors import EvenlyError, SettingError, unknown
from evenly.values import Value, is_of, is_plain, kind_in_words

Function = TypeVar("Function", bound=Callable[..., Any])
Schedule = str | Callable[[float], float]


@frozen
class Constraint:
    """What a value must be: the words that complete "NAME must be ...", and the test."""

    words: str
    holds: Callable[[Any], bool]


def at_least(low: float) -> Constraint:
    return Constraint(f"at least {low:g}", lambda value: value >= low)


def above(low: float) -> Constraint:
    return Constraint(f"above {low:g}", lambda value: value > low)


def below(high: float) -> Constraint:
    return Constraint(f"below {high:g}", lambda value: value < high)


def at_most(high: float) -> Constraint:
    return Constraint(f"at most {high:g}", lambda value: value <= high)


def one_of(*names: str) -> Constraint:
    """One of these names; a function of the user's own passes where the type allows one."""
    return Constraint(f"one of {', '.join(names)}", lambda value: callable(value) or value in names)


def joined(*names: str) -> Constraint:
    """Some of these names with + between them, each perhaps with options after a colon."""
    words = f"one of {', '.join(names)}, or several joined by +"
    return Constraint(words, lambda value: {part.partition(":")[0] for part in value.split("+")} <= set(names))


FLOAT32 = at_most(3.4028234e38)
RULES = ("last", "average", "worst-group", "worst-group-argmax", "worst-class")
BY_GROUP = ("worst-group", "worst-group-argmax")
"""The selection rules that go by groups."""
SCHEDULES = ("constant", "step", "cosine")
AUGMENTATIONS = ("none", "basic", "resized", "trivial")
LOGGERS = ("tensorboard", "wandb", "mlflow")
"""Where the metrics of a run can be logged; each is an extra of the same name."""


@frozen
class Option:
    """One setting or option by name: its type, its constraints, its default and what it is for.

    `none` is the word for None in the shell, in config files and on pages.
    """

    name: str
    kind: Any
    constraints: tuple[Constraint, ...] = ()
    default: Any = None
    help: str = ""
    none: str = "none"

    def checked(self, value: Any, owner: str = "") -> Any:
        """The value, with numpy's numbers as Python's; refused if it is of another type or breaks a constraint."""
        value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        if isinstance(value, str) and self._means_none(value):
            value = None
        if not is_of(value, self.kind):
            raise SettingError(self.name, value, self._requirement(value), owner)
        if value is not None and isinstance(value, str | int | float):
            for constraint in self.constraints:
                if not constraint.holds(value):
                    raise SettingError(self.name, value, constraint.words, owner)
        return value

    def _requirement(self, value: Any) -> str:
        """What the value must be: where it is text, with the word for None; where it is a number, in which respect."""
        words = kind_in_words(self.kind)
        if isinstance(value, str) and self.none != "none" and words in ("a number", "a whole number"):
            return f"{words} or {self.none}"
        number = isinstance(value, str) and re.fullmatch(r"[+-]?(nan|inf|infinity|[\d.]+(e\d+)?)", value, re.IGNORECASE)
        if number or type(value) in (int, float):
            words = words.replace("a number", "a finite number")
        return words.replace("whole number", "whole number below 2**63") if type(value) is int else words

    def _means_none(self, text: str) -> bool:
        """Whether a text is the word for None; one that is a value of its own, as groups="none", is not."""
        return text == self.none and is_of(None, self.kind) and not is_of(text, self.kind)

    def parsed(self, text: str) -> Any:
        """What was typed in the shell as a value of this type, yet to be checked; as it stands where it is none.

        It is read as JSON has it (numbers, lists, true); True, .5, 5. and +1 are read as well.
        """
        if self._means_none(text):
            return None
        if not is_of("", self.kind) and is_of([0.5], self.kind):
            with suppress(ValueError):
                return [float(part) for part in text.split(",")]
        try:
            number = re.fullmatch(r"[+-]?((0|[1-9]\d*)\.?|\d*\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
            value = float(text) if number else json.loads(text.lower() if text.lower() in ("true", "false") else text)
            value = int(text) if number and text.lstrip("+-").isdigit() else value
        except (ValueError, OverflowError, RecursionError):
            return text
        return value if is_of(value, self.kind) else text

    def parsed_list(self, text: str) -> list[Any]:
        """What was typed as values with commas between them."""
        listed = self.parsed(f"[{text}]")
        return listed if isinstance(listed, list) else [self.parsed(part.strip()) for part in text.split(",")]

    def text(self, value: Any) -> str:
        """A value as it is typed."""
        return self.none if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def options_of(function: Callable[..., Any], *, leave_out: Collection[str] = ()) -> dict[str, Option]:
    """The options of a function: its parameters with a default."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {
        parameter.name: _option(parameter.name, hints.get(parameter.name, Any), parameter.default)
        for parameter in parameters
        if parameter.default is not parameter.empty and parameter.name not in leave_out
    }


def checked(owner: str, values: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """The values by name, checked; a name that is not among the options is refused.

    Args:
        owner: whose options they are, for the message: "option of pde".
    """
    if not isinstance(values, Mapping):
        raise EvenlyError(f"{owner}: give names and values, got {values!r}")
    if strangers := [name for name in values if name not in options]:
        raise unknown(owner, strangers[0], options)
    return {name: options[name].checked(value, owner) for name, value in values.items()}


def checks_options(function: Function) -> Function:
    """The function, which refuses in one line arguments that its annotations exclude.

    Tensors, data and functions are left to the function itself.
    """
    signature = inspect.signature(function)

    @cache
    def options() -> dict[str, Option]:
        hints = typing.get_type_hints(function, include_extras=True)
        return {name: _option(name, hint, None) for name, hint in hints.items() if name != "return" and is_plain(hint)}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, option in options().items():
            if name in bound.arguments:
                bound.arguments[name] = option.checked(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return cast("Function", call)


def setting(default: Any, *constraints: Constraint, help: str, none: str = "") -> Any:
    """A field of a class of settings; `none` is the word for None, where that is allowed."""

    def converted(value: Any) -> Any:
        value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        return None if none and isinstance(value, str) and value == none else value

    def validated(instance: Any, attribute: Any, value: Any) -> None:
        settings_of(instance.__class__)[attribute.name].checked(value)

    metadata = {"help": help, "constraints": constraints, "none": none}
    return field(default=default, converter=converted, validator=validated, metadata=metadata)


@cache
def settings_of(cls: type[Any]) -> dict[str, Option]:
    """The settings of a class of settings, by name."""
    hints = typing.get_type_hints(cls)
    return {
        each.name: Option(
            each.name, hints[each.name], each.metadata["constraints"], each.default, each.metadata["help"],
            each.metadata["none"] or "none",
        )
        for each in fields(cls)
    }  # fmt: skip


@frozen(kw_only=True)
class Settings(Value):
    """Every setting of training that decides numbers."""

    epochs: int = setting(30, at_least(1), help="passes over the examples that the method trains on")
    batch_size: int | None = setting(
        128, at_least(1), help="examples per step, or full for the whole training set", none="full"
    )
    lr: float = setting(0.05, above(0), FLOAT32, help="learning rate")
    momentum: float = setting(0.9, at_least(0), below(1), help="momentum of SGD, also under SAM")
    weight_decay: float = setting(0.0, at_least(0), FLOAT32, help="weight decay")
    rho: float = setting(
        0.05,
        at_least(0),
        FLOAT32,
        help="how far SAM, LSAM or noise moves the weights before the gradient; ASAM's default is ten times this",
    )
    schedule: Schedule = setting(
        "constant", one_of(*SCHEDULES), help="learning rate over time: constant, step or cosine"
    )
    select: str = setting(
        "last",
        one_of(*RULES),
        help="epoch whose weights are used: last, or the best on validation by average, worst-group (the best average "
        "within one standard error of the best worst group), worst-group-argmax or worst-class",
    )
    patience: int | None = setting(
        None,
        at_least(1),
        help="stop after this many epochs without an improvement in what `select` names",
        none="none",
    )
    evaluate_every: int | None = setting(
        1, at_least(1), help="epochs between evaluations on validation, or never", none="never"
    )
    augment: str = setting(
        "none",
        joined(*AUGMENTATIONS),
        help="changes to training images: none, basic, resized, trivial, or e.g. basic+trivial, resized:scale=0.7-1",
    )
    normalise: Literal["none", "mean", "data", "imagenet"] = setting(
        "none", help="scaling of images: none, mean (subtracted), data (mean and deviation) or imagenet"
    )
    precision: Literal["auto", "bf16", "float32"] = setting(
        "auto", help="number format: auto (bf16 for images on a GPU), bf16 or float32"
    )
    threads: int | None = setting(
        None,
        at_least(1),
        at_most(1024),
        help="threads to compute on; auto is 1, or up to 4 where one network of a million weights is trained",
        none="auto",
    )
    groups: Literal["given", "infer"] = setting(
        "given", help="groups: given, infer (two per class, from an early network), or columns of a table: label,place"
    )
    infer: Literal["useful", "eiil"] = setting("useful", help="how groups are inferred: useful (clusters) or eiil")

    def __attrs_post_init__(self) -> None:
        if self.infer != "useful" and self.groups != "infer":
            raise EvenlyError(f"infer {self.infer!r} is how groups are inferred; give groups='infer' as well")
        if self.patience is not None and self.select == "last":
            raise EvenlyError(
                f"patience {self.patience} has no validation metric to wait for; give select, e.g. select='worst-group'"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a schedule of the user's own by its value in every epoch."""
        return super().to_dict() | {"schedule": schedule_name(self.schedule, self.epochs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        if isinstance(values, Mapping) and isinstance(schedule := values.get("schedule"), list):
            values = {**values, "schedule": StoredSchedule(tuple(schedule))}
        return super().from_dict(values)


@frozen(kw_only=True)
class Execution:
    """Where and how runs are computed: no part of a run's identity."""

    device: str = setting("auto", help="where to compute: cpu, cuda, cuda:1 or auto")
    workers: int = setting(0, at_least(0), help="processes that read data from disk; results do not depend on it")
    capture: bool = setting(
        True,
        help="compute every step on a GPU anew instead of replaying a recorded one: slower, equal up to rounding",
    )
    stream: str = setting(
        "auto",
        one_of("auto", "always", "never"),
        help="read batches ahead instead of holding all inputs on the device; auto: where they do not fit",
    )
    accumulate: int = setting(
        1,
        at_least(1),
        help="passes that a step takes over a batch, which needs less memory; equal up to rounding, except that batch "
        "normalisation sees one pass at a time",
    )
    sync_batchnorm: bool = setting(
        True,
        help="under torchrun, on GPUs: let batch normalisation see each process's part of a batch alone, as on CPUs",
    )
    log: str | None = setting(
        None,
        one_of(*LOGGERS),
        help="where the metrics are logged as the run goes on: tensorboard, wandb or mlflow",
        none="none",
    )
    jobs: int = setting(1, at_least(1), help="processes that share the runs; results do not depend on it")
    together: int = setting(3, at_least(1), help="runs trained side by side on one GPU")
    engine: Literal["local", "ray"] = setting("local", help="what shares the runs: local (this machine) or ray")
    address: str | None = setting(None, help="address of a Ray cluster; none is this machine alone", none="none")
    retry: bool = setting(False, help="run failed runs of an earlier call again")

    def __attrs_post_init__(self) -> None:
        if self.address is not None and self.engine != "ray":
            raise EvenlyError(f"address {self.address!r} is of a Ray cluster; give engine='ray' as well")


@frozen(kw_only=True)
class Searching(Value):
    """How values are searched for."""

    trials: int = setting(
        16, at_least(1), help="budget of a search: what each method may spend, as a number of plain training runs (ERM)"
    )
    searcher: Literal["random", "optuna"] = setting(
        "random", help="how a search proposes values: random, or optuna (tree-structured Parzen estimator)"
    )


@frozen(kw_only=True)
class Improving(Value):
    """What `evenly improve` is to raise, and what it may spend on it."""

    goal: Literal["worst-group", "average", "worst-class"] = setting(
        "worst-group",
        help="what to raise: worst-group (groups given, or else inferred), average (accuracy) or worst-class",
    )
    budget: float = setting(
        12.0,
        at_least(1),
        at_most(1e6),
        help="what may be spent for each seed, as a number of plain training runs (ERM); screening is included",
    )


@frozen(kw_only=True)
class Recording(Value):
    """What is measured of a network as it learns, and when: `evenly.diagnose.recording.Recorder` measures it."""

    probes: str | Sequence[str] | bool = setting((), help="attributes to probe, joined by commas; true for all")
    importance: float | Mapping[str, Any] | None = setting(
        None, help="rho of the phantom importance weights", none="none"
    )
    # a run's config.json holds a function by its name, which is no number; the recorder refuses any other name
    spectrum: int | str | Callable[[Any], Any] | None = setting(
        None,
        Constraint("at least 1", lambda value: isinstance(value, str) or value >= 1),
        help="eigenvalues of the loss's Hessian",
    )
    forgetting: bool = setting(False, help="forgetting events of every training example")
    l1: bool = setting(False, help="the l1 norm of the weights")
    every: int = setting(1, at_least(1), help="record at epochs that this divides")
    epochs: Sequence[int] | None = setting(None, help="record at these epochs instead", none="none")

    def __attrs_post_init__(self) -> None:
        probes = self.probes if isinstance(self.probes, bool) else len(self.probes)  # perhaps an array
        if not (probes or self.importance is not None or self.spectrum or self.forgetting or self.l1):
            raise EvenlyError("there is nothing to record; ask for probes, importance, spectrum, forgetting or l1")


@frozen
class StoredSchedule:
    """A schedule of the user's own as a file has it: its values over the epochs. It cannot be trained by."""

    values: tuple[float, ...]

    def __call__(self, progress: float) -> float:
        raise EvenlyError(
            "the schedule was a function of the user's own, which a file cannot bring back; give it again"
        )


def schedule_name(schedule: Schedule, epochs: int) -> Any:
    """A schedule by name; one of the user's own by its value in every epoch, so that another is not taken for it."""
    if isinstance(schedule, StoredSchedule):
        return list(schedule.values)
    return [float(schedule(epoch / epochs)) for epoch in range(epochs)] if callable(schedule) else schedule


def _option(name: str, hint: Any, default: Any) -> Option:
    constraints: tuple[Constraint, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *extra = typing.get_args(hint)
        constraints = tuple(each for each in extra if isinstance(each, Constraint))
    return Option(name, hint, constraints, default)
