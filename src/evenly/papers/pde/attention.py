"""Figure 1 (C), where a network looks, on CIFAR-MNIST: a picture below a digit, so that the place of both features is
known. The rule was written before the file was made."""

from __future__ import annotations

from evenly.papers.claims import claim
from evenly.papers.nodes import Stored
from evenly.papers.pde.images import above
from evenly.papers.pde.sweeps import Content, both, cost_the_same, reached, rows, uses
from evenly.runs.differences import mean
from evenly.runs.verdict import Check, Judgement, measurement

ATTENTION = Stored("cifar-mnist-attention.json", minutes=5)


@claim(
    "pde/fig1c-composite",
    where="Figure 1 (C), on CIFAR-MNIST",
    states="Grad-CAM: PDE looks at the object, ERM at what comes with it.",
    rule="Over 3 seeds, paired by seed: the 95% interval of the share of Grad-CAM's mass on the picture, the lower "
    "half of the image, PDE minus ERM, is above 0. The share is the mean over the test images with digit and picture "
    "independent, for the class that the network predicts. Both must cost the same to 5%. Side points: PDE's mean is "
    "above one half, ERM's below: the halves are of the same size.",
    choices=(
        "an airplane or automobile below a 0 or 1 that agrees with the label on 95% of the images, as backgrounds do "
        "on Waterbirds",
        "a pre-activation ResNet-18, whose last maps have 8 x 4 cells; each half of the image has 4 x 4 of them. A "
        "cell sees more than its own place, so that the share is no proof of what the network uses",
        "learning rate 0.05 and weight decay 5e-4 for both, not tuned; ERM 20 epochs with cosine; PDE 120 epochs of "
        "warm-up on 900 images, then 10 expansions of 45, the learning rate times 0.01",
        "validation selects the epoch by its worst group",
    ),
    fidelity="proxy: pictures of CIFAR-10 below digits, for birds on backgrounds; a ResNet-18 from random weights for "
    "a ResNet-50 from ImageNet's",
    uses=uses(ATTENTION),
)
def figure_1c_composite(stored: Content) -> Judgement:
    arms = {"ERM": rows(stored, "erm on composites"), "PDE": rows(stored, "pde on composites")}
    shares = {name: [100 * row["attention"]["on_picture"] for row in runs] for name, runs in arms.items()}
    checks = [
        above(shares["PDE"], shares["ERM"], "PDE looks at the picture more than ERM"),
        cost_the_same(*arms.values(), within=0.05),
        Check("PDE's mean is above one half", mean(shares["PDE"]) > 50, main=False),
        Check("ERM's mean is below one half", mean(shares["ERM"]) < 50, main=False),
    ]
    measurements = [measurement(f"{name}: Grad-CAM on the picture", own, unit="%") for name, own in shares.items()]
    return Judgement(checks, [*measurements, *reached({name: both(runs) for name, runs in arms.items()}, {})])
