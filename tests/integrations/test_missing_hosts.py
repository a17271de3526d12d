"""The error for a host that is not installed names it and the command that installs it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from evenly.errors import EvenlyError

HOSTS = {
    "lightning": "lightning.pytorch",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "skorch": "skorch",
    "torchmetrics": "torchmetrics",
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_missing_host_is_named_with_the_command_that_installs_it(host, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(f"evenly.integrations.{host}")]:
        monkeypatch.delitem(sys.modules, name)
    if host == "transformers":  # the first of its two to be imported
        monkeypatch.setitem(sys.modules, "accelerate.optimizer", None)
    monkeypatch.setitem(sys.modules, HOSTS[host], None)
    extra = "transformers" if host == "accelerate" else host
    with pytest.raises(EvenlyError, match=rf"evenly\.integrations\.{host} needs .*pip install 'evenly\[{extra}\]'"):
        importlib.import_module(f"evenly.integrations.{host}")


def test_importing_evenly_and_its_integrations_imports_no_host():
    code = "import sys, evenly, evenly.integrations, evenly.optim; print([h for h in %r if h in sys.modules])"
    names = [*HOSTS]
    done = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
