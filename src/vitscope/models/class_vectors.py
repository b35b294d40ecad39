"""Zero-shot classes: an image tower of CLIP or SigLIP, read through a vector per class (its name's text embedding).

    logits = scale * <e, t_k> + bias,    e = image embedding, t_k = class vector, both of length one

as CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023) do without training. A tower ends in a pooling, its own norm
and a projection to the embedding. Norm, projection and the division by the length become its last norm (`Embedding`),
the class vectors its head: a linear layer. So all that asks a model for classes works, and in class space every token
is read as the tower reads the one it answers from. A tower that pools by attention has no such way for a token.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.architectures.families import heads_of
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.model import Model

SCALE = 100.0  # CLIP's, which is held at this limit in training; SigLIP's is in its checkpoint, with a bias


class Embedding(nn.Module):
    """Pooled or single tokens (..., C) -> image embeddings of length one (..., D)."""

    def __init__(self, norm: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.norm, self.projection = norm, projection

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.projection(self.norm(x)), dim=-1)

    def pull_back(self, directions: Tensor) -> Tensor:
        """Directions of the embedding (K, D) as directions of what is projected (K, C); its length is left out."""
        weight = getattr(self.projection, "weight", None)
        return directions if weight is None else directions @ weight.detach().to(directions)


def read_by_class_vectors(
    model: Model,
    vectors: str | Path | np.ndarray | Tensor | None,
    names: str | Path | list[str] | tuple[str, ...] | None = None,
    scale: float = SCALE,
    bias: float = 0.0,
) -> None:
    """Give an image tower classes, in place. vectors: (classes, width of the embedding), or a .npy file with them."""
    if vectors is None:
        raise VitscopeError("class_names go with class_vectors: a model with a head knows its classes.")
    if (reason := model.why_no_class_space()) is None:
        raise VitscopeError(
            f"{model.name} has {model.num_classes:,} classes of its own: class vectors are for an image tower that "
            "ends in an embedding, such as vit_base_patch16_clip_224.openai."
        )
    width = embedding_width(model.module)
    if width is None:
        raise UnsupportedModelError(f"Class vectors cannot be given to {model.name}: {reason}.")
    if not 0 < scale < float("inf") or not abs(bias) < float("inf"):
        raise VitscopeError(f"logit_scale={scale}, logit_bias={bias}: expected a positive number and a number.")
    where = str(vectors) if isinstance(vectors, str | Path) else "class_vectors"
    values = check_vectors(read_vectors(vectors), width, where, model.name)
    classes = None if names is None else read_names(names, len(values))
    attach(model.module, values, scale, bias)
    model.classes = classes
    model.source["class_vectors"] = {
        **_origin(vectors),
        **({"names": str(Path(names).absolute())} if isinstance(names, str | Path) else {}),
        "scale": float(scale),
        "bias": float(bias),
    }
    model.notes.append(
        f"{model.name} has {len(values):,} classes by the class vectors of {_origin(vectors)['file']} (zero-shot): "
        f"logits are {scale:g} times the cosine of image embedding and class vector{f', {bias:+g}' if bias else ''}."
    )


def embedding_width(module: Any) -> int | None:
    """Of what an image tower answers with; None where it is none that class vectors can be given to."""
    heads = heads_of(module)
    if not isinstance(getattr(module, "fc_norm", None), nn.Module) or len(heads) != 1:
        return None
    return int(heads[0].out_features if isinstance(heads[0], nn.Linear) else module.num_features)


def attach(module: Any, vectors: Tensor, scale: float, bias: float) -> None:
    """vectors: (K, D), not zero."""
    weight = next(module.parameters())
    head = nn.Linear(vectors.shape[1], len(vectors)).to(weight.device, weight.dtype).requires_grad_(False)
    head.weight.copy_(scale * F.normalize(vectors.double(), dim=1))
    head.bias.fill_(bias)
    module.fc_norm = Embedding(module.fc_norm, module.head).train(module.training)
    module.head, module.num_classes = head.train(module.training), len(vectors)


def take_over(module: Any, other: Any) -> None:
    """Give a tower the classes that another one has, where these are vectors: only the tower is another."""
    if isinstance(other.fc_norm, Embedding):
        if not isinstance(module.fc_norm, Embedding):
            module.fc_norm = Embedding(module.fc_norm, module.head)
            module.head = nn.Linear(*reversed(other.head.weight.shape)).requires_grad_(False)
            module.num_classes = other.num_classes
        module.head.load_state_dict(other.head.state_dict())


def read_vectors(vectors: Any) -> np.ndarray:
    """An array as it is, or that of a .npy file, which cannot run code."""
    if isinstance(vectors, Tensor):
        return vectors.detach().cpu().double().numpy()
    if not isinstance(vectors, str | Path):
        return np.asarray(vectors)
    try:
        found = np.load(vectors, allow_pickle=False)
    except FileNotFoundError as error:
        raise VitscopeError(f"No class vectors at {vectors}: expected a .npy file.") from error
    except (OSError, ValueError, EOFError) as error:
        raise VitscopeError(
            f"{vectors} cannot be read as class vectors ({str(error).splitlines()[0][:200]}). Expected numpy.save of a "
            "plain array of numbers; pickled objects are refused, because they could run code."
        ) from error
    if not isinstance(found, np.ndarray):
        raise VitscopeError(
            f"{vectors} holds several arrays: save the class vectors alone, numpy.save('{vectors}.npy')."
        )
    return found


def check_vectors(values: np.ndarray, width: int, where: str, model: str) -> Tensor:
    """(K, D) float64, or an error that says which row is wrong."""
    if values.dtype.kind not in "fiu" or values.ndim != 2:
        raise VitscopeError(
            f"{where} holds {values.dtype} of shape {values.shape}: expected numbers of shape (classes, {width})."
        )
    if values.shape[1] != width:
        raise VitscopeError(
            f"{where}: class vectors are {values.shape[1]:,} wide, the image embedding of {model} is {width:,}. They "
            "must come from the text tower of the same checkpoint."
        )
    if len(values) < 2:
        raise VitscopeError(f"{where} has {len(values)} class vector(s): expected one row per class, at least two.")
    found = torch.from_numpy(values.astype(np.float64))
    for bad, what in ((~found.isfinite().all(1), "NaN or infinite"), (found.norm(dim=1) == 0, "zero")):
        if bool(bad.any()):
            rows = bad.nonzero()[:, 0].tolist()
            raise VitscopeError(f"{where}: {len(rows):,} class vector(s) are {what}, first that of class {rows[0]}.")
    return found


def read_names(names: str | Path | list[str] | tuple[str, ...], count: int) -> list[str]:
    """One name per class: a list, or a text file with one per line."""
    where = "class_names"
    if isinstance(names, str | Path):
        where = str(names)
        try:
            found = Path(names).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise VitscopeError(f"{names} cannot be read as class names, one per line: {error}.") from error
    else:
        found = [str(name) for name in names]
    found = [name.strip() for name in found]
    if len(found) != count or not all(found):
        empty = " (some are empty)" if not all(found) else ""
        raise VitscopeError(
            f"{where} has {len(found):,} names{empty} for {count:,} class vectors: one each, in their order."
        )
    return found


def _origin(vectors: Any) -> dict[str, str]:
    """What a run records of the file."""
    if not isinstance(vectors, str | Path):
        return {"file": "a given array"}
    path = Path(vectors)
    return {
        "file": path.name,
        "path": str(path.absolute()),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
