"""The parts of a FAN block: tokens look at each other, then channels are weighed against each other.

x = x + gamma1 * token_mixing(norm1(x));  x = x + gamma2 * channel_processing(norm2(x))

Zhou et al., "Understanding the Robustness in Vision Transformers" (ICML 2022, arXiv 2204.12451). Modules have the names
of the published checkpoints. Class attention and the pair of convolutions are XCiT's, which timm has.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from timm.models.xcit import LPI
from torch import Tensor, nn

NORM_EPS = 1e-6  # of all norms but `norm_v`, which keeps PyTorch's 1e-5
STEMS = {16: (8, 4, 2, 1), 8: (4, 2, 1), 4: (4, 1)}  # patch size -> what the width is divided by, convolution by one
Grid = tuple[int, int]  # rows, columns


def channel_weights(q: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """sigmoid(softmax_N(q)^T mean_D(softmax_N(k))) * temperature: (B, H, N, D) twice -> (B, H, D, 1), one per channel.

    Both softmaxes run over the tokens: a channel weighs much where it is strong at the tokens that matter to the mean.
    """
    over_tokens = q.softmax(-2).transpose(-1, -2)  # (B, H, D, N)
    return (over_tokens @ k.softmax(-2).mean(-1, keepdim=True)).sigmoid() * temperature


def fourier_positions(grid: Grid, hidden: int, temperature: float, like: Tensor) -> Tensor:
    """Sines and cosines of a token's row and column, counted from 1 and scaled to (0, 2 pi]: (1, 2 hidden, H, W).

    Frequencies fall as 1 / temperature^(2 i / hidden); a sine and a cosine of one frequency follow each other, those of
    the row come first. In the precision of `like`.
    """
    frequency = temperature ** -(torch.arange(0, hidden, 2, dtype=like.dtype, device=like.device) / hidden)

    def waves(count: int) -> Tensor:  # (count, hidden)
        place = torch.arange(1, count + 1, dtype=like.dtype, device=like.device)
        angle = (place / (count + 1e-6) * 2 * math.pi)[:, None] * frequency
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    rows, columns = grid
    by_row = waves(rows)[:, None].expand(-1, columns, -1)
    by_column = waves(columns)[None].expand(rows, -1, -1)
    return torch.cat([by_row, by_column], -1).permute(2, 0, 1)[None]


class Stem(nn.Module):
    """From a picture to tokens by 3x3 convolutions of stride 2, each with a batch norm: (B, C, H, W) -> (B, N, C)."""

    def __init__(self, img_size: Grid, patch_size: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        if patch_size not in STEMS:
            raise ValueError(f"patch_size={patch_size}: expected {', '.join(map(str, sorted(STEMS)))}")
        if img_size[0] % patch_size or img_size[1] % patch_size:
            raise ValueError(f"img_size={img_size} is no multiple of patch_size={patch_size}")
        if embed_dim % max(STEMS[patch_size]):
            raise ValueError(f"embed_dim={embed_dim} cannot be divided by {max(STEMS[patch_size])}")
        self.img_size, self.patch_size = img_size, (patch_size, patch_size)
        self.grid_size = (img_size[0] // patch_size, img_size[1] // patch_size)
        widths = [in_chans, *(embed_dim // part for part in STEMS[patch_size])]
        steps: list[nn.Module] = []
        for before, after in pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            steps += [nn.GELU(), nn.Sequential(convolution, nn.BatchNorm2d(after))]
        self.proj = nn.Sequential(*steps[1:])

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != self.img_size:
            raise ValueError(f"A picture of {tuple(x.shape[-2:])} pixels: this model takes {self.img_size}.")
        return self.proj(x).flatten(2).transpose(1, 2)


class FourierPositions(nn.Module):
    """Waves of row and column through a linear layer: what is added to the tokens, (1, N, C)."""

    def __init__(self, embed_dim: int, hidden: int = 32, temperature: float = 10_000.0) -> None:
        super().__init__()
        self.hidden, self.temperature = hidden, temperature
        self.token_projection = nn.Conv2d(2 * hidden, embed_dim, 1)

    def forward(self, grid: Grid) -> Tensor:
        waves = fourier_positions(grid, self.hidden, self.temperature, self.token_projection.weight)
        return self.token_projection(waves).flatten(2).transpose(1, 2)


class TokenMixing(nn.Module):
    """Softmax attention with one projection for queries and one for keys and values."""

    def __init__(self, dim: int, num_heads: int, attn_drop: float = 0.0, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.fused_attn = True  # False: the same, written out
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj, self.proj_drop = nn.Linear(dim, dim), nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)"""
        q, k, v = (_heads(part, self.num_heads) for part in (self.q(x), *self.kv(x).chunk(2, -1)))
        if self.fused_attn:
            z = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        else:
            z = self.attn_drop((self.scale * q @ k.transpose(-1, -2)).softmax(-1)) @ v  # (B, H, N, D)
        return self.proj_drop(self.proj(z.transpose(1, 2).flatten(2)))


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H * D) -> (B, H, N, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class DepthwisePair(LPI):
    """Two depth-wise 3x3 convolutions, an activation and a batch norm between them: (B, N, M) -> (B, N, M).

    What timm's class computes. The activation sees tokens, so that mlp.hook_pre is (B, N, M); only strides change.
    """

    def __init__(self, dim: int, grid: Grid) -> None:
        super().__init__(dim)
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x = self.act(self._tokens(self.conv1(self._picture(x))))
        return self._tokens(self.conv2(self.bn(self._picture(x))))

    def _picture(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(2, self.grid)

    def _tokens(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class ConvolvedMlp(nn.Module):
    """fc2(h + gamma * convolutions(h)), h = fc1(x): the activation is between the two convolutions."""

    def __init__(self, dim: int, hidden: int, grid: Grid, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = DepthwisePair(hidden, grid)
        self.gamma = nn.Parameter(torch.ones(hidden))
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.drop(self.fc2(x + self.drop(self.gamma * self.dwconv(x))))


class ChannelProcessing(nn.Module):
    """norm(mlp(x)) times one weight per channel, which the tokens themselves give: queries are linear, keys are x."""

    def __init__(
        self, dim: int, num_heads: int, hidden: int, grid: Grid, drop: float = 0.0, attn_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.mlp_v = ConvolvedMlp(dim, hidden, grid, drop)
        self.norm_v = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)"""
        q, k = _heads(self.q(x), self.num_heads), _heads(x, self.num_heads)
        weights = self.attn_drop(channel_weights(q, k, self.temperature))
        return self.norm_v(self.mlp_v(x)) * weights.flatten(1)[:, None]  # (B, N, C) * (B, 1, C)


class FANBlock(nn.Module):
    """Both branches have the same rate of dropped paths: as published, it does not grow with the depth."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        grid: Grid,
        drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, NORM_EPS), nn.LayerNorm(dim, NORM_EPS)
        self.attn = TokenMixing(dim, num_heads, attn_drop, drop)
        self.mlp = ChannelProcessing(dim, num_heads, int(dim * mlp_ratio), grid, drop, attn_drop)
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        # one module there, called twice; here two, so that what each branch adds has a place of its own
        self.drop_path1, self.drop_path2 = DropPath(drop_path), DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.gamma1 * self.attn(self.norm1(x)))
        return x + self.drop_path2(self.gamma2 * self.mlp(self.norm2(x)))
