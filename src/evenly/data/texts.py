"""Texts as strings; the model's own encoder turns them into numbers (`evenly.models.texts`)."""

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
        if others := [i for i, text in enumerate(self.texts) if not isinstance(text, str)]:
            raise EvenlyError(f"texts must be strings, got a {type(self.texts[others[0]]).__name__} at {others[0]}")
        self._ids: tuple[Hashable, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> str:
        return self.texts[i]

    def ids(self, encode: Callable[[list[str]], Tensor], encoding: Hashable) -> Tensor:
        """The token ids (N, L) that `encode` returns, cached for the next network with the same encoding.

        Args:
            encoding: everything that `encode` depends on; None where that is not known, and nothing is cached.
        """
        if encoding is None:
            return encode(self.texts)
        key = (self.fingerprint(), encoding)
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
