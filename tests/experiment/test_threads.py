"""The same numbers whatever the environment says about threads: in processes, and where a run goes on elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenly
from evenly.errors import EvenlyError
from evenly.experiment import execute
from evenly.experiment.training import run_again

COMPARED = """
import hashlib, sys
import evenly

if __name__ == "__main__":
    settings = dict(model="convnet", methods=["useful"], seeds=2, epochs=1, device="cpu", controls=False)
    table = evenly.compare("shortcut-digits", **settings, jobs=int(sys.argv[1]))
    values = [w.numpy().tobytes() for run in table.runs.values() for w in run.model.state_dict().values()]
    print(hashlib.sha256(b"".join(values)).hexdigest())
"""


def test_a_comparison_has_the_same_weights_with_any_number_of_threads_and_jobs(tmp_path):
    (tmp_path / "compared.py").write_text(COMPARED)
    hashes = []
    for threads, jobs in ((1, 1), (2, 1), (2, 2)):
        names = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = os.environ | names | {"PYTHONPATH": str(Path(evenly.__file__).parents[1])}
        command = [sys.executable, str(tmp_path / "compared.py"), str(jobs)]
        hashes.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(set(hashes)) == 1


def test_a_run_goes_on_with_the_threads_it_began_with(data, tmp_path, monkeypatch, same_weights):
    large = {"model": "mlp", "model_options": {"hidden": [1000, 1000]}, "epochs": 2}
    before, seen = torch.get_num_threads(), []

    def interrupt(share, note):
        seen.append(torch.get_num_threads())
        if note.startswith("epoch 1 "):
            raise KeyboardInterrupt

    monkeypatch.setattr(execute, "cores", lambda: 2)
    whole = evenly.train(data, **large)
    with pytest.raises(KeyboardInterrupt):
        evenly.train(data, **large, out=tmp_path / "run", progress=interrupt)
    assert evenly.train(data, model="mlp", epochs=1).config.threads == 1, "a small network gains nothing from two"
    monkeypatch.setattr(execute, "cores", lambda: 8)
    assert execute.prepare(whole.plan, data).config.threads == 4
    with pytest.raises(EvenlyError, match=r"its threads are 2, not 3"):
        evenly.train(data, **large, out=tmp_path / "run", threads=3)
    rest = evenly.train(data, **large, out=tmp_path / "run", progress=lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
    assert rest.config.threads == evenly.load(tmp_path / "run").config.threads == 2
    assert same_weights(whole.model, rest.model)
    assert evenly.train(data, **large, out=tmp_path / "run", threads=2).results == rest.results
    assert run_again(rest.config, data=data, out=tmp_path / "again").config.threads == 2
    asked = evenly.train(data, **large, threads=3)
    assert asked.config.threads == 3
    assert asked.plan.digest != rest.plan.digest
