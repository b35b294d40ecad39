"""Reading and changing named points during a forward pass of an untouched timm model.

Two mechanisms, chosen because they work in every timm ViT with fused attention on:

* Forward hooks on the modules that `models.families` names give the residual stream and the branch outputs.
* A `TorchFunctionMode` sees each call of `scaled_dot_product_attention` while an attention module runs. There, and
  only there, every timm ViT has the *effective* q, k, v (after q/k-norm and RoPE) and the additive bias at hand.

A Tracer is a context manager. It removes exactly the hooks it registered, also when an exception flies through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from vitscope.capture.points import FIRST_POINT, LAST_POINT, Point, block_of
from vitscope.errors import VitscopeError
from vitscope.models.families import block_row, mlp_row

Edit = Callable[[Tensor, Point], "Tensor | None"]
Sink = Callable[[int, dict[str, Tensor]], None]

_ADDITIONS = {torch.Tensor.add, torch.add, torch.Tensor.__add__}


class Tracer:
    """One or more forward passes with `wanted` points handed to `sink` block by block, and `edits` applied."""

    def __init__(
        self, module: nn.Module, wanted: Iterable[str], edits: Mapping[str, Sequence[Edit]], sink: Sink | None = None
    ) -> None:
        self.module = module
        self.wanted = frozenset(wanted)
        self.edits = {name: list(functions) for name, functions in edits.items() if functions}
        self.sink = sink
        self.suspended = False  # an inner tracer has taken over
        self._points: dict[str, Tensor] = {}  # of the block that is running
        self._attention: int | None = None  # block whose attention module is running
        self._calls = 0  # fused calls that it has still to make
        self._branch: tuple[int, Tensor] | None = None  # (block, attention branch) about to be added
        self._stack = ExitStack()

    def __enter__(self) -> Tracer:
        with ExitStack() as stack:  # unwinds what is already registered if a later registration fails
            self._register(stack)
            if any(self._uses_attention(n) or n.endswith("hook_resid_mid") for n in {*self.wanted, *self.edits}):
                stack.enter_context(_Interceptor(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._points.clear()
        self._attention = self._branch = None
        self._stack.close()

    # --- hooks on modules ---------------------------------------------------------------------------------------

    def _register(self, stack: ExitStack) -> None:
        module: Any = self.module
        if self._concerns(FIRST_POINT):
            self._output(stack, module.patch_embed, FIRST_POINT, hand_over=-1)
        for i, block in enumerate(module.blocks):
            self._register_block(stack, i, block)
        if self._concerns(LAST_POINT):
            self._output(stack, module.norm, LAST_POINT, hand_over=len(module.blocks))

    def _register_block(self, stack: ExitStack, i: int, block: nn.Module) -> None:
        if not any(block_of(name) == i for name in {*self.wanted, *self.edits}):
            return
        row, prefix = block_row(block), f"blocks.{i}."
        attention, mlp = block.get_submodule(row.attn), block.get_submodule(row.mlp)
        if any(block_of(n) == i and self._uses_attention(n) for n in {*self.wanted, *self.edits}):
            self._check_fused(attention, i)
            stack.callback(attention.register_forward_pre_hook(lambda m, a: self._set_attention(i, m)).remove)
            # always_call: an exception inside attention must not leave the interceptor believing it still runs
            leave = attention.register_forward_hook(lambda *_: self._set_attention(None), always_call=True)
            stack.callback(leave.remove)
        self._input(stack, block, prefix + "hook_resid_pre")
        self._output(stack, attention, prefix + "attn.hook_out")
        self._output(stack, block.get_submodule(row.attn_added), prefix + "hook_attn_out")
        if row.summed:
            self._output(stack, block.get_submodule(row.summed), prefix + "hook_resid_mid")
        elif prefix + "hook_resid_mid" in self.edits:
            # The sum feeds both the MLP and the skip connection, so the addition itself is intercepted.
            watch = block.get_submodule(row.attn_added).register_forward_hook(lambda m, a, out: self._watch(i, out))
            stack.callback(watch.remove)
        else:
            self._input(stack, block.get_submodule(row.mid), prefix + "hook_resid_mid")
        inner = mlp_row(mlp)
        for kind, child in zip(("mlp.hook_pre", "mlp.hook_post"), inner or (None, None)):
            if child is not None:
                self._input(stack, mlp.get_submodule(child), prefix + kind)
            elif self._concerns(prefix + kind):
                raise VitscopeError(f"{prefix}{kind} is not known for {type(mlp).__name__}: see docs/models.md.")
        self._output(stack, mlp, prefix + "mlp.hook_out")
        self._output(stack, block.get_submodule(row.mlp_added), prefix + "hook_mlp_out")
        self._output(stack, block, prefix + "hook_resid_post", hand_over=i)

    def _input(self, stack: ExitStack, module: nn.Module, name: str) -> None:
        if self._concerns(name):

            def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
                new = self._visit(name, args[0])
                return None if new is args[0] else (new, *args[1:])

            stack.callback(module.register_forward_pre_hook(hook).remove)

    def _output(self, stack: ExitStack, module: nn.Module, name: str, hand_over: int | None = None) -> None:
        """Visit the output of a module; `hand_over` gives the block's points to the sink afterwards."""
        if hand_over is None and not self._concerns(name):
            return

        def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            new = self._visit(name, output) if self._concerns(name) else output
            if hand_over is not None and not self.suspended:
                self._check_added(hand_over)
                points, self._points = self._points, {}
                if self.sink is not None and points:
                    with self._unwatched():
                        self.sink(hand_over, points)
            return None if new is output else new

        stack.callback(module.register_forward_hook(hook).remove)

    def _unwatched(self) -> AbstractContextManager[object]:
        """What a sink computes is none of our business, and to look at each of its torch calls costs more than some."""
        mode = _get_current_function_mode()
        ours = isinstance(mode, _Interceptor) and mode.tracer is self
        return _pop_mode_temporarily() if ours else nullcontext()

    # --- points -------------------------------------------------------------------------------------------------

    def _concerns(self, name: str) -> bool:
        return name in self.wanted or name in self.edits

    def _concerns_every_step(self, name: str) -> bool:
        return name in self.edits and name.endswith(("hook_attn_scores", "hook_pattern", "hook_bias"))

    def _visit(self, name: str, value: Tensor) -> Tensor:
        """Apply the edits of a point, note its value if it is wanted, and return it."""
        if self.suspended:
            return value
        for edit in self.edits.get(name, ()):
            new = edit(value, Point(name, block_of(name)))
            if new is not None:
                if not isinstance(new, Tensor) or new.shape != value.shape:
                    got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
                    raise VitscopeError(f"The edit of {name} returned {got}; expected a tensor {tuple(value.shape)}.")
                value = new
        if name in self.wanted:
            self._points[name] = value.flatten(1, 2) if name == FIRST_POINT and value.ndim == 4 else value
        return value

    # --- attention ----------------------------------------------------------------------------------------------

    @staticmethod
    def _uses_attention(name: str) -> bool:
        return ".attn.hook_" in name and not name.endswith(".hook_out")

    @staticmethod
    def _check_fused(attention: nn.Module, i: int) -> None:
        if not getattr(attention, "fused_attn", True):
            raise VitscopeError(
                f"Block {i} runs unfused attention (fused_attn is off, perhaps through TIMM_FUSED_ATTN=0). q, k and v "
                "are read where scaled_dot_product_attention is called: set `fused_attn = True` on its attention."
            )

    def _set_attention(self, block: int | None, attention: nn.Module | None = None) -> None:
        # an attention that iterates (vitscope.attention.rpc) makes several calls; the last one makes the output
        self._attention, self._calls = block, getattr(attention, "attention_calls", 1)

    def attend(self, func: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Stand in for one call of scaled_dot_product_attention. The model's own fused call still makes the output.

        Where an attention makes several calls, the points are those of the last one. Edits of scores, pattern and bias
        hold in all of them: a token that is knocked out must not be seen in an earlier step either.
        """
        prefix = f"blocks.{self._attention}.attn."
        self._calls -= 1
        concerns = self._concerns if self._calls <= 0 else self._concerns_every_step
        call = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args), **kwargs)
        q, k, v = (
            self._visit(prefix + hook, call[arg]) if concerns(prefix + hook) else call[arg]
            for hook, arg in (("hook_q", "query"), ("hook_k", "key"), ("hook_v", "value"))
        )  # each (B, H, N, D)
        pattern_name, scores_name = prefix + "hook_pattern", prefix + "hook_attn_scores"
        edited = pattern_name in self.edits or scores_name in self.edits
        bias = None
        if edited or any(concerns(n) for n in (pattern_name, scores_name, prefix + "hook_bias")):
            bias = additive_bias(call.get("attn_mask"), call.get("is_causal", False), q, k)
            if bias is not None and concerns(prefix + "hook_bias"):
                bias = call["attn_mask"] = self._visit(prefix + "hook_bias", bias)
                call["is_causal"] = False
        weights = None
        if edited or concerns(pattern_name) or concerns(scores_name):
            scores = attention_scores(q, k, bias, call.get("scale"))  # (B, H, N, N)
            if concerns(scores_name):
                scores = self._visit(scores_name, scores)
            if edited or concerns(pattern_name):
                weights = scores.softmax(-1)
                if concerns(pattern_name):
                    weights = self._visit(pattern_name, weights)
        call |= {"query": q, "key": k, "value": v}
        z = weights @ v if edited and weights is not None else func(**call)  # (B, H, N, D)
        return self._visit(prefix + "hook_z", z) if concerns(prefix + "hook_z") else z

    # --- the addition that makes resid_mid ------------------------------------------------------------------------

    def _watch(self, block: int, branch: Tensor) -> None:
        if not self.suspended:
            self._branch = (block, branch)

    def added(self, total: Tensor) -> Tensor:
        assert self._branch is not None
        block, self._branch = self._branch[0], None
        return self._visit(f"blocks.{block}.hook_resid_mid", total)

    def _check_added(self, block: int) -> None:
        if self._branch is not None:
            raise VitscopeError(
                f"The edit of blocks.{block}.hook_resid_mid did not take place: this block does not add its attention "
                "branch in the way that vitscope.models.families describes."
            )


class _Interceptor(TorchFunctionMode):
    """Shows the tracer the calls it asked for and passes every other torch function on."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tracer, kwargs = self.tracer, kwargs or {}
        if not tracer.suspended:
            if func is F.scaled_dot_product_attention and tracer._attention is not None:
                return tracer.attend(func, args, kwargs)
            if tracer._branch is not None and func in _ADDITIONS and any(a is tracer._branch[1] for a in args):
                return tracer.added(func(*args, **kwargs))
        return func(*args, **kwargs)


def additive_bias(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of a scaled_dot_product_attention call as what is added to the scores, or None."""
    if causal:
        n, m = q.shape[-2], k.shape[-2]
        return q.new_full((n, m), float("-inf")).triu_(1)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))


def attention_scores(q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """q k^T * scale + bias, with scale 1/sqrt(D) unless given.  (B, H, N, D), (B, H, M, D) -> (B, H, N, M)"""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)
    return scores if bias is None else scores + bias
