"""One network trained by several processes: the weights of one process, every example as often as the method says, also
where a run goes on with another number of processes or a process is killed.

EVENLY_RANK_KILLS=10 pytest tests/experiment/test_torchrun.py -k kill
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import evenly
from evenly.data import GroupBalanced, ProgressiveExpansion, Upsample
from evenly.files import read_json, write_json

WORKER = Path(__file__).with_name("torchrun_worker.py")
spec = importlib.util.spec_from_file_location("torchrun_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

KILLS = int(os.environ.get("EVENLY_RANK_KILLS", "2"))
FEW = {"epochs": 20}  # sets of a fifth of the examples: 50 steps take as many epochs
EARLY = {"lr": 0.02, "separating_epoch": 1}  # an early network that relies on the spurious feature
JOBS = {
    "erm": {},
    "useful": {"method": "useful", "select": "last"},
    "pde": {"method": "pde", "select": "last", "warmup_epochs": 8, "every": 3, "add": 20} | FEW,
    "group_dro": {"method": "group_dro"},
    "jtt": {"method": "jtt"} | EARLY,
    "dfr": {"method": "dfr"},
    "eiil": {"method": "eiil"} | EARLY,
    "lff": {"method": "lff"},
    "reweight": {"method": "reweight", "by": "loss"},
    "subsample": {"method": "subsample"} | FEW,
    "upweight": {"method": "upweight"},
    "sam": {"optimizer": "sam"},
    "asam": {"optimizer": "asam"},
    "lsam": {"optimizer": "lsam"},
    "random_perturbation": {"optimizer": "random_perturbation"},
    "sam-adamw": {"optimizer": "sam:adamw", "lr": 0.01},
    "in 3 passes": {"accumulate": 3, "optimizer": "sam"},
    "group_dro in 3 passes": {"accumulate": 3, "method": "group_dro"},
    "local_sam": {"optimizer": "local_sam", "rho": 0.5},
    "noisy": {"optimizer": "noisy"},
    "inferred groups": {"method": "pde", "groups": "infer", "select": "last"} | FEW,
}
PAIRED = {
    "normalised": {"network": "Normalised", "optimizer": "sam"},
    "normalised in 4 passes": {"network": "Normalised", "method": "group_dro", "accumulate": 4},
}
"""Of these, two processes have other numbers than one: batch normalisation and dropout see each one's part."""
STOPPED = {
    "stopped useful": {"method": "useful", "select": "last", "stop_at": 0.5},
    "stopped pde": JOBS["pde"] | {"stop_at": 0.6},  # two of four expansions are over
    "stopped local_sam": JOBS["local_sam"] | {"stop_at": 0.5},
}
pytestmark = pytest.mark.filterwarnings("ignore:select 'worst-group:evenly.errors.EvenlyWarning")


def environment():
    source = Path(evenly.__file__).parents[1]
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def torchrun(processes, *arguments, check=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, *map(str, arguments)], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def train(folder, jobs, processes):
    """Train in one process, this one, or in several; of every job, what each process saved."""
    folder.mkdir(exist_ok=True)
    listed = [{"name": name, **job} for name, job in jobs.items()]
    if processes == 1:
        for job in listed:
            worker.train(folder, **job)
    else:
        (folder / "jobs.json").write_text(json.dumps(listed))
        torchrun(processes, WORKER, folder, folder / "jobs.json")
    return {name: [saved(folder, name, rank) for rank in range(processes)] for name in jobs}


def saved(folder, name, rank):
    return torch.load(folder / f"{name}.{rank}.pt", weights_only=True)


def seen(parts):
    """How often each example had a gradient."""
    numbers = [number for part in parts for each in part["passes"] for number in each]
    return torch.bincount(torch.tensor(numbers), minlength=worker.EXAMPLES)


def distance(first, second):
    return max(((first[name] - second[name]).norm() / first[name].norm()).item() for name in first)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, one_thread):
    return train(tmp_path_factory.mktemp("alone"), JOBS, 1)


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def pair(pair_folder):
    return train(pair_folder, JOBS | PAIRED | STOPPED, 2)


@pytest.mark.parametrize("name", [name for name in JOBS if name != "local_sam"])
def test_two_processes_reach_the_weights_of_one(alone, pair, name):
    (one,), both = alone[name], pair[name]
    steps = len(one["passes"]) / (3 if "3 passes" in name else 1)
    assert steps >= 50
    assert distance(one["weights"], both[0]["weights"]) < 1e-5
    assert all(torch.equal(both[0]["weights"][key], both[1]["weights"][key]) for key in one["weights"])
    assert [one["cost"]] * 2 == [each["cost"] for each in both]
    assert [each["processes"] for each in both] == [2, 2]
    if "selection" in one:
        assert len(one["selection"]) > 0
        assert all(torch.equal(one["selection"], each["selection"]) for each in both)


@pytest.mark.parametrize("name", PAIRED)
def test_the_outputs_kept_are_those_of_the_network_kept(pair, pair_folder, name):
    """Each process evaluates some of the batches: running statistics must be the same in all."""
    first, second = pair[name]
    assert all(torch.equal(first["weights"][key], second["weights"][key]) for key in first["weights"])
    kept = np.load(pair_folder / name / "predictions.npz")["test_outputs"]
    assert np.abs(kept - first["test outputs"].numpy()).max() < 1e-5
    if "method" in PAIRED[name]:
        assert torch.equal(seen(pair[name]), expected_counts("group_dro"))
    else:
        assert seen(pair[name]).eq(2 * worker.EPOCHS).all()


def test_accumulation_goes_with_batch_normalisation_in_one_process(tmp_path, one_thread):
    """The last batch has three rows: one pass."""
    ((end,),) = train(tmp_path, {"normalised": PAIRED["normalised in 4 passes"]}, 1).values()
    assert torch.isfinite(end["weights"]["layers.0.weight"]).all()


def expected_counts(name, selection=None):
    """From the method's own sampler, epoch by epoch."""
    data = worker.data()
    groups, total = data.train.groups, len(data.train)
    samplers = {
        "pde": lambda: ProgressiveExpansion(groups, 8, 3, 20, seed=0),
        "group_dro": lambda: GroupBalanced(groups, seed=0),
        "useful": lambda: Upsample(selection, total, 2, seed=0),
    }
    sampler, counts = samplers[name](), torch.zeros(total, dtype=torch.long)
    for epoch in range(JOBS[name].get("epochs", worker.EPOCHS)):
        sampler.set_epoch(epoch)
        counts += torch.bincount(sampler.members(), minlength=total)
    return counts


@pytest.mark.parametrize("name", [name for name in JOBS if name != "local_sam"])
def test_every_example_has_a_gradient_as_often_as_in_one_process(alone, pair, name):
    assert torch.equal(seen(alone[name]), seen(pair[name]))


def test_every_example_has_a_gradient_as_often_as_the_method_says(pair):
    assert seen(pair["erm"]).eq(worker.EPOCHS).all()
    assert seen(pair["sam"]).eq(2 * worker.EPOCHS).all()
    for name in ("pde", "group_dro"):
        assert torch.equal(seen(pair[name]), expected_counts(name))
    repeated, counts = pair["useful"][0]["selection"], seen(pair["useful"])
    early = counts - expected_counts("useful", repeated)
    assert early.eq(early[0]).all()
    assert 1 <= early[0] <= worker.EPOCHS


def test_local_sam_perturbs_by_each_process_s_own_part(pair):
    """Against the same sums written out, for a batch in two halves."""
    torch.manual_seed(3)
    model, data = worker.Counting(), worker.data()
    sampler, x, y = evenly.Upsample([], worker.EXAMPLES, 1, seed=0), data.train.inputs, data.train.labels
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parameters = list(model.parameters())

    def gradient(rows):
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows], reduction="sum")
        return torch.autograd.grad(loss, parameters)

    for epoch in range(worker.EPOCHS):
        sampler.set_epoch(epoch)
        for batch in sampler.indices().split(worker.BATCH):
            total = [torch.zeros_like(p) for p in parameters]
            for rows in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                first = gradient(rows)
                norm = torch.cat([g.flatten() for g in first]).norm()
                kept = [p.detach().clone() for p in parameters]
                with torch.no_grad():
                    for p, g in zip(parameters, first, strict=True):
                        p.add_(0.5 * g / norm)
                second = gradient(rows)
                with torch.no_grad():
                    for p, w, t, g in zip(parameters, kept, total, second, strict=True):
                        p.copy_(w)
                        t.add_(g / len(batch))
            for p, t in zip(parameters, total, strict=True):
                p.grad = t
            optimizer.step()
    assert distance(model.state_dict(), pair["local_sam"][0]["weights"]) < 1e-5


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_run_goes_on_with_another_number_of_processes(alone, pair, pair_folder, tmp_path, processes, one_thread):
    for name in ("stopped useful", "stopped pde"):
        shutil.copytree(pair_folder / name, tmp_path / "on" / name)
    jobs = {name: {k: v for k, v in STOPPED[name].items() if k != "stop_at"} for name in STOPPED if "local" not in name}
    ends = train(tmp_path / "on", jobs, processes)
    for name, end in ends.items():
        (one,) = alone[name.removeprefix("stopped ")]
        assert "weights" not in pair[name][0]
        assert distance(one["weights"], end[0]["weights"]) < 1e-5
        assert torch.equal(one["selection"], end[0]["selection"])
        assert torch.equal(seen(pair[name]) + seen(end), seen([one]))
        assert end[0]["processes"] == processes


def test_local_sam_of_other_numbers_of_processes_makes_no_table(tmp_path, done, refused):
    words = "compare spurious-patches --methods erm --optimizers local_sam --select last --seeds 1 --epochs 2"
    words = f"{words} --out {tmp_path / 'c'}"
    done(words)
    results = next((tmp_path / "c" / "runs").glob("*local*/results.json"))
    write_json(results, read_json(results) | {"processes": 2})
    refused(words, "local_sam was trained by 2 processes in .*, and by 1 it would be another method")


def test_local_sam_does_not_go_on_with_another_number_of_processes(pair, pair_folder, tmp_path, refused_call):
    shutil.copytree(pair_folder / "stopped local_sam", tmp_path / "local")
    arguments = {key: value for key, value in STOPPED["stopped local_sam"].items() if key != "stop_at"}
    refused_call("begun with 2 processes .* cannot go on with 1; start 2", worker.train, tmp_path, "local", **arguments)


def test_processes_with_other_settings_are_refused_in_all(tmp_path):
    script = tmp_path / "differ.py"
    script.write_text(
        "import os, sys, evenly, torch\n"
        "x, y = torch.randn(60, 3), torch.arange(60) % 2\n"
        "try:\n"
        "    evenly.train((x, y), model='mlp', epochs=1 + int(os.environ['RANK']))\n"
        "except evenly.EvenlyError as error:\n"
        "    open(sys.argv[1] + os.environ['RANK'], 'w').write(str(error))\n"
        "from evenly.engine import Fit\n"
        "from evenly.engine.world import current\n"
        "world, rank = current(torch.device('cpu')), os.environ['RANK']\n"
        "try:\n"
        "    evenly.improve((x, y), model='mlp', out=sys.argv[1] + '-job')\n"
        "except evenly.EvenlyError as error:\n"
        "    assert 'improve shares no run among 2 processes' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
        "fit = Fit(evenly.settings.Settings(), None, world=world)\n"
        "assert fit.load_or_compute('chosen', lambda: {'rank': rank}) == {'rank': '0'}\n"
        "assert world.all_reach('here') and world.all_reach('here')\n"
        "try:\n"
        "    world.shared(lambda: 1 / int(rank))\n"
        "except (evenly.EvenlyError, ZeroDivisionError) as error:\n"
        "    assert 'division' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    torchrun(2, script, f"{tmp_path}/said")
    for rank in (0, 1):
        assert (
            "process 1 of 2 has other data, another model or other settings" in (tmp_path / f"said{rank}").read_text()
        )


def test_the_shell_compares_in_two_processes_and_the_first_one_prints(tmp_path, done):
    words = "compare shortcut-digits --methods erm,group_dro --seeds 2 --epochs 2 --out"
    both = torchrun(2, "-m", "evenly", *words.split(), tmp_path / "both")
    assert both.stdout.replace("/both", "/one") == done(f"{words} {tmp_path / 'one'}")
    tables = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("both", "one")]
    accuracies = [[row["result"]["splits"]["test"]["accuracy"] for row in table["rows"]] for table in tables]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=2e-3)
    assert (tmp_path / "both" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train no-such-data", "evenly: .*no-such-data"),
        ("compare shortcut-digits --jobs 2", "evenly: jobs 2 shares runs among processes, .* torchrun"),
    ],
)
def test_the_shell_says_once_what_is_wrong(words, message):
    done = torchrun(2, "-m", "evenly", *words.split(), check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("evenly: ")]
    assert done.returncode != 0
    assert len(said) == 1, done.stderr
    assert re.match(message, said[0])
    assert not done.stdout


@pytest.mark.parametrize("verb", ["demo", "improve", "audit"])
def test_verbs_that_share_no_work_are_refused(refused, monkeypatch, verb):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    refused(
        f"{verb} shortcut-digits", f"torchrun starts `evenly {verb}` several times over; it is for train and compare"
    )


def workers_of(pid):
    """The processes that torchrun has started, in no order."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_killing_a_random_process_changes_nothing(pair, tmp_path):
    """SIGKILL; torchrun starts all processes again, and the run goes on from its checkpoint."""
    job = JOBS["pde"] | {"name": "killed", "sleep": 0.15}
    (tmp_path / "jobs.json").write_text(json.dumps([job]))
    metrics, draw, killed = tmp_path / "killed" / "metrics.jsonl", random.Random(11), []
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = [f"--max-restarts={KILLS}", "--monitor-interval=0.1", WORKER, tmp_path, tmp_path / "jobs.json"]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen([*command, *map(str, options)], env=environment(), stdout=log, stderr=log)
        rows, until = 1, time.monotonic() + 60 + 30 * KILLS
        while len(killed) < KILLS and run.poll() is None and time.monotonic() < until:
            written = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            if written > rows and len(children := workers_of(run.pid)) == 2:
                time.sleep(0.3 * draw.random())
                rank = draw.randrange(2)
                os.kill(sorted(children)[rank], signal.SIGKILL)
                killed.append(rank)
                rows = len(metrics.read_text().splitlines())  # the next kill waits until the run has gone on
                while sorted(children) == sorted(workers_of(run.pid)) and time.monotonic() < until:
                    time.sleep(0.05)
            time.sleep(0.02)
        try:
            run.wait(timeout=60)
        finally:
            run.terminate()
    assert run.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert len(killed) == KILLS
    end = [saved(tmp_path, "killed", rank) for rank in (0, 1)]
    for key, weights in pair["pde"][0]["weights"].items():
        assert torch.equal(weights, end[0]["weights"][key])
    assert torch.equal(pair["pde"][0]["selection"], end[0]["selection"])
