"""Folders that hold the answer to one question: an audit, a stability card, a phase diagram."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenly.errors import EvenlyError
from evenly.files import holds_something, make_folder, read_json, sealed, write_json


def check_answer(out: Path, file: str, question: Any, key: str = "target") -> None:
    """Refuse a folder that holds anything but an earlier answer to the same, which the file has under `key`."""
    if out.is_file():
        raise EvenlyError(f"{out} is a file; give a folder as out")
    there = read_json(out / file)
    if there is None and holds_something(out):
        raise EvenlyError(f"{out} is not empty and holds no {file}; choose another out")
    earlier = there.get(key) if isinstance(there, dict) else None
    if there is not None and (not isinstance(there, dict) or earlier != question):
        why = ""
        if isinstance(earlier, dict) and isinstance(question, dict):
            name = next(name for name in (*question, *earlier) if question.get(name) != earlier.get(name))
            why = f" (its {name.replace('_', ' ')} is {earlier.get(name)!r}, not {question.get(name)!r})"
        raise EvenlyError(f"{out} holds the {Path(file).stem} of something else{why}; choose another out")


def keep_answer(out: Path, file: str, content: Mapping[str, Any]) -> None:
    make_folder(out)
    write_json(out / file, sealed(content))
