"""What tests of claims share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evenly.papers.claims import Scale, all_claims
from evenly.papers.nodes import Computation, Stored, filled, read_stored
from evenly.runs.verdict import Judgement


@pytest.fixture
def judged() -> Callable[..., Judgement]:
    """What comes of a claim whose computations run here and now, with nothing kept, so that a broken function shows."""

    def judge(id: str, seeds: int | None = None, **replaced: Any) -> Judgement:
        """Args: seeds, fewer than the claim's own; replaced, arguments of computations to make them smaller."""
        claim = all_claims()[id]
        assert claim.uses is not None
        assert claim.judge is not None
        cache: dict[str, Any] = {}

        def result(node: Any) -> Any:
            if isinstance(node, Stored):
                return read_stored(node).content
            assert isinstance(node, Computation), "give a claim that trains by methods a test of its own"
            smaller = {name: value for name, value in replaced.items() if name in node.arguments}
            node = Computation(node.function, {**node.arguments, **smaller})
            if node.id not in cache:
                from evenly.values import plain

                cache[node.id] = plain(node())
            return cache[node.id]

        return claim.judge(**filled(claim.uses(Scale("small", seeds)), result))

    return judge
