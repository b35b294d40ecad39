"""Between what we can see and how it breaks: in which block does an attack take the decision away?

Clean and attacked versions of the same images go through the model side by side. For an image that was right and is
fooled into class z, read every block's output with the model's own head, as if it were the last one:

    m_b = logit of the true class - logit of z,    at block b

The decision is *lost* at the first block from which m stays negative in the attacked version, and was *won* at the
first block from which it stays positive in the clean one. Besides, for every image that was right, per block:

    attention moved   half the L1 distance between clean and attacked attention rows, mean over heads and queries: the
                      share of attention that went elsewhere
    residual moved    |x' - x| / |x| of what the answer is read from (class token, or the mean image token)

Uniform noise of the same budget, which fools nearly nobody, is the null of both. The analyses of the lens run on the
clean and on the attacked versions, with the attack in the first column of their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.attention_facts import NO_SHARES, check_points, gives_shares, shares_of
from vitscope.analyses.base import Analysis, Setting, everyone, tables_of, zeros
from vitscope.analyses.control import start_controls
from vitscope.analyses.one_pass import OnePass
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.models.readout import readout_logits, readout_weights
from vitscope.robustness.attacks import Victims, create_attack
from vitscope.robustness.conventions import CLEAN, NOISE
from vitscope.robustness.epsilons import Epsilon
from vitscope.robustness.target import Target
from vitscope.robustness.threat import Threat, normalised
from vitscope.statistics.intervals import Z95, share_columns

DEFAULT_LENS = ("class_space.identifiability", "attention", "kpca.spectrum")
MOMENTS = ("attention_moved", "residual_moved")  # of all images that were right
MARGINS = ("margin_clean", "margin_attacked")  # of those that were fooled
SEPARATOR = "/"


def settled_block(ahead: Tensor) -> Tensor:
    """The first block from which `ahead` (B, L) stays true to the end, L where the last one is not: (B,) int64."""
    stays = ahead.flip(1).int().cummin(1).values.sum(1)
    return ahead.shape[1] - stays


def attention_moved(clean: Tensor, attacked: Tensor) -> Tensor:
    """Total variation distance of attention rows, mean over heads and queries: two of (B, H, N, N) -> (B,)."""
    return (clean - attacked).abs().sum(-1).mean((1, 2)).double() / 2


class AttackLens:
    """Sums per attack, and the analyses that look at each version of the images. Its sums live in the study's."""

    def __init__(
        self,
        model: Model,
        analyses: Sequence[str],
        attacks: Sequence[str],
        threat: Threat,
        eps: Epsilon,
        setting: Setting,
    ) -> None:
        from vitscope.analyses.selection import choose_analyses

        self.model, self.threat, self.eps = model, threat, eps
        self.remarks: list[str] = []
        self.layout = model.layout
        check_points(model, ["blocks.*.attn.hook_pattern"])
        self.shares = gives_shares(model)
        if not self.shares:
            self.remarks.append(f"attention_moved: {NO_SHARES}")
        self.attacks = [*attacks, *([NOISE] if NOISE not in attacks else [])]
        self.added = NOISE not in attacks
        self.reads = model.why_no_class_space() is None
        if not self.reads:
            self.remarks.append("The blocks cannot be read in class space: where the decision is lost stays unknown.")
        quiet = replace(setting, gallery=frozenset(), folder=None)
        self.inside: dict[str, list[Analysis]] = {}
        self.passes: dict[str, OnePass] = {}
        blocks = self.layout.blocks
        self.sums: dict[str, Tensor] = {}
        for version in [CLEAN, *self.attacks]:
            self.inside[version] = self._start(choose_analyses(analyses), quiet)
            start_controls(self.model, self.inside[version])
            for analysis in everyone(self.inside[version]):
                self.sums |= {_key(version, analysis.name, k): v for k, v in analysis.sums.items()}
        for attack in self.attacks:
            counts = {"n": zeros(1, dtype=torch.int64), "fooled": zeros(1, dtype=torch.int64)}
            counts |= {k: zeros(blocks + 1, dtype=torch.int64) for k in ("lost", "won")}
            counts |= {k: zeros(blocks, dtype=torch.int64) for k in ("right_clean", "right_attacked")}
            for name in (*MOMENTS, *MARGINS):
                counts |= {name: zeros(blocks), f"{name}_squared": zeros(blocks)}
            self.sums |= {_key(attack, "", k): v for k, v in counts.items()}

    def _start(self, analyses: Sequence[Analysis], setting: Setting) -> list[Analysis]:
        started = []
        for analysis in analyses:
            analysis.setting = setting
            try:
                analysis.start(self.model)
                check_points(self.model, analysis.needs(self.model))
            except UnsupportedModelError as error:
                remark = f"The lens leaves out {analysis.name!r}: {error}"
                self.remarks += [remark] if remark not in self.remarks else []
                continue
            started.append(analysis)
        return started

    def link(self, sums: Mapping[str, Tensor]) -> None:
        """Count on with these tensors, those of a saved state or of a merge."""
        self.sums = dict(sums)
        for version, analyses in self.inside.items():
            for analysis in everyone(analyses):
                prefix = _key(version, analysis.name, "")
                analysis.sums = {k.removeprefix(prefix): v for k, v in self.sums.items() if k.startswith(prefix)}
                analysis.begin()
            self.passes[version] = OnePass(self.model, analyses)

    def look_at_clean(self, victims: Victims, truth: Tensor, clean: Tensor) -> None:
        """The analyses on the clean versions of the images that are right; and noise, where it is not an attack."""
        rows = (clean == truth).nonzero().flatten()
        if not len(rows):
            return
        self._measure(CLEAN, victims.images[rows], victims, truth, rows)
        if self.added:
            target = Target(self.model, self.threat)
            noisy = create_attack(NOISE).perturb(target, victims, self.eps.value)
            self.look_at(NOISE, victims, noisy, truth, clean, target.predict(noisy).cpu())

    def look_at(
        self, attack: str, victims: Victims, attacked: Tensor, truth: Tensor, clean: Tensor, answers: Tensor
    ) -> None:
        """Attacked versions (B, C, H, W) and the model's answers to them (B,)."""
        rows = (clean == truth).nonzero().flatten()
        if not len(rows):
            return
        self._measure(attack, attacked[rows], victims, truth, rows)
        self._compare(attack, victims.images[rows], attacked[rows], truth[rows], answers[rows])

    def _measure(self, version: str, images: Tensor, victims: Victims, truth: Tensor, rows: Tensor) -> None:
        if not self.inside[version]:
            return
        indices = victims.indices[rows]
        self.passes[version](Batch(self._normalised(images), truth[rows], indices, [f"image {i}" for i in indices]))
        for analysis in self.inside[version]:
            analysis.rows.clear()  # per-image rows are the clean run's own

    def _compare(self, attack: str, before: Tensor, after: Tensor, truth: Tensor, answers: Tensor) -> None:
        """One pass over both versions: block by block, how far apart are they?"""
        n, device = len(truth), before.device
        fooled = (answers != truth).to(device)
        true, wrong = truth.to(device), torch.where(fooled, answers.to(device), truth.to(device))
        weights = readout_weights(self.model).to(device) if self.reads else torch.ones(1, device=device)
        margins: list[Tensor] = []  # (2, B) per block

        def add(key: str, block: int, values: Tensor) -> None:
            values = values.detach().cpu().double()
            self._of(attack, key)[block] += values.sum()
            self._of(attack, f"{key}_squared")[block] += values.square().sum()

        def on_block(block: int, points: Mapping[str, Tensor]) -> None:
            if not 0 <= block < self.layout.blocks:
                return
            pattern, x = (points[f"blocks.{block}.{p}"] for p in ("attn.hook_pattern", "hook_resid_post"))
            pattern = pattern if self.shares else shares_of(pattern)
            add("attention_moved", block, attention_moved(pattern[:n], pattern[n:]))
            read = torch.einsum("bnc,n->bc", x, weights) if self.reads else x.mean(1)  # (2B, C)
            add("residual_moved", block, (read[n:] - read[:n]).norm(dim=1) / read[:n].norm(dim=1))
            if self.reads:
                logits = readout_logits(self.model, x)  # (2B, K)
                right = logits.argmax(1) == true.repeat(2)
                self._of(attack, "right_clean")[block] += right[:n].sum().cpu()
                self._of(attack, "right_attacked")[block] += right[n:].sum().cpu()
                both = logits.gather(1, true.repeat(2)[:, None]) - logits.gather(1, wrong.repeat(2)[:, None])
                margins.append(both.view(2, n))

        with torch.no_grad():
            pair = self._normalised(torch.cat([before, after]))
            self.model.stream(pair, ["blocks.*.attn.hook_pattern", "blocks.*.hook_resid_post"], on_block)
        self._of(attack, "n").add_(n)
        self._of(attack, "fooled").add_(int(fooled.sum()))
        if self.reads and fooled.any():
            m = torch.stack(margins, 2)[:, fooled]  # (2, F, L)
            for key, values in zip(MARGINS, m):
                for block in range(self.layout.blocks):
                    add(key, block, values[:, block])
            for key, ahead in (("won", m[0] > 0), ("lost", m[1] < 0)):
                where = settled_block(ahead).cpu()
                self._of(attack, key).add_(torch.bincount(where, minlength=self.layout.blocks + 1))

    def _of(self, attack: str, key: str) -> Tensor:
        return self.sums[_key(attack, "", key)]

    def _normalised(self, images: Tensor) -> Tensor:
        return images if self.threat.space == "normalised" else normalised(images, self.model.preprocess)

    def tables(self) -> dict[str, pd.DataFrame]:
        """`attack_lens`, and the tables of the analyses with the attack in front, as `attack_lens_<table>`."""
        own = [row for attack in self.attacks for row in self._rows(attack)]
        if not own:  # the model was right about none of the images: there is nothing to look at
            return {}
        found: dict[str, list[pd.DataFrame]] = {}
        for version, analyses in self.inside.items():
            for analysis in analyses:
                for name, table in tables_of(analysis).items():
                    eps = "0" if version == CLEAN else self.eps.text
                    told = table.assign(attack=version, eps=eps, protocol=self.threat.protocol)
                    front = told[["attack", "eps", *table.columns, "protocol"]]
                    found.setdefault(f"attack_lens_{name}", []).append(front)
        return {"attack_lens": pd.DataFrame(own)} | {n: pd.concat(t, ignore_index=True) for n, t in found.items()}

    def _rows(self, attack: str) -> list[dict[str, Any]]:
        n, fooled = int(self._of(attack, "n")), int(self._of(attack, "fooled"))
        if n == 0:
            return []
        rows = []
        for block in range(self.layout.blocks):
            row: dict[str, Any] = {"attack": attack, "eps": self.eps.text, "block": block}
            for key in MOMENTS:
                row |= self._mean(attack, key, block, n)
            if self.reads:
                for key in ("right_clean", "right_attacked"):
                    row |= share_columns(key, int(self._of(attack, key)[block]), n)
                row |= {k: int(self._of(attack, k)[block]) for k in ("won", "lost")}
                for key in MARGINS:  # nobody fooled: no margin
                    row |= self._mean(attack, key, block, fooled)
            rows.append(row | {"n_images": n, "n_fooled": fooled, "protocol": self.threat.protocol})
        return rows

    def _mean(self, attack: str, key: str, block: int, n: int) -> dict[str, float]:
        """Mean over images with its normal 95 % interval; NaN of none."""
        if n == 0:
            return {key: float("nan"), f"{key}_low": float("nan"), f"{key}_high": float("nan")}
        mean = float(self._of(attack, key)[block]) / n
        spread = max(float(self._of(attack, f"{key}_squared")[block]) / n - mean**2, 0.0)
        half = Z95 * (spread / max(n - 1, 1)) ** 0.5
        return {key: mean, f"{key}_low": mean - half, f"{key}_high": mean + half}


def _key(version: str, analysis: str, key: str) -> str:
    return SEPARATOR.join((version, analysis, key))
