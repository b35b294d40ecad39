"""The network while it learns: whole in every process, or a part of it in each.

`Model.module` stays the bare network, which is saved, evaluated and probed. `collect()` brings what was learnt there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from vitscope.architectures.families import blocks_of
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model
from vitscope.training.options import TrainOptions
from vitscope.training.parts import freeze
from vitscope.training.refinement import Learner
from vitscope.training.setup import build_optimizer


def build_network(options: TrainOptions, model: Model, accelerator: Accelerator) -> Replicated:
    return (Sharded if options.sharded else Replicated)(options, model, accelerator)


def _split(inputs: Any, count: int) -> Sequence[Any]:
    """One tensor, or several by name, in pieces along their first dimension."""
    if not isinstance(inputs, Mapping):
        return inputs.tensor_split(count)
    parts = {name: part.tensor_split(count) for name, part in inputs.items()}
    return [{name: pieces[i] for name, pieces in parts.items()} for i in range(count)]


class Replicated:
    """One process, or DDP: every process has all weights, which it shares with the model; gradients are averaged."""

    def __init__(self, options: TrainOptions, model: Model, accelerator: Accelerator) -> None:
        self.model = model
        self.learner = Learner(model, options) if options.refine else model.module  # heads that read a frozen one
        freeze(model.module, options.freeze)
        self.frozen = options.freeze
        self.plain: Optimizer = build_optimizer(options, self.learner)
        self.module, self.optimizer = self._prepare(options, accelerator)

    def _prepare(self, options: TrainOptions, accelerator: Accelerator) -> tuple[nn.Module, Any]:
        return accelerator.prepare(self.learner, self.plain)

    def pieces(self, inputs: Any, targets: Tensor, count: int) -> list[tuple[Any, Tensor]]:
        """A batch (B, ...) in `count` pieces (B / count, ...); in fewer where fewer items could be read."""
        count = min(count, len(targets))
        return list(zip(_split(inputs, count), targets.tensor_split(count)))

    def learning(self) -> None:
        """Into training mode, but for what is frozen."""
        self.module.train()
        bare = getattr(self.module, "module", self.module)  # DDP wraps it
        for name in self.frozen:
            bare.get_submodule(name).eval()

    def collect(self) -> None:
        """Bring the weights into `Model.module`. All processes call it together."""

    def optimizer_state(self) -> dict[str, Any]:
        """All processes call it together; the first one's answer is complete."""
        return self.optimizer.state_dict()

    def load(self, weights: dict[str, Tensor], optimizer_state: dict[str, Any]) -> None:
        self.model.module.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer_state)


class Sharded(Replicated):
    """FSDP (PyTorch's `fully_shard`): weights, gradients and optimiser state are divided among the processes.

    A block's weights are gathered while it computes. Beside them each process keeps one more copy of the weights, the
    bare network: 4 bytes per weight, where DDP with AdamW has 16.
    """

    def _prepare(self, options: TrainOptions, accelerator: Accelerator) -> tuple[nn.Module, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if accelerator.num_processes < 2:
            raise VitscopeError(
                "sharded=True divides a model among processes, and this is one alone. Start several: "
                "`torchrun --nproc_per_node N -m vitscope train --sharded ...`."
            )
        narrow = torch.bfloat16 if options.mixed_precision == "bf16" else None
        settings: dict[str, Any] = {
            "mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None),
        }
        module: Any = copy.deepcopy(self.model.module)
        for block in blocks_of(module):
            fully_shard(block, **settings)
        fully_shard(module, **settings)
        self.plain = build_optimizer(options, module)
        return module, accelerator.prepare(self.plain)

    def pieces(self, inputs: Any, targets: Tensor, count: int) -> list[tuple[Any, Tensor]]:
        if len(targets) < count:  # every pass gathers weights from all processes, which then must pass equally often
            raise DataError(
                f"{len(targets)} readable items of a batch do not make {count} pieces: choose a smaller accumulate."
            )
        return super().pieces(inputs, targets, count)

    def collect(self) -> None:
        from torch.distributed.checkpoint import state_dict as sharded

        whole = sharded.get_model_state_dict(self.module, options=sharded.StateDictOptions(full_state_dict=True))
        self.model.module.load_state_dict(whole)

    def optimizer_state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as sharded

        options = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
        return dict(sharded.get_optimizer_state_dict(self.module, self.plain, options=options))

    def load(self, weights: dict[str, Tensor], optimizer_state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint import state_dict as sharded

        options = sharded.StateDictOptions(full_state_dict=True)
        self.model.module.load_state_dict(weights)
        # safetensors gives names in an order of its own; all processes must scatter them in the same one
        ordered: dict[str, Any] = {name: weights[name] for name in self.model.module.state_dict()}
        sharded.set_model_state_dict(self.module, ordered, options=options)
        sharded.set_optimizer_state_dict(self.module, self.plain, optimizer_state, options=options)
