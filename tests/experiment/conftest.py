"""Two classes and four groups; the second feature is spurious."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenly.data import Data
from evenly.experiment import work


def _arrays(count: int = 24, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    agrees = torch.rand(count, generator=draw) < 0.7
    x = torch.randn(count, 3, generator=draw) + torch.stack([2 * y - 1, 2 * (y ^ ~agrees) - 1, 0 * y], 1)
    return x, y, 2 * y + (~agrees).long()


@pytest.fixture
def arrays() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Inputs (N, 3), labels and groups: ``arrays(24, seed=1)``."""
    return _arrays


@pytest.fixture
def data() -> Data:
    return Data(train=_arrays(), validation=_arrays(seed=1), test=_arrays(40, seed=2), name="toy")


@pytest.fixture(scope="session")
def draw() -> Callable[[int], Data]:
    """Data of a seed: 40 training, 20 validation and 60 test examples."""

    def drawn(seed: int) -> Data:
        parts = zip(("train", "validation", "test"), (40, 20, 60), strict=True)
        return Data(**{name: _arrays(count, 10 * seed + count) for name, count in parts}, name="toy")

    return drawn


@pytest.fixture
def without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have tests of their own, and drawing them takes longer than training here."""
    monkeypatch.setattr("evenly.report.pages.write_report", lambda *arguments, **options: None)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a comparison executes: (plan, execution) of each run."""
    calls, execute = [], work.execute

    def watched(prepared: Any, out: Any, execution: Any, *others: Any, **options: Any) -> Any:
        calls.append((prepared.config.plan, execution))
        return execute(prepared, out, execution, *others, **options)

    monkeypatch.setattr(work, "execute", watched)
    return calls


@pytest.fixture
def images() -> Callable[..., Data]:
    """Random pixels of two classes: ``images(channels=1, recipe={...})``."""

    def build(channels: int = 3, recipe: dict[str, Any] | None = None, count: int = 24) -> Data:
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (count, channels, 8, 8), generator=draw, dtype=torch.uint8)
        y = torch.arange(count) % 2
        return Data(train=(x, y), test=(x[:8], y[:8]), recipe=recipe or {})

    return build


@pytest.fixture
def same_weights() -> Callable[[nn.Module, nn.Module], bool]:
    def same(a: nn.Module, b: nn.Module) -> bool:
        return all(torch.equal(v, w) for v, w in zip(a.state_dict().values(), b.state_dict().values(), strict=True))

    return same
