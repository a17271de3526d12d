"""accelerate: a loader with one of evenly's samplers in a loop of one's own.

>>> sampler = evenly.Sharded(evenly.ProgressiveExpansion(groups, warmup_epochs=6))
>>> loader = prepare_loader(accelerator, DataLoader(dataset, batch_size=16, sampler=sampler))
>>> for epoch in range(first_epoch, epochs):
...     loader.set_epoch(epoch)
...     skip = first_batch if epoch == first_epoch else 0                   # where the run resumes
...     for batch in accelerator.skip_first_batches(loader, skip):
...         ...

``accelerator.prepare`` takes a loader with the sampler itself, without ``Sharded``. It then fills the last batches of
an epoch from its first, W b - 1 examples at most for W processes and batches of b; here it is W - 1.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from evenly.data.sharding import Sharded
from evenly.errors import EvenlyError
from evenly.integrations.hosts import missing

try:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader
except ModuleNotFoundError as error:
    raise missing("accelerate", error, extra="transformers") from error


def prepare_loader(accelerator: Accelerator, loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader whose sampler is an :class:`evenly.Sharded`, prepared: batches on the device, ``set_epoch``, and known
    to ``accelerator.accumulate``.

    ``accelerator.prepare`` would divide its batches among the processes once more, so that most examples are not seen.
    It leaves the loader that this returns as it is.

    Args:
        accelerator: of this process.
        loader: reads one process's part of an epoch; it may not drop the last batch.
    """
    if not isinstance(loader.sampler, Sharded):
        raise EvenlyError(
            f"prepare_loader needs a loader whose sampler is an evenly.Sharded, got a {type(loader.sampler).__name__}; "
            "give DataLoader(..., sampler=evenly.Sharded(sampler))"
        )
    refused = {
        "drop_last=True": loader.drop_last,
        "dispatch_batches=True": accelerator.dispatch_batches,
        "split_batches=True": accelerator.split_batches,
    }
    for name, given in refused.items():
        if given:
            raise EvenlyError(f"{name} would change how often examples are seen; leave it out")
    processes = loader.sampler.processes
    if processes != accelerator.num_processes:
        raise EvenlyError(
            f"the Sharded is for {processes} processes and the accelerator has {accelerator.num_processes}; leave out "
            "its rank and processes, which it finds by itself"
        )
    device = accelerator.device if accelerator.device_placement else None
    prepared: Any = prepare_data_loader(
        loader, device, num_processes=1, process_index=0, put_on_device=device is not None, dispatch_batches=False
    )
    prepared._is_accelerate_prepared = True
    result: DataLoader[Any] = prepared
    return result
