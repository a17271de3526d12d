"""Seeds in several processes: the same numbers, and a process that cannot do its part is named in a line."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch

from evenly import Data, EvenlyError, compare
from evenly.data import load


def plain(row):
    return row.to_dict() | {"result": row.result.to_dict() | {"seconds": 0}}


def test_processes_change_nothing(tmp_path):
    """Runs of a spawned process come back with their models; results are those of this process, bit for bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ask = {"data": "shortcut-digits", "model": "mlp", "methods": ["erm", "useful"], "seeds": 2, "epochs": 2}
        one = compare(**ask, device="cpu")
        two = compare(**ask, device="cpu", jobs=2, out=tmp_path / "out")
    finally:
        torch.set_num_threads(threads)
    assert [plain(row) for row in one.rows] == [plain(row) for row in two.rows]
    assert one.summary == two.summary
    for key, run in one.runs.items():
        other = two.runs[key].model.state_dict()
        assert all(torch.equal(value, other[name]) for name, value in run.model.state_dict().items())


@pytest.mark.timeout(60)  # it once hung in the pool's shutdown
def test_what_cannot_be_sent_to_a_process_is_refused():
    """The patches' Data carries a function that observes the network; it was made inside another."""
    with pytest.raises(EvenlyError, match="use jobs 1"):
        compare(load("patches", n=40), methods=["erm"], seeds=2, jobs=2, epochs=1)


def dies_with_seed_1(seed: int):
    if seed == 1 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory runs out
    return Data(train=(torch.randn(20, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(20) % 2))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("folder", "way_out"), [("out", "the same call goes on"), (None, "again with an out")])
def test_a_worker_that_is_killed_is_one_line_and_the_call_goes_on(tmp_path, folder, way_out):
    ask = {"data": dies_with_seed_1, "methods": ["erm"], "seeds": 2, "model": "mlp", "epochs": 2, "device": "cpu"}
    out = None if folder is None else tmp_path / folder
    message = f"one of 2 worker processes was killed, perhaps for lack of memory; .*{way_out}.* fewer jobs"
    with pytest.raises(EvenlyError, match=message) as error:
        compare(**ask, jobs=2, out=out)
    assert "\n" not in str(error.value)
    if out is not None:
        assert len(compare(**ask, out=out).rows) == 2
