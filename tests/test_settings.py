"""Settings: every constraint refuses, in the same words in Python and in the shell."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import numpy as np
import pytest

from evenly.errors import EvenlyError, SettingError
from evenly.settings import (
    Execution,
    Option,
    Recording,
    Settings,
    at_least,
    checked,
    checks_options,
    options_of,
    settings_of,
)

BREAKS = {
    "at least 0": -1,
    "at least 1": 0,
    "above 0": 0,
    "below 1": 1,
    "at most 1024": 1025,
    "at most 3.40282e+38": 1e39,
}
CLASSES = (Settings, Execution, Recording)


def cases() -> list[Any]:
    """A value that breaks each constraint of each setting, and one of another type for each setting."""
    found = []
    for cls in CLASSES:
        for name, option in settings_of(cls).items():
            for constraint in option.constraints:
                value = BREAKS.get(constraint.words, "nonsense")
                found.append(pytest.param(cls, name, value, constraint.words, id=f"{cls.__name__}-{name}-{value}"))
            wrong: Any = object()
            kind = str(option.kind)
            if "Callable" not in kind:
                found.append(pytest.param(cls, name, wrong, None, id=f"{cls.__name__}-{name}-type"))
    return found


@pytest.mark.parametrize(("cls", "name", "value", "words"), cases())
def test_every_constraint_refuses_with_name_requirement_and_value(cls: Any, name: str, value: Any, words: Any) -> None:
    with pytest.raises(SettingError) as refused:
        cls(**{name: value})
    assert str(refused.value).startswith(f"{name} must be {words or ''}")
    assert str(refused.value).endswith(f"got {value!r}")


def test_the_shell_spells_a_setting_as_it_is_typed() -> None:
    command = [sys.executable, "-m", "evenly", "train", "shortcut-digits", "--batch-size", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "evenly: --batch-size must be at least 1, got 0\n"
    with pytest.raises(SettingError) as refused:
        Settings(batch_size=0)
    assert str(refused.value) == "batch_size must be at least 1, got 0"


def test_words_for_none_numpy_numbers_and_functions() -> None:
    settings = Settings(batch_size="full", evaluate_every="never", lr=np.float64(0.5), epochs=np.int64(3))
    assert (settings.batch_size, settings.evaluate_every, settings.lr, settings.epochs) == (None, None, 0.5, 3)
    assert type(settings.epochs) is int
    halving = Settings(epochs=10, schedule=lambda progress: 1 - progress / 2)
    assert halving.to_dict()["schedule"][:2] == [1.0, 0.95]


def test_settings_come_back_from_their_dictionary() -> None:
    settings = Settings(epochs=3, batch_size=None, select="average", patience=2)
    assert Settings.from_dict(settings.to_dict()) == settings
    with pytest.raises(EvenlyError, match="unknown field 'speed'"):
        Settings.from_dict({"speed": 3})


def test_a_recording_comes_back_from_its_file_with_a_function_by_its_name() -> None:
    asked = Recording(spectrum=max, epochs=[1, 2, 3], probes=["label"])
    read = Recording.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert (read.spectrum, read.epochs) == ("max", (1, 2, 3))
    assert read.to_dict() == asked.to_dict()


def test_patience_needs_a_metric_and_a_record_something_to_record() -> None:
    with pytest.raises(EvenlyError, match="patience 3 has no validation metric"):
        Settings(patience=3)
    with pytest.raises(EvenlyError, match="nothing to record"):
        Recording()


def test_options_of_a_function_are_checked_by_their_annotations() -> None:
    def method(data: Any, *, factor: Annotated[int, at_least(1)] = 2, on: str = "x") -> None: ...

    options = options_of(method)
    assert list(options) == ["factor", "on"]
    assert checked("option of m", {"factor": 3}, options) == {"factor": 3}
    with pytest.raises(SettingError, match=r"^factor \(option of m\) must be at least 1, got 0$"):
        checked("option of m", {"factor": 0}, options)
    with pytest.raises(EvenlyError, match="no option of m is called 'facto'; did you mean 'factor'"):
        checked("option of m", {"facto": 3}, options)


def test_a_function_can_check_its_plain_arguments() -> None:
    @checks_options
    def spectrum(model: Any, top: Annotated[int, at_least(1)] = 5) -> int:
        return top

    assert spectrum(None, 3) == 3
    with pytest.raises(SettingError, match="top must be at least 1, got 0"):
        spectrum(None, top=0)
    with pytest.raises(SettingError, match="top must be a whole number, got 'many'"):
        spectrum(None, "many")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(int | None, "3", 3), (float, "1e-3", 0.001), (bool, "True", True), (str, "3", "3"), (int | None, "none", None)],
)
def test_a_typed_value_is_read_by_the_type_of_its_setting(kind: Any, text: str, value: Any) -> None:
    read = Option("x", kind).parsed(text)
    assert read == value
    assert type(read) is type(value)
    assert Option("x", kind).checked(read) == value


def test_a_typed_value_that_is_no_number_is_refused_as_typed() -> None:
    option = settings_of(Settings)["epochs"]
    with pytest.raises(SettingError, match="epochs must be a whole number, got 'many'"):
        option.checked(option.parsed("many"))
