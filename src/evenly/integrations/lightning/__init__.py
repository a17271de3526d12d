"""Lightning: evenly's optimizers under automatic or manual optimization, and two callbacks.

>>> import lightning.pytorch as pl
>>> class Net(pl.LightningModule):
...     def configure_optimizers(self):
...         return evenly.SAM(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), rho=0.05)
>>> trainer = pl.Trainer(callbacks=[SAMCallback(), WorstGroupAccuracy(groups)], gradient_clip_val=1.0)

The classes are for the package ``lightning``; ``pytorch_lightning`` is a different package with its own classes.
"""

from evenly.integrations.hosts import missing

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("lightning", error) from error

from evenly.integrations.lightning.hard_examples import HardExamples
from evenly.integrations.lightning.sam_callback import SAMCallback
from evenly.integrations.lightning.worst_group_accuracy import WorstGroupAccuracy

__all__ = ["HardExamples", "SAMCallback", "WorstGroupAccuracy", "callbacks"]


def callbacks() -> list[SAMCallback]:
    """Callbacks for every Trainer, if this is an entry point of ``lightning.pytorch.callbacks_factory``."""
    return [SAMCallback()]
