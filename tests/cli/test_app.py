"""The command line as a whole: help, exit codes, messages as they are typed here, and how little it loads."""

import os
import re
import subprocess
import sys
import warnings

import pytest

from evenly import EvenlyError, __version__
from evenly.cli import main
from evenly.errors import EvenlyWarning

VERBS = [
    "demo",
    "train",
    "compare",
    "predict",
    "export",
    "audit",
    "stability",
    "reproduce",
    "report",
    "status",
    "log",
    "methods",
    "datasets",
    "models",
    "optimizers",
    "cache",
]


def test_version_and_help(evenly):
    assert evenly("--version") == (0, f"evenly {__version__}\n", "")
    code, out, _ = evenly("--help")
    assert code == 0
    assert re.findall(r"^  (\w+)  .*[^.]\.$", out, re.MULTILINE) == VERBS  # whole sentences, none cut
    assert "Commands:\n" in evenly()[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_in_80_columns(evenly, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = evenly(verb, "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(rf"Examples?:\s+evenly {verb}", out)
    options = out.partition("Options:")[2]
    assert not re.search(r"<str>|<list", options)
    assert not re.search(r"^  --\S+( \S+)?\n  -", options, re.MULTILINE)  # an option without help
    assert evenly(verb, "-h")[1] == out


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return done.stdout.split()


def test_help_and_import_load_neither_torch_nor_numpy():
    """In under 0.4 s of the processor's time."""
    for code in ("import evenly", "import evenly.cli, sys\nsys.argv = ['evenly', '--help']\ntry: evenly.cli.main()\n"
                 "except SystemExit: pass"):  # fmt: skip
        *_, seconds = loaded = in_a_new_process(
            f"{code}\nimport sys, time\nprint('|', *{{'torch', 'numpy'}} & set(sys.modules), time.process_time())"
        )
        assert loaded[-2] == "|"
        assert float(seconds) < 0.4
    assert "numpy" in in_a_new_process("import evenly.data, sys\nprint(*{'numpy'} & set(sys.modules))")


@pytest.mark.parametrize(("words", "code"), [(["methods"], 0), (["train", "nowhere.npz"], 2)])
def test_as_a_process_of_its_own(tmp_path, words, code):
    done = subprocess.run([sys.executable, "-m", "evenly", *words], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1 if code else 0)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tran x", "tran"),
        ("methods --speed", "--speed"),
        ("train x extra", "extra"),
        ("predict a", "(?i)missing argument"),
        ("audit a --top many", "--top must be a whole number, got 'many'|'many' is not a valid int"),
        ("export a --to pickle", "--to.*'pickle'"),
    ],
)
def test_what_is_misspelt_is_refused_in_one_line(refused, command, message):
    refused(command, message)


@pytest.mark.parametrize(
    ("hint", "typed"),
    [
        ("use select='last'", "use --select last"),
        ("leave them out with skip_bad=True", "leave them out with -d skip_bad=true"),
        ("name another with label=COLUMN, or add", "name another with -d label=COLUMN, or add"),
        ("e.g. groups=label,place", "e.g. --groups label,place"),
        ("write -d label=stars", "write -d label=stars"),
        ("/data/label=1/a.csv has no column 'x'", "/data/label=1/a.csv has no column 'x'"),
        ("write e.g. factor=3", "write e.g. factor=3"),
        ("use on='train'", "use on=train"),
        ("give optimizer(lr=0.1)", "give optimizer(lr=0.1)"),
        ("in two\nlines", "in two lines"),
    ],
)
def test_hints_are_given_as_they_are_typed(monkeypatch, capsys, hint, typed):
    def raises(**_):
        raise EvenlyError(hint)

    monkeypatch.setattr("evenly.cli.app.app", raises)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (2, f"evenly: {typed}\n")


def test_warnings_of_evenly_are_one_line(evenly, monkeypatch):
    monkeypatch.setattr("evenly.report.console.show_list", lambda *_: warnings.warn("use on='x'", EvenlyWarning, 2))
    assert evenly("methods") == (0, "", "evenly: use on=x\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ZeroDivisionError("ours"), 70, "ZeroDivisionError: ours"),
        (KeyboardInterrupt(), 130, "evenly: stopped; the same command goes on where it stopped\n"),
        (FileNotFoundError("no such file"), 2, "evenly: no such file\n"),
    ],
)
def test_exit_codes(evenly, monkeypatch, error, code, message):
    def broken(*_):
        raise error

    monkeypatch.setattr("evenly.report.console.show_list", broken)
    exited, _, err = evenly("methods")
    assert exited == code
    assert err.endswith(message) or message in err.splitlines()[-1]
