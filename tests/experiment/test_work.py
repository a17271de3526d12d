"""What runs need, and what of their data goes to workers that cannot read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve
from torch import nn

from evenly import Data
from evenly.experiment.graph import RunNode
from evenly.experiment.request import Request, Source, plan_for
from evenly.experiment.work import PROCESS, RunWork
from evenly.parallel.graph import Failed, Finished
from evenly.parallel.on_ray import Needs
from evenly.settings import Execution

DATA = Data(train=(torch.randn(100, 8), torch.arange(100) % 2), test=(torch.randn(20, 8), torch.arange(20) % 2))


def work_and_node(given, model="mlp", **values):
    work = RunWork(Source(given, {}), Execution(device="cpu"), Path("out"))
    data = work.data(3)
    plan = plan_for(Request("erm", "sgd", model, values), data, work.source.spec(data), 3)
    return work, RunNode(plan, "erm, seed 3")


def test_memory_is_estimated_from_data_and_weights():
    """120 rows of 8 numbers of 4 bytes, twice; 8 weights for each of 2 classes and 2 biases, ten times."""
    work, node = work_and_node(DATA, lambda: nn.Linear(8, 2), threads=2)
    assert work.needs(node) == Needs(2, 0, PROCESS + 2 * (120 * 8 * 4) + 10 * 4 * (8 * 2 + 2))


@pytest.mark.parametrize(("kind", "key"), [("file", 3), ("function", 3), ("object", None), ("name", None)])
def test_only_what_a_worker_cannot_have_is_sent(kind, key, tmp_path):
    (tmp_path / "rows.csv").write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(40)))
    given = {"file": tmp_path / "rows.csv", "function": lambda seed: DATA, "object": DATA, "name": "shortcut-digits"}[
        kind
    ]
    work, node = work_and_node(given)
    assert work.data_key(node) == key
    sent = work.elsewhere(tmp_path, work.data_of(node) if key is not None else None)
    (tmp_path / "rows.csv").unlink()
    assert sent.data(3).fingerprint() == work.data_of(node).fingerprint()
    assert sent.place(node) == tmp_path / "runs" / node.folder_name
    assert sent.execution == work.execution


def test_a_run_whose_workers_died_on_another_disk_is_known_to_have_failed_and_can_be_run_again(tmp_path):
    work, node = work_and_node(DATA, epochs=1, batch_size=50)
    work = evolve(work, folder=tmp_path)
    work.keep_failure(
        Failed("waits", "it waits for erm, which failed"), evolve(node, plan=evolve(node.plan, after="a"))
    )
    assert not list(tmp_path.iterdir())
    work.keep_failure(Failed(node.id, "its machine left the cluster, 20 times"), node)
    assert work.known(node) == Failed(node.id, "its machine left the cluster, 20 times")
    work(node, lambda share, note: None)
    assert isinstance(work.known(node), Finished)
