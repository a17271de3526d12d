"""Lightning: evenly's optimizers under automatic or manual optimization, its samplers, and USEFUL and PDE as callbacks.

>>> import lightning.pytorch as pl
>>> class Net(pl.LightningModule):
...     def configure_optimizers(self):
...         return evenly.SAM(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), rho=0.05)
>>> trainer = pl.Trainer(callbacks=[SAMCallback(), WorstGroupAccuracy(groups)], gradient_clip_val=1.0)

>>> useful = UsefulCallback(train_set)
>>> loader = DataLoader(train_set, batch_size=128, sampler=useful.sampler)
>>> pl.Trainer(max_epochs=200, callbacks=[useful]).fit(Net(), loader)

The classes are for the package ``lightning``; ``pytorch_lightning`` is a different package with its own classes.
"""

from evenly.integrations.hosts import missing

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("lightning", error) from error

from evenly.integrations.lightning.hard_examples import HardExamples
from evenly.integrations.lightning.pde_callback import PDECallback
from evenly.integrations.lightning.sam_callback import SAMCallback
from evenly.integrations.lightning.sampler_callback import SamplerCallback
from evenly.integrations.lightning.useful_callback import UsefulCallback
from evenly.integrations.lightning.worst_group_accuracy import WorstGroupAccuracy

__all__ = [
    "HardExamples",
    "PDECallback",
    "SAMCallback",
    "SamplerCallback",
    "UsefulCallback",
    "WorstGroupAccuracy",
    "callbacks",
]


def callbacks() -> list[SAMCallback]:
    """Callbacks for every Trainer, if this is an entry point of ``lightning.pytorch.callbacks_factory``."""
    return [SAMCallback()]
