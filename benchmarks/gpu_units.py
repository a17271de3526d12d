"""The units of `benchmarks/gpu.py`: what each of them trains, and the order in which they are to be run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Unit:
    """One arm on its seeds, and what was published of it.

    Attributes:
        options: of the method, and any other settings of `evenly.train`.
        control_of: the unit whose cost this one has, seed by seed, and the number of examples that it repeats; its file
            must be in docs/results.
        record_at: epochs at which eigenvalues (10 to 20 s for each seed) and the l1 norm are recorded.
        forgetting: whether every training example is evaluated after each epoch.
        test_error: published, in percent, with its standard deviation.
        lambda_max, ratio: published lambda_max and lambda_max / lambda_5 at the end.
    """

    page: str
    title: str
    method: str = "erm"
    optimizer: str = "sgd"
    data: str = "cifar10"
    model: str = "preact_resnet18"
    test_error: tuple[float, float] | None = None
    lambda_max: float | None = None
    ratio: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    control_of: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 200
    record_at: tuple[int, ...] = ()
    forgetting: bool = False


AT_8 = {"separating_epoch": 8}
TRIVIAL = {"augment": "basic+trivial"}


def arm(title: str, method: str = "erm", optimizer: str = "sgd", **others: Any) -> Unit:
    """A unit on CIFAR-10; its page is named after it."""
    return Unit("", f"CIFAR-10: {title}", method, optimizer, **others)


def followed(title: str, method: str = "erm", optimizer: str = "sgd", **others: Any) -> Unit:
    """The same with eigenvalues and the l1 norm at the end, and forgetting."""
    return arm(title, method, optimizer, record_at=(200,), forgetting=True, **others)


def useful(title: str, optimizer: str = "sgd", options: dict[str, Any] | None = None, **others: Any) -> Unit:
    """USEFUL, separated after the paper's 8 epochs where the options do not say otherwise."""
    return arm(title, "useful", optimizer, options=AT_8 | (options or {}), **others)


UNITS = {
    "sgd-200": followed("plain SGD for the paper's 200 epochs", test_error=(5.07, 0.04), lambda_max=53.8, ratio=3.8),
    "useful-8": followed(
        "USEFUL, separated after the paper's 8 epochs",
        "useful",
        test_error=(4.79, 0.05),
        lambda_max=41.8,
        ratio=1.5,
        options=AT_8,
    ),
    "useful-4": useful("USEFUL, separated after the 4 epochs of its rule", options={"separating_epoch": 4}),
    "random": arm(
        "random upsampling, as many images and as many example-gradients as USEFUL separated after 8 epochs",
        "random_upsample",
        options={"count": 13_480, "budget": 13_113_000.0},
        test_error=(5.14, 0.11),
    ),
    "sam-200": followed(
        "SAM for the paper's 200 epochs", "erm", "sam", test_error=(4.23, 0.08), lambda_max=12.4, ratio=2.4
    ),
    "sam-useful": followed("SAM with USEFUL", "useful", "sam", options=AT_8, test_error=(4.04, 0.06)),
    "sam-random": arm(
        "SAM with random upsampling at the cost of SAM with USEFUL",
        "random_upsample",
        "sam",
        control_of="sam-useful",
        test_error=(4.17, 0.03),
    ),
    "upweight": arm("doubled losses", "upweight", options=AT_8, test_error=(5.33, 0.09)),
    "quantile": arm("repeating the upper half of the losses", "quantile", options=AT_8, test_error=(5.27, 0.10)),
    "misclassification": arm(
        "repeating the misclassified examples", "misclassification", options=AT_8, test_error=(4.98, 0.17)
    ),
    "sam-upweight": arm("SAM with doubled losses", "upweight", "sam", options=AT_8, test_error=(4.28, 0.02)),
    "sam-ta": arm("SAM with TrivialAugment", "erm", "sam", options=TRIVIAL, test_error=(4.06, 0.08)),
    "sam-ta-useful": useful("SAM with TrivialAugment and USEFUL", "sam", TRIVIAL, test_error=(3.49, 0.09)),
    "asam": arm("ASAM", "erm", "asam", test_error=(4.33, 0.19)),
    "asam-useful": useful("ASAM with USEFUL", "asam", test_error=(4.09, 0.10)),
    "asam-ta": arm("ASAM with TrivialAugment", "erm", "asam", options=TRIVIAL, test_error=(3.93, 0.11)),
    "asam-ta-useful": useful("ASAM with TrivialAugment and USEFUL", "asam", TRIVIAL, test_error=(3.46, 0.01)),
    "useful-x3": useful("USEFUL with factor 3", options={"factor": 3}),
    "useful-x4": useful("USEFUL with factor 4", options={"factor": 4}),
    "useful-x5": useful("USEFUL with factor 5", options={"factor": 5}),
    "sgd-batch-256": arm("SGD with batches of 256", options={"batch_size": 256}),
    "useful-batch-256": useful("USEFUL with batches of 256", options={"batch_size": 256}),
    "sgd-batch-512": arm("SGD with batches of 512", options={"batch_size": 512}),
    "useful-batch-512": useful("USEFUL with batches of 512", options={"batch_size": 512}),
    "sgd-lr-0.2": arm("SGD with learning rate 0.2", options={"lr": 0.2}),
    "useful-lr-0.2": useful("USEFUL with learning rate 0.2", options={"lr": 0.2}),
    "sgd-lr-0.4": arm("SGD with learning rate 0.4", options={"lr": 0.4}),
    "useful-lr-0.4": useful("USEFUL with learning rate 0.4", options={"lr": 0.4}),
    "useful-5": useful("USEFUL, separated after 5 epochs", options={"separating_epoch": 5}),
    "useful-6": useful("USEFUL, separated after 6 epochs", options={"separating_epoch": 6}),
    "useful-7": useful("USEFUL, separated after 7 epochs", options={"separating_epoch": 7}),
    "useful-10": useful("USEFUL, separated after 10 epochs", options={"separating_epoch": 10}),
    "vgg19": arm("a VGG-19", model="vgg19"),
    "vgg19-useful": useful("a VGG-19 with USEFUL", model="vgg19"),
    "vgg19-sam": arm("a VGG-19 with SAM", "erm", "sam", model="vgg19"),
    "vgg19-sam-useful": useful("a VGG-19 with SAM and USEFUL", "sam", model="vgg19"),
}
"""Published values: Nguyen et al. 2024, Tables 1 to 6. SAM's rho is that of the network's recipe, 0.1, and ASAM's ten
times as much."""
UNITS = {name: replace(unit, page=f"cifar10-{name}") for name, unit in UNITS.items()}


@dataclass(frozen=True)
class Command:
    """A unit that another script of this folder runs.

    Attributes:
        page: its file in docs/results, without the suffix.
        script: its name, without the suffix.
        arguments: {weights} stands for a file of ImageNet's weights of a MobileNetV2,
            {results} for docs/results, and {celeba-features} for the file of that unit.
        in_parts: whether the script stops by itself after `--seconds`; another one is interrupted, and goes on as well.
        folder: where the queue has its runs, if it shares them with other units.
    """

    page: str
    script: str
    arguments: str
    in_parts: bool = False
    folder: str = ""


def mlp(series: str, page: str) -> Command:
    return Command(page, "gpu_mlp", f"run --series {series}", in_parts=True)


def sweep(series: str, page: str, folder: str = "celeba-sweeps") -> Command:
    arguments = f"run --series {series} --weights {{weights}}"
    return Command(page, "celeba_sweeps", arguments, in_parts=True, folder=folder)


def target(domain: str) -> Command:
    arguments = f"domains --target {domain} --weights {{weights}} --seeds 4 --jobs 8"
    return Command(f"pacs-{domain}", "real_images", arguments)


def composite(name: str) -> Command:
    arguments = f"features {name} --seeds 4 --first-seed 10 --crossed-probes --name {name}-4"
    return Command(f"{name}-4", "real_images", f"{arguments} --chosen {{results}}/{name}.json")


COMMANDS = {
    "mlp": mlp("methods", "cifar10-mlp"),
    "mlp-lower-rate": mlp("lower-rate", "cifar10-mlp-lower-rate"),
    "mlp-epochs": mlp("epochs", "cifar10-mlp-epochs"),
    "mlp-factors": mlp("factors", "cifar10-mlp-factors"),
    "mlp-batches": mlp("batches", "cifar10-mlp-batches"),
    "mlp-rates": mlp("rates", "cifar10-mlp-rates"),
    "pde-stages": sweep("stages", "celeba-pde-stages"),
    "pde-sizes": sweep("sizes", "celeba-pde-sizes"),
    "pde-rates": sweep("rates", "celeba-pde-rates"),
    "pde-momentum": sweep("momentum", "celeba-pde-momentum"),
    "pde-augment": sweep("augment", "celeba-pde-augment"),
    "dro-recipe": sweep("recipe", "celeba-dro-recipe"),
    "attention": sweep("attention", "cifar-mnist-attention", ""),
    "celeba-features": Command(
        "celeba-features", "real_images", "features celeba --weights {weights} --seeds 4 --jobs 8"
    ),
    "celeba-importance": Command(
        "celeba-importance", "celeba_importance", "--weights {weights} --chosen {celeba-features} --jobs 6"
    ),
    "pacs-cartoon": target("cartoon"),
    "pacs-art": target("art"),
    "pacs-sketch": target("sketch"),
    "cifar-mnist": composite("cifar-mnist"),
    "fashion-mnist-mnist": composite("fashion-mnist-mnist"),
}
QUEUE = (
    "sam-200", "mlp-lower-rate", "mlp-epochs", "mlp-factors", "mlp-batches", "mlp-rates", "sam-useful", "sam-random",
    "upweight", "quantile", "misclassification", "sam-upweight", "celeba-features", "celeba-importance", "pde-stages",
    "pde-sizes", "pde-rates", "pde-momentum", "dro-recipe", "pde-augment", "attention", "cifar-mnist",
    "fashion-mnist-mnist", "pacs-cartoon", "pacs-art", "pacs-sketch", "sam-ta", "sam-ta-useful", "asam", "asam-useful",
    "asam-ta", "asam-ta-useful", "useful-x3", "useful-x4", "useful-x5", "sgd-batch-256", "useful-batch-256",
    "sgd-batch-512", "useful-batch-512", "sgd-lr-0.2", "useful-lr-0.2", "sgd-lr-0.4", "useful-lr-0.4", "useful-5",
    "useful-6", "useful-7", "useful-10", "vgg19", "vgg19-useful", "vgg19-sam", "vgg19-sam-useful",
)  # fmt: skip
"""Units in the order in which they are to be run."""
