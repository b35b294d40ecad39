"""Do the weights hold class prototypes? A layer as a key-value memory, read in class space.

The last linear map of a layer adds up value vectors, one per memory: the columns of `attn.proj` (H*D memories) and of
`mlp.fc2` (M memories), each weighted by a coefficient - the entry of the map's input. Read in class space:

* class-value agreement (weights only): cosine of class direction and value vector; per class, the best memory;
* key-value agreement rate: tokens for which one of the 5 largest coefficients belongs to one of the 5 memories with
  the largest logit for the true class;
* compositionality: tokens for which the layer's top class is the top class of one of its 5 largest memories.

A class direction is what the logit of that class rises along: the head's row times the final norm's gain, and free of
the mean that LayerNorm takes away. In a distilled model every token is compared with the directions of the head that
reads it. `variant="code"` leaves the final norm and LayerScale out and takes coefficients before the
activation, as published. All weights are copies: nothing is normalised in place.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from vitscope.analyses.class_space.projection import Head, Projector
from vitscope.architectures.families import block_row, final_norms, mlp_row
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.models.class_vectors import Embedding
from vitscope.statistics.permutation import image_signs, p_greater

Layer = Literal["attn", "mlp"]
LAYERS: tuple[Layer, ...] = ("attn", "mlp")
BEST = 5  # memories looked at, as published


def class_directions(model: Model, final_norm: bool = True, head: Head | None = None) -> Tensor:
    """(K, C) float32: along which direction of the residual the logit of each class rises, to first order.

    `head`: one of the model's, by default that of its image tokens.
    """
    weight = (head or Projector(model).image_head).weight.clone()
    norms = final_norms(model.module)
    if norms and isinstance(norms[-1], Embedding):  # an image tower with class vectors
        weight = norms[-1].pull_back(weight)
        norms = [*norms[:-1], norms[-1].norm]
    if not final_norm:
        return weight
    for norm in reversed(norms):
        gain = getattr(norm, "weight", None)
        if gain is not None:
            weight = weight * gain.detach().float()
        if isinstance(norm, nn.LayerNorm):
            weight = weight - weight.mean(1, keepdim=True)
    return weight


def value_vectors(model: Model, block: int, layer: Layer, scaled: bool = True) -> Tensor:
    """(C, M) float32: what each memory adds to the residual; LayerScale is included if `scaled`."""
    owner: Any = model.blocks[block]
    row = block_row(owner)
    if layer == "attn":
        attention = owner.get_submodule(row.attn)
        if not isinstance(getattr(attention, "proj", None), nn.Linear):
            raise UnsupportedModelError(
                f"The memories of {type(attention).__name__} are not known: its last layer is expected as `proj`."
            )
        weight = attention.proj.weight
        scales = ("ls1", "gamma_1")
    else:
        mlp = owner.get_submodule(row.mlp)
        names = mlp_row(mlp)
        if names is None:
            raise UnsupportedModelError(f"The memories of {type(mlp).__name__} are not known: its last layer is not.")
        weight = mlp.get_submodule(names[1]).weight
        scales = ("ls2", "gamma_2")
    values = weight.detach().float().clone()  # (C, M)
    for name in scales if scaled else ():
        gamma = getattr(getattr(owner, name, None), "gamma", getattr(owner, name, None))
        if isinstance(gamma, Tensor):
            values = values * gamma.detach().float()[:, None]
    return values


def coefficients(model: Model, block: int, layer: Layer, value: Tensor, tokens: slice = slice(None)) -> Tensor:
    """What weighs the value vectors, (B, n, M), from `attn.hook_z` (B, H, N, D) or `mlp.hook_post` (B, N, M)."""
    if layer == "mlp":
        return value[:, tokens]
    owner: Any = model.blocks[block]
    attention = owner.get_submodule(block_row(owner).attn)
    flat = value[:, :, tokens].transpose(1, 2).flatten(2)  # (B, n, H * D)
    norm = getattr(attention, "norm", None)  # scale norm sits between z and the projection
    return norm(flat) if isinstance(norm, nn.Module) else flat


def class_value_agreement(directions: Tensor, values: Tensor) -> Tensor:
    """Cosine of every class direction (K, C) and value vector (C, M): (K, M). A vector of zeros has cosine 0."""
    e = nn.functional.normalize(directions.double(), dim=1)
    v = nn.functional.normalize(values.double(), dim=0)
    return e @ v


def best_memories(directions: Tensor, values: Tensor, k: int = BEST) -> Tensor:
    """(K, k): for each class the memories with the largest logit."""
    return (directions @ values).topk(min(k, values.shape[1]), dim=1).indices


def memory_classes(directions: Tensor, values: Tensor) -> Tensor:
    """(M,): the top class of each memory."""
    return (directions @ values).argmax(0)


def key_value_agreement(active: Tensor, wanted: Tensor) -> Tensor:
    """Active memories (..., B, n, k), the true class' memories (..., B, k) -> (..., B, n) bool: do they share one?"""
    return (active[..., :, None] == wanted[..., None, None, :]).flatten(-2).any(-1)


def compositionality(active: Tensor, classes: Tensor, top: Tensor) -> Tensor:
    """Active memories (L, B, n, k), top class per memory (L, M), the layer's top class (L, B, n) -> (L, B, n) bool."""
    said = classes.gather(1, active.flatten(1)).view_as(active)
    return (said == top[..., None]).any(-1)


def agreement_test(trained: Tensor, control: Tensor, permutations: int, seed: int) -> float:
    """One-sided p that the classes agree better with the trained memories: signs of paired differences are flipped.

    Best agreement per class, each (K,). The unit is the class, as in the published test; p = (r+1)/(n+1).
    """
    difference = (trained - control).double()
    signs = image_signs(range(len(difference)), permutations, seed)  # (K, P)
    return float(p_greater(difference.sum(), difference @ signs))


def published_test(trained: Tensor, control: Tensor) -> float:
    """The published test of the same: Wilcoxon's signed ranks over classes, one-sided."""
    from scipy.stats import wilcoxon

    if bool((trained == control).all()):  # no ranks to sign
        return 1.0
    return float(wilcoxon(trained.double().numpy(), control.double().numpy(), alternative="greater").pvalue)
