r"""How evenly SGD and SAM weight the images of CelebA, along training (Springer et al. 2024, Figures 5, 6, 8 and 9).

    EVENLY_DATA=... python benchmarks/celeba_importance.py --weights FILE --jobs 6 \
        --out runs/celeba-importance --commit COMMIT

The settings are those that validation chose in docs/results/celeba-features.json, which
`benchmarks/real_images.py features celeba` makes first. SGD, SAM, and SGD for twice the epochs are trained once more,
with four seeds. After 2, 5, 10 and 20 epochs, SGD for twice the epochs after twice as many, it records for each seed:
Gini coefficients and Lorenz curves of the importance weights, of SAM also at the phantom weights; the share and the
median weight of groups of images that are fitted well or badly by each feature; and medians over bins of both
features' contributions. The results go into docs/results/celeba-importance.json. A command that was killed goes on with
what is left when it is run again.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from feature_probes import HAIR_AND_GENDER, QUARTERS, crossed_probes, loaded
from real_images import chosen_settings, workers
from torch import Tensor, nn
from trial_files import with_files

import evenly
from evenly.data import Data
from evenly.data.benchmarks.places import VARIABLE
from evenly.diagnose.features import features_at
from evenly.papers.balanced.importance import described
from evenly.papers.balanced.importance_celeba import EPOCHS
from evenly.papers.balanced.real_data import LONGER
from evenly.runs.folder import FORMAT
from evenly.values import plain

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NAME = "celeba-importance"


@dataclass(frozen=True)
class Training:
    """One run: what a process is given to do.

    Attributes:
        chosen: the learning rate, and SAM's rho.
        common: the settings that all runs share.
        epochs: those after which its importance weights are recorded.
    """

    folder: Path
    arm: str
    seed: int
    chosen: dict[str, float]
    common: dict[str, Any]
    data_options: dict[str, Any]
    epochs: tuple[int, ...]

    def __call__(self) -> list[dict[str, Any]]:
        """What was recorded, an entry for each epoch."""
        data = loaded("celeba", json.dumps(self.data_options), self.seed)
        data = replace(data, observe=partial(self.observe, data))
        optimizer = "sam" if "rho" in self.chosen else "sgd"
        evenly.train(data, optimizer=optimizer, seed=self.seed, out=self.folder / "run", **self.common, **self.chosen)
        print(f"{self.folder.name} is done", flush=True)
        return [json.loads(self.entry(epoch).read_text()) for epoch in self.epochs]

    def entry(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch}.json"

    def observe(self, data: Data, model: nn.Module) -> dict[str, float]:
        """Write the entry of this epoch, if it has one. An epoch that is trained again after a stop replaces it."""
        metrics = self.folder / "run" / "metrics.jsonl"
        epoch = 1 + (len(metrics.read_text().splitlines()) if metrics.exists() else 0)
        if epoch in self.epochs:
            found = {"arm": self.arm, "seed": self.seed, "epoch": epoch}
            found |= recorded(model, data, self.chosen.get("rho"), self.common["batch_size"], self.seed)
            self.entry(epoch).write_text(json.dumps(plain(found)))
        return {}


def recorded(model: nn.Module, data: Data, rho: float | None, batch_size: int, seed: int) -> dict[str, Any]:
    """What the importance weights of the training images are like, with SAM's rho also at its phantom weights."""
    probes = crossed_probes(model, data, HAIR_AND_GENDER, QUARTERS, 1, seed)
    features, labels = features_at(model, data.train).cpu(), data.train.labels
    easy, hard = (
        torch.stack([probe.contribution(features, labels) for probe in probes[name]]).mean(0)
        for name in ("label", "Male")
    )
    signed = torch.stack([easy, -hard], -1)[None]  # women stand for blond

    def in_words(weights: Tensor) -> dict[str, Any]:
        return described(weights[None], signed)

    found = {
        "probes": {
            "hair": mean(probe.error for probe in probes["label"]),
            "gender": mean(probe.error for probe in probes["Male"]),
        },
        "real": in_words(evenly.importance_weights(model, data)),
    }
    if rho is not None:
        found["phantom"] = in_words(evenly.importance_weights(model, data, rho, batch_size=batch_size, seed=seed))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chosen", type=Path, default=RESULTS / "celeba-features.json", help="file with the settings")
    parser.add_argument("--weights", type=Path, help="of ImageNet; at random without them")
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the runs, on one GPU")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--trial", action="store_true", help="on files of noise where EVENLY_DATA is not set")
    parser.add_argument("--data-options", type=json.loads, default={}, help='as JSON, e.g. {"size": 32}')
    args = parser.parse_args()
    if args.trial and VARIABLE not in os.environ:
        with_files(args.out / "data")
    chosen = chosen_settings(args.chosen)
    common: dict[str, Any] = {
        "model": args.model, "device": args.device, "precision": "float32", "select": "last", "batch_size": 128,
    }  # fmt: skip
    if args.weights is not None:
        common |= {"model_options": {"weights": str(args.weights.absolute())}, "normalise": "imagenet"}
    trainings = [
        Training(
            args.out / f"{arm} seed {seed}", arm, seed, settings, common | {"epochs": times * EPOCHS[-1]},
            args.data_options, tuple(times * epoch for epoch in EPOCHS),
        )
        for arm, settings in chosen.items()
        for times in [2 if arm == LONGER else 1]
        for seed in range(args.seeds)
    ]  # fmt: skip
    with workers(args.jobs) as pool:
        entries = [entry for done in [pool.submit(each) for each in trainings] for entry in done.result()]
    content = {
        "format": FORMAT, "commit": args.commit,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU", "torch": torch.__version__,
        "arms": chosen, "in_common": common | {"weights": args.weights is not None}, "epochs": EPOCHS,
        "data_options": args.data_options, "entries": entries,
    }  # fmt: skip
    content["in_common"].pop("model_options", None)
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{NAME}.json").write_text(json.dumps(content).replace('{"arm": ', '\n{"arm": ') + "\n")


if __name__ == "__main__":
    main()
