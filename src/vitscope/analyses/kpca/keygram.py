"""One eigen-decomposition per block and batch, shared by all kernel-PCA analyses of it.

The decomposition is what costs; spectrum, gamma and values all start from it. A `Shared` object, one per model,
remembers the results for the keys of the block at hand and forgets them when the engine frees those keys.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vitscope.analyses.kpca.eigen import eigenvalues, eigenvectors
from vitscope.analyses.kpca.gram import Variant, centred_gram, check_keys, standardise
from vitscope.analyses.kpca.threads import over_images


class KeyGram:
    """The decomposed centred Gram matrices of keys (B, H, N, D). Eigenvalues are `exp(log_scale) * eigenvalues`.

    It does not keep the keys: that would keep them alive, and what is remembered for them.
    """

    def __init__(self, keys: Tensor, *, vectors: int = 0, standardised: bool = False, variant: Variant = "exact"):
        check_keys(keys)
        self.variant = variant
        self.count = vectors

        def decompose(k: Tensor) -> dict[str, Tensor]:
            gram = centred_gram(standardise(k, variant) if standardised else k, variant)
            found = {"log_g": gram.log_g, "log_scale": gram.log_scale, "trace": gram.trace}
            if not vectors:
                return found | {"eigenvalues": eigenvalues(gram.matrix, variant)}
            values, axes = eigenvectors(gram.matrix, vectors, variant)
            return found | {"eigenvalues": values, "vectors": axes}

        found = over_images(decompose, keys)
        self.log_g = found["log_g"]  # (B, H, N)
        self.log_scale = found["log_scale"]  # (B, H)
        self.trace = found["trace"]  # (B, H) of the uncentred matrix
        self.eigenvalues = found["eigenvalues"]  # (B, H, N), largest first
        self.vectors = found.get("vectors")  # (B, H, N, vectors)


class Shared:
    """What the kernel-PCA analyses of one model have in common."""

    def __init__(self) -> None:
        # An analysis that needs eigenvectors says so before the first block, so that one that needs only eigenvalues
        # does not pay for a decomposition of its own. Weak: it stops counting when the analysis is gone.
        self._want_vectors: WeakKeyDictionary[Any, tuple[bool, Variant]] = WeakKeyDictionary()
        self._remembered: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by the tensor itself, not by its values

    def want_vectors(self, analysis: Any, *, standardised: bool = False, variant: Variant = "exact") -> None:
        self._want_vectors[analysis] = (standardised, variant)

    def has_vectors(self, *, standardised: bool = False, variant: Variant = "exact") -> bool:
        """Does any analysis want the eigenvectors, so that the decomposition is made block by block?"""
        return (standardised, variant) in self._want_vectors.values()

    def gram(
        self, keys: Tensor, *, vectors: bool = False, standardised: bool = False, variant: Variant = "exact"
    ) -> KeyGram:
        """The KeyGram of these keys, computed once. It has D_v = D eigenvectors if any analysis wants them."""
        known: dict[Any, Any] = self._remembered.setdefault(keys, {})
        choice = (standardised, variant)
        if choice not in known or (vectors and not known[choice].count):
            wanted = vectors or self.has_vectors(standardised=standardised, variant=variant)
            count = min(keys.shape[-2:]) if wanted else 0
            known[choice] = KeyGram(keys, vectors=count, standardised=standardised, variant=variant)
        return known[choice]

    def once(self, tensor: Tensor, key: Any, compute: Any) -> Any:
        """`compute()`, remembered under `key` for as long as `tensor` lives."""
        known: dict[Any, Any] = self._remembered.setdefault(tensor, {})
        if key not in known:
            known[key] = compute()
        return known[key]


_shared: WeakKeyDictionary[Any, Shared] = WeakKeyDictionary()


def shared_for(model: Any) -> Shared:
    """The `Shared` of a model."""
    return _shared.setdefault(model, Shared())
