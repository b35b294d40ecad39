"""The adaptive softmax (Grave et al. 2017): frequent words first, the others in clusters for those who need them.

With words 0..c1-1 in the head and clusters c1..c2-1, c2..c3-1, ... behind it:

    p(w) = softmax over head words and clusters, for a word of the head
    p(w) = p(its cluster) * softmax over the words of that cluster, else

It is a plain softmax where each cluster's logit is the log-sum-exp of its words. All words are of full width here
(`div_val` 1 in the published program), so that the table can be the embedding's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AdaptiveSoftmax(nn.Module):
    """Tokens (..., C) -> log-probabilities (..., V). Without cut-offs below V it is a plain softmax with a bias.

    embedding: the words' vectors, where they are shared with the input; None: a table of its own.
    """

    def __init__(
        self, width: int, words: int, cutoffs: Sequence[int] = (), embedding: nn.Embedding | None = None
    ) -> None:
        super().__init__()
        if list(cutoffs) != sorted({c for c in cutoffs if c > 0}):
            raise ValueError(f"cutoffs={list(cutoffs)}: expected rising numbers of words, such as 20000, 40000, 200000")
        self.out_features = words
        self.bounds = [0, *(c for c in cutoffs if c < words), words]
        self.__dict__["table"] = embedding  # not a child: saved once, with the embedding
        if embedding is None:
            self.weight = nn.Parameter(torch.empty(words, width).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(words))
        self.clusters = nn.Linear(width, len(self.bounds) - 2) if len(self.bounds) > 2 else None

    @property
    def vectors(self) -> Tensor:
        """(V, C)"""
        return self.weight if self.__dict__["table"] is None else self.__dict__["table"].weight

    def forward(self, x: Tensor) -> Tensor:
        """All log-probabilities, (..., C) -> (..., V)"""
        head = self.head(x)
        first, parts = self.bounds[1], [head[..., : self.bounds[1]]]
        for cluster in range(len(self.bounds) - 2):
            parts.append(head[..., first + cluster, None] + self._inside(x, cluster))
        return torch.cat(parts, -1)

    def nats(self, x: Tensor, targets: Tensor) -> Tensor:
        """-log p of one word per token, (..., C), (...) -> (...); 0 where the target is -1.

        Only tokens whose word lies in a cluster look into that cluster.
        """
        x, there = x.flatten(0, -2), targets.clamp_min(0).flatten()  # (T, C), (T,)
        head, first = self.head(x), self.bounds[1]
        cluster = sum((there >= bound).long() for bound in self.bounds[1:-1]) - torch.ones_like(there)  # -1: the head
        found = head.gather(1, torch.where(cluster < 0, there, first + cluster)[:, None])[:, 0]
        for number in range(len(self.bounds) - 2):
            rows = (cluster == number).nonzero()[:, 0]
            inside = self._inside(x[rows], number).gather(1, (there[rows] - self.bounds[number + 1])[:, None])[:, 0]
            found = found.index_add(0, rows, inside)
        return torch.where(targets >= 0, -found.view_as(targets), 0.0)  # no view: FSDP warns of those

    def head(self, x: Tensor) -> Tensor:
        """Log-probabilities of the frequent words and of the clusters, (..., c1 + clusters)"""
        logits = self._logits(x, 0)
        if self.clusters is not None:
            logits = torch.cat([logits, self.clusters(x)], -1)
        return logits.log_softmax(-1)

    def _inside(self, x: Tensor, cluster: int) -> Tensor:
        """Log-probabilities of a cluster's words, given the cluster"""
        return self._logits(x, cluster + 1).log_softmax(-1)

    def _logits(self, x: Tensor, part: int) -> Tensor:
        first, last = list(pairwise(self.bounds))[part]
        return F.linear(x, self.vectors[first:last], self.bias[first:last])
