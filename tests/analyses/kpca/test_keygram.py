from __future__ import annotations

import gc
import weakref

import torch

from vitscope.analyses.kpca import keygram
from vitscope.analyses.kpca.gram import centred_gram, standardise
from vitscope.analyses.kpca.keygram import KeyGram, Shared, shared_for


class Anything:
    """Stands for a model or an analysis."""


def count_decompositions(monkeypatch) -> list[bool]:
    """Collects, for every decomposition, whether it made vectors."""
    made = []
    original = KeyGram.__init__
    monkeypatch.setattr(
        KeyGram, "__init__", lambda self, *a, **k: (made.append(bool(k["vectors"])), original(self, *a, **k))[1]
    )
    return made


def test_it_decomposes_the_centred_gram_matrix_of_every_head(heads):
    keys = heads(b=5)[1]
    gram = KeyGram(keys, vectors=3)
    matrix = centred_gram(keys).matrix
    torch.testing.assert_close(matrix @ gram.vectors, gram.vectors * gram.eigenvalues[..., None, :3])


def test_standardised_keys_are_standardised_first(heads):
    keys = heads()[1]
    torch.testing.assert_close(
        KeyGram(keys, standardised=True).eigenvalues, KeyGram(standardise(keys)).eigenvalues, rtol=1e-12, atol=1e-18
    )


def test_all_analyses_of_a_block_share_one_decomposition(heads, monkeypatch):
    made = count_decompositions(monkeypatch)
    shared, keys, analysis = Shared(), heads()[1], Anything()
    shared.want_vectors(analysis)
    first = shared.gram(keys)  # by one that needs eigenvalues only
    assert shared.gram(keys, vectors=True) is first
    assert made == [True]
    assert shared.gram(keys, standardised=True) is not first
    assert made == [True, False]  # nobody wants the vectors of standardised keys


def test_alone_the_spectrum_does_not_pay_for_vectors(heads, monkeypatch):
    made = count_decompositions(monkeypatch)
    shared, analysis = Shared(), Anything()
    shared.want_vectors(analysis)
    del analysis
    gc.collect()
    shared.gram(heads()[1])
    assert made == [False]


def test_what_is_remembered_goes_with_the_keys(heads):
    shared, keys = Shared(), heads()[1]
    result = weakref.ref(shared.gram(keys, vectors=True))
    assert result() is not None
    del keys
    gc.collect()
    assert result() is None
    assert len(shared._remembered) == 0


def test_other_keys_with_equal_values_are_other_keys(heads):
    shared, keys = Shared(), heads()[1]
    copy = keys.clone()
    assert shared.gram(keys) is not shared.gram(copy)


def test_a_model_has_one_shared_object():
    model, other = Anything(), Anything()
    assert shared_for(model) is shared_for(model)
    assert shared_for(model) is not shared_for(other)
    gc.collect()
    assert len(keygram._shared) >= 2
