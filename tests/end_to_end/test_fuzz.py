"""Bad input of every kind, drawn at random: options of every verb, damaged and odd files, wrong types in Python.

A case ends in a result or in one line with exit code 2 (an EvenlyError in Python), and within 25 seconds. What is
accepted is not trained: a case that gets as far as the first epoch is over.

EVENLY_CASES=50000 pytest tests/end_to_end/test_fuzz.py draws more of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import nn

import evenly
from evenly.cli.app import app, main
from evenly.engine.loop import Loop
from evenly.models import load_weights
from evenly.settings import Execution, Recording, Settings, settings_of

CASES = int(os.environ.get("EVENLY_CASES", "5000"))
COMMANDS, FILES, CALLS = 2 * CASES // 5, CASES // 5, 2 * CASES // 5
LIMIT = 25
pytestmark = pytest.mark.skipif(not hasattr(signal, "alarm"), reason="needs signal.alarm")

WORDS = """
    0 -1 1 2 3.5 nan inf -inf 1e400 1e-400 0x10 1_000 ² half none null true FALSE [] {} [1,2 = a=b a= =3 a=[ erm pde
    useful+sam erm,erm , + sam sgd full never cpu cuda:7 last worst-group label label,g 💥 ../.. / /dev/null /proc/self
    ~ - +5 5.0 1e308 1,2,x mlp resnet18 infer eiil basic+x lr=0.1,0.2 lr= batch_size=full,2 useful.factor=2,3 pde.x=3
    weights=nowhere.pt seed=3 probes=3 every=0 spectrum=-1 importance=x epochs=[1,x] label=y text=3 n=-5 n=10 beta_d=x
    skip_bad=1
"""
LONG = ["9" * 5000, "1" + "0" * 30, "[" * 20000, '{"a":' * 3000, "x" * 300, str(2**63), str(2**64)]
TEXTS = [*WORDS.split(), *LONG, "", " ", " 5", "a\nb", "\udcff"]


COMMAND = typer.main.get_command(app)


class Reached(BaseException):
    """Training would begin."""


class Hung(BaseException):
    """A case took too long."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with good and odd files, finished runs and a comparison."""
    home = tmp_path_factory.mktemp("home")
    y = np.arange(40) % 2
    x = (np.random.default_rng(0).normal(size=(40, 3)) + y[:, None]).astype(np.float32)
    np.savez(home / "own.npz", x=x, y=y, groups=y + 2 * (np.arange(40) % 5 == 0))
    rows = [f"{a:.3f},{b:.3f},{i % 2},{i % 3}" for i, (a, b, _) in enumerate(x)]
    (home / "own.csv").write_text("\n".join(["a,b,label,g", *rows]))
    (home / "texts.csv").write_text("text,label\n" + "\n".join(f"word{i % 5} film,{'ab'[i % 2]}" for i in range(30)))
    for name in ("cat", "dog"):
        (home / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (8, 8), (9 * i, 60 * (name == "dog"), 0)).save(home / "photos" / name / f"{i}.png")
    quick = {"epochs": 2, "batch_size": 8, "device": "cpu"}
    evenly.train(home / "own.npz", model="mlp", method="useful", record={"forgetting": True}, out=home / "run", **quick)
    evenly.compare(home / "own.npz", model="mlp", methods=["erm"], seeds=1, out=home / "table", **quick)
    torch.save(nn.Linear(3, 2).state_dict(), home / "weights.pt")
    (home / "own.toml").write_text('data = "own.npz"\nepochs = 2\nmethod = "useful"\n[options]\nfactor = 3\n')
    (home / "own.json").write_text('{"data": "own.npz", "epochs": 2, "record": {"l1": true}, "model_options": {}}')
    for name in ("empty.npz", "empty.csv", "empty.json", "empty.toml", "empty.pt", "empty.safetensors"):
        (home / name).touch()
        (home / f"noise{Path(name).suffix}").write_bytes(random.Random(0).randbytes(300))
    (home / "empty").mkdir()
    (home / "folder.npz").mkdir()
    (home / "loop").symlink_to(home / "loop")
    return home


@pytest.fixture
def stopped(monkeypatch, home):
    """Nothing trains or is drawn, the command line is put together once, and the working folder is `home`."""

    def stop(self):
        raise Reached

    monkeypatch.setattr(Loop, "run", stop)
    monkeypatch.setattr("evenly.report.figures.as_svg", lambda *_, **__: "")
    monkeypatch.setattr("evenly.cli.app.app", COMMAND)
    monkeypatch.chdir(home)

    def hang(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, hang)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(words):
    """Run a command line; what is wrong with its end, or None."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["evenly", *words]
    signal.alarm(LIMIT)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except Reached:
        return None
    except SystemExit as ended:
        text = err.getvalue()
        if ended.code in (0, 1, None):
            return None
        last = text.splitlines()[-1:]  # others may tell what was read before
        good = ended.code == 2 and last and last[0].startswith("evenly: ") and "Traceback" not in text
        return None if good else f"exit code {ended.code}: {text[-1500:]}"
    except Hung:
        return "it hangs"
    finally:
        signal.alarm(0)
    return "it returned"


def call(function, *arguments, **options):
    """Call a function; what is wrong with its end, or None."""
    signal.alarm(LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments, **options)
    except Reached:
        return None
    except evenly.EvenlyError as error:
        return None if "\n" not in str(error) and len(str(error)) < 2000 else f"not one line: {str(error)[:500]}"
    except Hung:
        return "it hangs"
    except Exception:
        return traceback.format_exc()[-1500:]
    finally:
        signal.alarm(0)
    return None


def report(failures):
    """The first failures of each kind, by their last line."""
    kinds = {}
    for case, failure in failures:
        kinds.setdefault(re.sub(r"\d+", "0", failure.strip().splitlines()[-1])[:100], (case, failure))
    return "\n\n".join(f"{str(case)[:300]}\n{failure}" for case, failure in kinds.values())


def command(draw, home):
    """A verb with a few of its options, of which most have a value that cannot be."""
    verbs = COMMAND.commands
    verb = draw.choice(["train"] * 4 + ["compare"] * 3 + [*verbs])
    places = ["own.npz", "own.csv", "texts.csv", "photos", "run", "table", "patches", "shortcut-digits"]
    odd = sorted(path.name for path in home.iterdir() if path.name not in ("run", "table"))
    words = [verb]
    for parameter in verbs[verb].params:
        if parameter.param_type_name == "argument" and draw.random() < 0.95:
            of_runs = {"report": odd, **{name: ["run"] for name in ("predict", "export", "audit", "stability")}}
            likely = of_runs.get(verb, places)
            words.append(draw.choice(draw.choice([likely, likely, likely, places, odd, TEXTS])))
    options = [each for each in verbs[verb].params if each.param_type_name == "option" and each.name != "help"]
    for option in draw.sample(options, min(len(options), draw.choice([1, 1, 2, 3]))):
        words.append(draw.choice(option.opts))
        if not option.is_flag:
            words.append(draw.choice(draw.choice([TEXTS, TEXTS, TEXTS, places, odd])))
    if verb == "reproduce":
        words += ["--device", draw.choice(["x", "cuda:9", ""])]
    if verb in ("demo", "audit", "stability"):  # these compute; nothing is left of them but what is refused
        words += [draw.choice(["--seed", "--device"]), draw.choice(["x", "cuda:9", ""])]
    return words


def test_command_lines(home, stopped):
    draw, failures = random.Random(1), []
    for _ in range(COMMANDS):
        words = command(draw, home)
        if (failure := run(words)) is not None:
            failures.append((words, failure))
    assert not failures, f"{len(failures)} of {COMMANDS}\n{report(failures)}"


def damaged(content, draw):
    """A file's content with bits flipped, a part replaced, doubled or left out, or something odd altogether."""
    start, length = draw.randrange(max(1, len(content))), draw.randrange(1, 200)
    part, end = content[start : start + length], content[start + length :]
    flipped = bytes(byte ^ (1 << draw.randrange(8)) for byte in part[:3]) + part[3:]
    odd = [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"\0" * 50, b'{"format": 2}', b"[" * 10**5, b"9" * 10**4]
    kept = [flipped, b"", part * 2, draw.randbytes(len(part)), b"nan", b'"', b",,,\n", b"1e999", b"\xef\xbb\xbf"]
    return draw.choice(odd) if draw.random() < 0.2 else content[:start] + draw.choice(kept) + end


USES = {
    "own.npz": ["train own.npz", "predict run own.npz --out p.csv"],
    "own.csv": ["train own.csv", "train own.csv --groups g", "predict run own.csv --out p.csv"],
    "texts.csv": ["train texts.csv"],
    "own.toml": ["train --config own.toml"],
    "own.json": ["train --config own.json", "compare --config own.json"],
    "photos/cat/0.png": ["train photos --model mlp", "train photos -d skip_bad=true --model mlp"],
    "weights.pt": ["train own.npz --model mlp --model-option weights=weights.pt"],
    "table/results.json": ["compare own.npz --methods erm --seeds 1 --model mlp --epochs 2 --batch-size 8 --out table"],
    "table/config.json": ["compare own.npz --methods erm --seeds 1 --model mlp --epochs 2 --batch-size 8 --out table"],
}
OF_A_RUN = [
    "predict run own.npz --out p.csv",
    "export run --out e.safetensors",
    "train --config run/config.json --out again",
    "train own.npz --model mlp --method useful --record forgetting=true --epochs 2 --batch-size 8 --out run",
]


def test_files(home, stopped, tmp_path, monkeypatch):
    draw, failures = random.Random(2), []
    shutil.copytree(home, tmp_path / "home", symlinks=True)
    monkeypatch.chdir(tmp_path / "home")
    of_a_run = {str(path.relative_to(home)): OF_A_RUN for path in (home / "run").rglob("*") if path.is_file()}
    for _ in range(FILES):
        name = draw.choice([*USES, *of_a_run])
        whole, words = Path(name).read_bytes(), draw.choice({**USES, **of_a_run}[name]).split()
        content = damaged(whole, draw)
        Path(name).write_bytes(content)
        if (failure := run(words)) is not None:
            failures.append(((name, content, words), failure))
        Path(name).write_bytes(whole)
        for left in ("p.csv", "e.safetensors"):
            Path(left).unlink(missing_ok=True)
    assert not failures, f"{len(failures)} of {FILES}\n{report(failures)}"


def calls(home):
    """Functions with arguments that they take."""
    x, y = torch.randn(24, 3), torch.arange(24) % 2
    data = evenly.Data(train=(x, y, y), validation=(x, y, y), test=(x, y, y))
    base = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    settings = {name: option.default for name, option in settings_of(Settings).items()}
    execution = {name: option.default for name, option in settings_of(Execution).items() if name != "jobs"}
    common = {"model": "mlp", "record": None, "data_options": None, "out": None, "model_options": {}}
    train = {"method": "pde", "optimizer": "sgd", "seed": 0, "budget": None, "warmup_epochs": 1, "cap": None}
    compare = {"methods": ["erm"], "optimizers": ["sgd"], "seeds": 1, "options": None, "sweep": None, "controls": True}
    recording = {name: option.default for name, option in settings_of(Recording).items()}
    return [
        *[(evenly.train, {"data": data, **common, **train, **settings, **execution})] * 4,
        *[(evenly.compare, {"data": data, **common, **compare, **settings, **execution})] * 3,
        (evenly.Data, {"train": (x, y, y), "validation": (x, y), "test": (x, y), "class_names": None, "name": "toy"}),
        (evenly.Data, {"train": (x, y), "group_names": None, "recipe": {}, "about": ""}),
        (lambda x, y, groups: evenly.Data(train=(x, y, groups)), {"x": x, "y": y, "groups": y}),
        (lambda record: evenly.train(data, record=record), {"record": {}}),
        (lambda **record: evenly.train(data, record=record), recording | {"l1": True}),
        (lambda data: evenly.load(home / "run").predict(data), {"data": x}),
        (evenly.load, {"folder": home / "run", "model": None}),
        (evenly.load_comparison, {"folder": home / "table"}),
        (evenly.write_report, {"target": home / "nowhere", "path": None}),
        (evenly.Upsample, {"hard": [1, 2], "total": 5, "factor": 2, "seed": 0}),
        (evenly.ProgressiveExpansion, {"groups": y, "warmup_epochs": 1, "every": 1, "add": 1, "cap": None, "seed": 0}),
        (evenly.hard_examples, {"logits": torch.randn(24, 2), "labels": y, "on": "probabilities", "seed": 0}),
        (evenly.SAM, {"base": base, "rho": 0.05}),
        (evenly.ASAM, {"base": base, "rho": 1.0, "eta": 0.01}),
        (evenly.RandomPerturbation, {"base": base, "sigma": 0.01}),
        (load_weights, {"model": nn.Linear(3, 2), "path": home / "weights.pt", "strict": True, "replace_head": True}),
    ]


def values(home):
    x = torch.randn(24, 3)
    return [
        None, 0, 1, -1, 3, 2.5, 10**30, 2**63, True, float("nan"), float("inf"), "", "x", "erm", "none", "label", b"x",
        [], [1], ["a", None], {}, {"a": 1}, {1: 2}, {"lr": [1]}, (), (1, 2), {3}, object(), Path("nowhere"),
        home / "own.npz", home / "run", np.float32(3), np.array(3), np.array(["a"]), np.zeros((24, 3)),
        np.zeros((24, 3), complex), np.zeros((24, 3), object), np.array([], float), x, x[:0], x.double(),
        x.to(torch.complex64), x.to_sparse(),
        x.to(torch.float8_e4m3fn), x * torch.nan, x.to("meta"), torch.arange(24), torch.arange(24) % 2, torch.tensor(3),
        torch.zeros(24, dtype=torch.bool), torch.ones(24) / 3, -torch.arange(24), torch.arange(24) * 10**9, nn.Linear,
        nn.Linear(3, 2), nn.Linear(4, 7), nn.ReLU(), range(3), range(24), iter([1]), slice(3), int, ..., "9" * 5000,
        evenly.Data(train=(x, torch.arange(24) % 2)), (x, torch.arange(24) % 2), [x, x], 1j, "💥", "a\nb",
    ]  # fmt: skip


def test_python_calls(home, stopped):
    draw, failures = random.Random(3), []
    functions, odd = calls(home), values(home)
    for _ in range(CALLS):
        function, arguments = draw.choice(functions)
        arguments = dict(arguments)
        for name in draw.sample([*arguments], min(len(arguments), draw.choice([1, 1, 2]))):
            arguments[name] = draw.choice(odd)
        if (failure := call(function, **arguments)) is not None:
            failures.append(((function, arguments), failure))
    assert not failures, f"{len(failures)} of {CALLS}\n{report(failures)}"
