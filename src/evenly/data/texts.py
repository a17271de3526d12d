"""Texts as they are: strings, which the model's own encoder turns into numbers (`evenly.models.texts`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch.utils.data import Dataset

from evenly.errors import EvenlyError


class Texts(Dataset[str]):
    """(N,) strings, the inputs of a `Split` whose labels are given beside them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        if strange := [i for i, text in enumerate(self.texts) if not isinstance(text, str)]:
            raise EvenlyError(f"text {strange[0]} is a {type(self.texts[strange[0]]).__name__}; give strings")

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> str:
        return self.texts[i]

    def fingerprint(self) -> str:
        """Sixteen hex digits that change when any text does."""
        digest = hashlib.sha256()
        for text in self.texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(f"{len(data)} ".encode() + data)
        return digest.hexdigest()[:16]
