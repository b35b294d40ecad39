"""Attention written out: every N x N matrix formed, Y and mu by their names. Slow, and nothing in common with src."""

from __future__ import annotations

import torch


def explicit_softmax(q, k, v, bias=0.0):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + bias
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def soft_threshold(x, t):
    return x.sign() * torch.clamp(x.abs() - t, min=0)


def explicit_rpc(k, v, q=None, *, iterations, lambd, variant, width=None, bias=0.0):
    """Algorithm 1 of the paper, with the two places where code, paper and exact part ways."""
    heads, tokens, size = k.shape[1:]
    width = width or heads * size
    norm = k.abs().sum((-2, -1), keepdim=True)
    mu = tokens * (width if variant == "code" else size) / (4 * norm)
    threshold = lambd * mu if variant == "code" else lambd / mu
    low, y = torch.zeros_like(k), torch.zeros_like(k)
    for _ in range(iterations):
        sparse = soft_threshold(k - low + y / mu, threshold)
        clean = k - sparse + (y / mu if variant == "exact" else -y / mu)
        low = explicit_softmax(clean if q is None else q, clean, v, bias)
        y = y + mu * (k - low - sparse)
    return low


def heads_of(x, heads):
    """(B, N, H * D) -> (B, H, N, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
