"""Texts as they are: strings, which the model's own encoder turns into numbers (`evenly.models.texts`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence

from torch import Tensor
from torch.utils.data import Dataset

from evenly.errors import EvenlyError


class Texts(Dataset[str]):
    """(N,) strings, the inputs of a `Split` whose labels are given beside them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        if strange := [i for i, text in enumerate(self.texts) if not isinstance(text, str)]:
            raise EvenlyError(f"text {strange[0]} is a {type(self.texts[strange[0]]).__name__}; give strings")
        self._ids: tuple[Hashable, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> str:
        return self.texts[i]

    def ids(self, encode: Callable[[list[str]], Tensor], by: Hashable) -> Tensor:
        """The token ids (N, L) that `encode` gives, kept for the next network that encodes alike.

        Args:
            by: all that `encode` depends on; None where that cannot be told, and nothing is kept.
        """
        if by is None:
            return encode(self.texts)
        key = (self.fingerprint(), by)
        if self._ids is None or self._ids[0] != key:
            self._ids = (key, encode(self.texts))
        return self._ids[1]

    def fingerprint(self) -> str:
        """Sixteen hex digits that change when any text does."""
        digest = hashlib.sha256()
        for text in self.texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(f"{len(data)} ".encode() + data)
        return digest.hexdigest()[:16]
