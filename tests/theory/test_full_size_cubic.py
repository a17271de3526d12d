"""What evenly promises of the closed-form simulator's speed."""

import time

import pytest
import torch
import torch.nn.functional as F

from evenly.data.patches import PatchDistribution
from evenly.models.cubic import CubicCNN
from evenly.theory import cubic

pytestmark = [pytest.mark.full_size, pytest.mark.usefixtures("one_thread")]

SIGMA_0, LR = 0.1 / 50**0.5, 0.1


def test_the_simulator_is_four_times_faster_than_the_module():
    """N 2,000, float32, one thread, 200 steps a round; the better of 8 interleaved rounds each."""
    distribution = PatchDistribution()
    split, features = distribution.sample(2000, 0), torch.stack(distribution.directions(0))
    x, y, data = split.inputs, split.labels.float(), cubic.fold(split.inputs, split.labels)
    w0 = SIGMA_0 * torch.randn(40, 50, generator=torch.Generator().manual_seed(0))

    def module():
        model = CubicCNN(50)
        model.filters.data.copy_(w0)
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(200):
            sgd.zero_grad()
            F.binary_cross_entropy_with_logits(model(x), y).backward()
            sgd.step()
        return model.filters.detach()

    def simulator():
        return cubic.train(w0, data, features, lr=LR, steps=200, every=200).weights

    assert (module() - simulator()).abs().max() <= 1e-6
    seconds = {module: [], simulator: []}
    for _ in range(8):
        for run, times in seconds.items():
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
    slow, fast = (min(times) / 200 for times in seconds.values())
    print(f"\nmodule {1e6 * slow:.0f} us a step, simulator {1e6 * fast:.0f}: {slow / fast:.2f} times faster")
    assert slow >= 4 * fast
