"""The folder of an audit. Its page is drawn from it and needs neither the model nor the data.

audit.json              what was asked, how two models compare, and the `Findings` of each
examples.csv            every example of the judged split, the largest loss first; examples-2.csv by a second model
examples/1/17.png       of images: example 17, which the page of the first model shows, and 17-heat.png, where it looks
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from evenly.diagnose.audit_values import Findings, ShownExample
from evenly.diagnose.findings import Audit
from evenly.errors import EvenlyError
from evenly.files import atomic, make_folder, read_json, sealed, write_json

FILE, FOLDER = "audit.json", "examples"


def save_audits(folder: Path, audits: Sequence[Audit], asked: Mapping[str, Any]) -> None:
    """Write everything but the page. `audit.json` comes first: the folder is then this question's, if it is killed."""
    compared = audits[0].compared(audits[1]) if len(audits) > 1 else []
    found = [each.findings("examples.csv" if k == 1 else f"examples-{k}.csv") for k, each in enumerate(audits, 1)]
    make_folder(folder)
    content = {"asked": dict(asked), "compared": compared, "audits": [each.to_dict() for each in found]}
    write_json(folder / FILE, sealed(content))
    for number, (audit, findings) in enumerate(zip(audits, found, strict=True), 1):
        _write(folder / findings.table, _csv(audit))
        for example in (*findings.hardest, *findings.easiest):
            for path, image in zip(_images(folder, number, example), (example.png, example.heat), strict=True):
                if image is not None:
                    make_folder(path.parent)
                    _write(path, image)


def read_audits(folder: Path) -> tuple[list[Findings], list[str]]:
    """What the page shows of each model, and how two models compare."""
    content = read_json(folder / FILE, "remove it and run `evenly audit` again")
    try:
        audits = [Findings.from_dict(each) for each in content["audits"]]
        compared = [str(sentence) for sentence in content["compared"]]
    except (EvenlyError, KeyError, TypeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise EvenlyError(f"{folder / FILE} cannot be read ({why}); run `evenly audit` again") from None
    return [_with_images(each, folder, number) for number, each in enumerate(audits, 1)], compared


def _with_images(findings: Findings, folder: Path, number: int) -> Findings:
    def read(examples: Sequence[ShownExample]) -> tuple[ShownExample, ...]:
        images = [[_read(path) for path in _images(folder, number, each)] for each in examples]
        return tuple(evolve(each, png=png, heat=heat) for each, (png, heat) in zip(examples, images, strict=True))

    return evolve(findings, hardest=read(findings.hardest), easiest=read(findings.easiest))


def _images(folder: Path, number: int, example: ShownExample) -> tuple[Path, Path]:
    place = folder / FOLDER / str(number)
    return place / f"{example.index}.png", place / f"{example.index}-heat.png"


def _csv(audit: Audit) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(audit.header())
    writer.writerows(audit.rows())
    return text.getvalue().encode(errors="replace")


def _write(path: Path, content: bytes) -> None:
    with atomic(path, sync=False) as file:
        file.write(content)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None  # of texts and numbers there is none
