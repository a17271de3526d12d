"""The toy experiment's data, network and update rules: Definition 3.1 and eqs 1 to 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.data.patches import PatchDistribution, patches
from evenly.models import MODELS
from evenly.models.cubic import CubicCNN
from evenly.optim import SAM
from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.useful.dynamics import NOISE, START
from evenly.runs.verdict import Check, Judgement, measurement

EXACT = 1e-10


def data_facts(seed: int, n: int = 10_000) -> dict[str, float]:
    """What a draw of the toy data is like."""
    distribution = PatchDistribution()
    split, (v_e, v_d) = distribution.sample(n, seed), distribution.directions(seed)
    assert isinstance(split.inputs, Tensor)
    x, y, has_easy = split.inputs, 2.0 * split.labels - 1, split.attributes["strong"] == 1
    is_difficult = (x - 0.2 * y[:, None, None] * v_d).abs().amax(2) < 1e-6
    is_easy = (x - y[:, None, None] * v_e).abs().amax(2) < 1e-6
    is_masked = (x == 0).all(2)
    noise = x[~(is_difficult | is_easy | is_masked)]
    return {
        "dimension": x.shape[2], "patches": x.shape[1], "examples": len(x), "orthogonal": float((v_e @ v_d).abs()),
        "positive": float((y > 0).double().mean()), "easy": float(has_easy.double().mean()),
        "one difficult patch": float((is_difficult.sum(1) == 1).double().mean()),
        "easy patch or masked": float(((is_easy.sum(1) == has_easy) & (is_masked.sum(1) == ~has_easy)).double().mean()),
        "noise patches": len(noise) / len(x), "noise": float(noise.std()), "noise mean": float(noise.mean()),
        "difficult first": float(is_difficult[:, 0].double().mean()),
    }  # fmt: skip


@claim(
    "useful/def3.1",
    where="Definition 3.1, section 5.1",
    states="The toy data: 10,000 examples of 3 patches in 50 dimensions in random order, one beta_d y v_d, one beta_e "
    "y v_e with probability 0.9 and else 0, one of noise with 0.125 per coordinate.",
    rule="On 3 draws: sizes and patches exactly; labels, the share with the easy feature and the place of the "
    "difficult patch within 4 binomial standard deviations of 1/2, 0.9 and 1/3; the noise within 1% of 0.125.",
    published={"share with the easy feature": "0.9", "noise per coordinate": "0.125"},
    choices=(NOISE,),
    uses=lambda scale: {"draws": [computed(data_facts, seed=seed) for seed in scale.seeds(3)]},
)
def definition_3_1(draws: Sequence[Mapping[str, float]]) -> Judgement:
    def near(name: str, p: float) -> bool:
        return all(abs(draw[name] - p) <= 4 * (p * (1 - p) / draw["examples"]) ** 0.5 for draw in draws)

    sizes = all((draw["examples"], draw["patches"], draw["dimension"]) == (10_000, 3, 50) for draw in draws)
    whole = all(
        draw[name] == 1 for draw in draws for name in ("one difficult patch", "easy patch or masked", "noise patches")
    )
    return Judgement(
        [
            Check("10,000 examples of 3 patches in 50 dimensions", sizes),
            Check("one difficult patch, one easy or masked, one of noise in every example", whole),
            Check("v_e and v_d are orthogonal", all(draw["orthogonal"] < 1e-6 for draw in draws)),
            Check("labels are even", near("positive", 0.5)),
            Check("the easy feature is on 0.9 of the examples", near("easy", 0.9)),
            Check("the order of patches is random", near("difficult first", 1 / 3)),
            Check("the noise is 0.125 per coordinate", all(abs(draw["noise"] / 0.125 - 1) < 0.01 for draw in draws)),
        ],
        [
            measurement("share with the easy feature", [draw["easy"] for draw in draws], "0.9"),
            measurement("noise per coordinate", [draw["noise"] for draw in draws], "0.125"),
        ],
    )


def update_differences(seed: int, steps: int = 5) -> dict[str, float]:
    """The package's network, loss, SGD and SAM against eqs 1 to 4 written out, over a few steps in float64."""
    data = patches(n=300, beta_d=0.4, seed=seed)
    assert isinstance(data.train.inputs, Tensor)
    x, labels = data.train.inputs.double(), data.train.labels
    y = 2.0 * labels.double() - 1
    start = 0.3 * torch.randn(40, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def f(w: Tensor) -> Tensor:
        return torch.stack([(x[:, p] @ filter_) ** 3 for filter_ in w for p in range(3)]).sum(0)

    def gradient(w: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        return torch.autograd.grad(torch.log(1 + torch.exp(-y * f(w))).mean(), w)[0]

    model = CubicCNN(50).double()
    model.filters.data.copy_(start)
    assert isinstance(model(x), Tensor)
    apart = {"eq. 1": float((model(x) - f(start)).detach().abs().max())}
    for name, rho in (("eqs 2 and 3", 0.0), ("eq. 4", 0.02)):
        model.filters.data.copy_(start)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = SAM(sgd, rho=rho) if rho else sgd

        def closure(optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(x), labels.double())
            loss.backward()
            return loss

        w = start.clone()
        for _ in range(steps):
            optimizer.step(closure)
            g = gradient(w)
            w = w - 0.1 * (gradient(w + rho * g / g.norm()) if rho else g)
        apart[name] = float((model.filters.detach() - w).abs().max())
    return apart


@claim(
    "useful/eq1-4",
    where="Eqs 1 to 4, section 5.1",
    states="f(x) = sum_j sum_p <w_j, x_p>^3 with 40 filters, logistic loss, full-batch GD and SAM with eta 0.1 and rho "
    "0.02 for 600 iterations.",
    rule="On 3 draws, 5 steps in float64: the network, its SGD and SAM agree with the equations written out to 1e-10. "
    "The data's recipe has the paper's values.",
    published={"filters": "40", "eta": "0.1", "rho": "0.02", "iterations": "600"},
    choices=(START,),
    uses=lambda scale: {"apart": [computed(update_differences, seed=seed) for seed in scale.seeds(3)]},
)
def equations_1_to_4(apart: Sequence[Mapping[str, float]]) -> Judgement:
    errors = {name: max(each[name] for each in apart) for name in apart[0]}
    recipe = dict(patches(n=10).recipe)
    wanted = {"lr": 0.1, "rho": 0.02, "momentum": 0.0, "batch_size": None, "epochs": 600, "model": "cubic-cnn"}
    filters = len(MODELS["cubic-cnn"][0]((3, 50), 2).filters)  # type: ignore[arg-type]
    return Judgement(
        [
            *(Check(f"{name}: {error:.1e}", error <= EXACT) for name, error in errors.items()),
            Check("eta 0.1, rho 0.02, no momentum, full batch, 600 iterations", recipe | wanted == recipe),
            Check(f"40 filters ({filters})", filters == 40),
        ]
    )
