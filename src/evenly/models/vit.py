"""A vision transformer for small images (Dosovitskiy et al. 2021) in the size that Yuan et al. (2021) call ViT-S.

Width 768, depth 8, 8 heads, MLP 2304, patches of 4x4: 65 tokens for a 32x32 image (Nguyen et al. 2024, App. C). They
adopt a public implementation and give it these four numbers; what that code then decides is followed here: heads of
64 (so that queries, keys and values are 512 wide, not 768), no bias in them, LayerNorm before and after the patch
embedding, class token and positions learned from N(0, 1), pre-norm blocks, no dropout: 41,048,938 parameters for
CIFAR-10. `head_width=96` makes the heads share out the width as in Yuan et al.: 47,340,394.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.errors import EvenlyError


class Attention(nn.Module):
    """Multi-head self-attention over tokens (N, T, width): softmax(q k^T / sqrt(head_width)) v in every head."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # each (N, heads, T, head_width)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class EncoderBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the MLP has one hidden layer with GELU."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        mixed: Tensor = self.mlp(self.norm2(x))
        return x + mixed


class ViT(nn.Module):
    """Images (N, C, H, W) of the one size that it is built for to logits (N, K), read off the class token.

    Args:
        shape: (C, H, W).
        patch: side of the square patches; H and W are multiples of it.
        width, depth, heads, hidden: of the tokens, the encoder, its attention and its MLPs.
        head_width: of the queries, keys and values of one head.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        patch: int = 4,
        width: int = 768,
        depth: int = 8,
        heads: int = 8,
        hidden: int = 2304,
        head_width: int = 64,
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        if patch < 1 or height % patch or breadth % patch:
            raise EvenlyError(
                f"images of {height}x{breadth} do not divide into patches of {patch}; resize them or set patch"
            )
        self.patch = patch
        pixels, count = channels * patch**2, (height // patch) * (breadth // patch)
        self.embed = nn.Sequential(nn.LayerNorm(pixels), nn.Linear(pixels, width), nn.LayerNorm(width))
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + count, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, head_width, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def patches(self, x: Tensor) -> Tensor:
        """(N, C, H, W) cut into (N, number of patches, C x patch x patch), row by row."""
        cut = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))  # (N, C, rows, patch, columns, patch)
        patches: Tensor = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return patches

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(self.patches(x))
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(tokens)[:, 0]))
        return logits
