"""Run by test_two_processes.py under torchrun: trains in a host on halves of each batch, saves the result."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from evenly.optim import SAM

RHO, CLIP, ACCUMULATE, PER_PROCESS = 0.3, 0.02, 2, 2


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def make_optimizer(net: nn.Module) -> SAM:
    return SAM(torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01), rho=RHO)


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 3, generator=generator).double()
    return x, (x[:, 0] > 0).long(), torch.randint(3, (24,), generator=generator)


def in_lightning() -> dict[str, Any]:
    import lightning.pytorch as pl

    from evenly.integrations.lightning import SAMCallback, WorstGroupAccuracy

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()
            self.seen: list[Any] = []

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.seen.append(batch[:2])

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"outputs": self.net(batch[0]), "labels": batch[1], "groups": batch[2]}

        def configure_optimizers(self) -> SAM:
            return make_optimizer(self.net)

    loader = DataLoader(TensorDataset(*data()), batch_size=PER_PROCESS)
    worst = WorstGroupAccuracy(train_groups=data()[2])
    trainer = pl.Trainer(
        max_epochs=2, callbacks=[SAMCallback(), worst], accumulate_grad_batches=ACCUMULATE, gradient_clip_val=CLIP,
        accelerator="cpu", devices=2, strategy="ddp", precision="64-true", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Net()
    trainer.fit(module, loader, loader)
    assert worst.result is not None
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    return {
        "weights": module.net.state_dict(), "seen": module.seen, "per_group": worst.result.per_group, "logged": logged,
    }  # fmt: skip


class Model(nn.Module):
    """As transformers' Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(x), labels)}


def in_transformers(folder: Path) -> dict[str, Any]:
    import transformers

    from evenly.integrations.transformers import SAMTrainer

    seen = []

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        seen.append([batch["x"], batch["labels"]])
        return batch

    model = Model()
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"), num_train_epochs=1, per_device_train_batch_size=PER_PROCESS,
        gradient_accumulation_steps=ACCUMULATE, max_grad_norm=CLIP, lr_scheduler_type="constant", report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True, ddp_backend="gloo", dataloader_pin_memory=False,
    )  # fmt: skip
    x, y, _ = data()
    rows = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    trainer = SAMTrainer(
        model, args, train_dataset=rows, data_collator=collate, optimizers=(make_optimizer(model), None)
    )
    trainer.train()
    return {"weights": model.net.state_dict(), "seen": seen}


if __name__ == "__main__":
    host, folder, rank = sys.argv[1], Path(sys.argv[2]), os.environ["RANK"]
    result = in_lightning() if host == "lightning" else in_transformers(folder)
    torch.save(result, folder / f"{rank}.pt")
