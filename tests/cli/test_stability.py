"""`evenly stability`: phase diagrams, the card of a run or of given Hessians, and what it refuses."""

import json

import numpy as np
import pytest

DIAGRAM = "--x-values 1,5,60 --y-values 1,9 --repeats 4"


def test_a_diagram(done, refused, tmp_path):
    out = done(f"stability {DIAGRAM}")
    folder = tmp_path / "stability/phase-diagram"
    assert "The theorems decide" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("page"))
    content = json.loads((folder / "stability.json").read_text())
    assert np.shape(content["diverged"]) == (2, 3)
    assert (folder / "phase.svg").stat().st_size > 1000
    assert "<svg" in (folder / "stability.html").read_text()
    assert json.loads(done(f"stability {DIAGRAM} --json")) == content
    remade(done, folder)
    (tmp_path / "mine").write_text("hello")
    refused(f"stability {DIAGRAM} --out .", "is not empty and holds no stability.json")
    (folder / "stability.json").write_text((folder / "stability.json").read_text().replace("60", "61"))
    for command in ("report stability/phase-diagram", f"stability {DIAGRAM}"):
        refused(command, r"stability.json is damaged \(its content does not match its checksum\); remove it")


def remade(done, folder):
    """`evenly report` makes the pages of a folder again, byte for byte, from what else is in it."""
    pages = {path: path.read_bytes() for path in (*folder.glob("*.html"), *folder.glob("*.svg"))}
    for path in pages:
        path.unlink()
    assert "stability.html" in done(f"report {folder}")
    assert {path: path.read_bytes() for path in pages} == pages


def test_given_hessians(done, evenly, tmp_path):
    np.savez(tmp_path / "h-0.1.npz", gradients=np.eye(3))
    out = done("stability h-0.1.npz --lr 0.5 --batch-size 3")
    assert "SGD stays at this minimum: the learning rate could be 12 times as large" in " ".join(out.split())
    assert (tmp_path / "stability/h-0.1/stability.json").exists()
    code, out, _ = evenly("stability", "h-0.1.npz", "--lr", "7", "--batch-size", "3", "--json")
    assert (code, json.loads(out)["sgd"]["answer"]) == (1, "diverges")
    remade(done, tmp_path / "stability/h-0.1")


def test_a_run_is_judged_at_its_own_settings_or_at_others(done, refused, tmp_path):
    done("train patches -d n=60 --epochs 3 --out run")
    assert "batch size 7, SGD stays" in done("stability run --batch-size 7 --rho 0.1 --out card")
    assert json.loads((tmp_path / "card/stability.json").read_text())["rho"] == 0.1
    remade(done, tmp_path / "card")
    assert "batch size 60," in done("stability run --out card")
    refused("stability run --batch-size 0 --out card", "batch")
    refused("stability --x-values 1 --y-values 1 --out card", "holds the stability of something else")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--x lr --y lr", "both axes are 'lr'"),
        ("--x-values 1,a", "--x-values must be a list of numbers, e.g. 1,2,5, got '1,a'"),
        ("--rho 0.1", "--rho is for a minimum"),
        ("--seed -1", "must be at least 0, got -1"),
        ("nowhere", "nowhere does not exist"),
        ("h.npz", "give --lr and --batch-size"),
        ("h.npz --lr 1 --batch-size 9", "must be at most 3, the number of examples, got 9"),
        ("h.npz --lr 1 --batch-size 2 --sigma 3", "--sigma is for a phase diagram"),
        ("h.npz --lr 1 --batch-size 2 --x-values 3", "--x-values is for a phase diagram"),
        ("--samples 5", "--samples is for a minimum"),
        ("h.npz --lr 0 --batch-size 2", "--lr must be above 0, got 0"),
        ("empty.npz --lr 1 --batch-size 2", "must hold one of the arrays"),
        ("bad.npz --lr 1 --batch-size 2", "not positive semidefinite: its smallest eigenvalue is -1"),
        ("text.npz --lr 1 --batch-size 2", "cannot be read"),
        ("nothing.npz --lr 1 --batch-size 2", "cannot be read"),
        ("words.npz --lr 1 --batch-size 2", "must be an array of real numbers"),
        ("text.txt", "neither a run's folder nor an .npz file"),
    ],
)
def test_refusals(refused, tmp_path, words, message):
    np.savez(tmp_path / "h.npz", gradients=np.eye(3))
    np.savez(tmp_path / "empty.npz", other=np.eye(3))
    np.savez(tmp_path / "bad.npz", hessians=np.stack([np.eye(2), -np.eye(2)]))
    np.savez(tmp_path / "words.npz", gradients=np.array([["a", "b"]]))
    for name, text in (("nothing.npz", ""), ("text.npz", "hello"), ("text.txt", "hello")):
        (tmp_path / name).write_text(text)
    refused(f"stability {words} --out out", message)
    assert not (tmp_path / "out").exists()
