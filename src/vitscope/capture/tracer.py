"""Reading and changing named points during a forward pass of an untouched model of timm or transformers.

Two mechanisms, chosen because they work in every such model with fused attention on:

* Forward hooks on the modules that `architectures.families` names give the residual stream and the branch outputs.
* A `TorchFunctionMode` sees each call of `scaled_dot_product_attention` while an attention module runs. There, and
  only there, every model has the *effective* q, k, v (after q/k-norm and RoPE) and the additive bias at hand. An
  attention that is no softmax calls `weighted_attention` instead.

A Tracer is a context manager. It removes exactly the hooks it registered, also when an exception flies through. A point
that was asked for or edited and that a block does not meet is an error: neither a value nor an edit gets lost silently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitscope.architectures.families import block_row, blocks_of, family_of, final_norm, mlp_row
from vitscope.capture.cache import Cache
from vitscope.capture.grouped import is_grouped, per_head
from vitscope.capture.points import FIRST_POINT, LAST_POINT, Point, block_of, is_attention_point
from vitscope.capture.weighted import (
    additive_bias,
    attention_scores,
    softmax_weights,
    weighted_attention,
    weighted_sum,
)
from vitscope.errors import UnsupportedModelError, VitscopeError

Edit = Callable[[Tensor, Point], "Tensor | None"]
Sink = Callable[[int, Cache], None]

_ATTENTIONS = (F.scaled_dot_product_attention, weighted_attention)
_ADDITIONS = {torch.Tensor.add, torch.add, torch.Tensor.__add__}


class Tracer:
    """One or more forward passes with `wanted` points handed to `sink` block by block, and `edits` applied."""

    def __init__(
        self, module: nn.Module, wanted: Iterable[str], edits: Mapping[str, Sequence[Edit]], sink: Sink | None = None
    ) -> None:
        self.module, self.blocks = module, blocks_of(module)
        self.wanted = frozenset(wanted)
        self.edits = {name: list(functions) for name, functions in edits.items() if functions}
        self.sink = sink
        self.suspended = False  # an inner tracer has taken over
        self._met: set[str] = set()  # points that the running block has come by
        self._due: dict[int, set[str]] = defaultdict(set)  # and those that it must
        # a bias is read where there is one; an edit of it must act
        for name in {*(n for n in self.wanted if not n.endswith("hook_bias")), *self.edits}:
            block = block_of(name)
            if block is not None:
                self._due[block].add(name)
        self._points = self._no_points()  # of the block that is running
        self._attention: int | None = None  # block whose attention module is running
        self._calls = self._announced = 0  # of attention: made so far, and in one forward pass
        self._branch: tuple[int, Tensor] | None = None  # (block, attention branch) about to be added
        self._rows: tuple[int, int] | None = None  # (B, N) of a block that puts the tokens of all texts into one list
        self._interceptor = _Interceptor(self)
        self._intercepting = False
        self._stack = ExitStack()

    def _no_points(self) -> Cache:
        return Cache(self.wanted, len(self.blocks))

    def __enter__(self) -> Tracer:
        with ExitStack() as stack:  # unwinds what is already registered if a later registration fails
            self._register(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._points.clear()
        self._met.clear()
        self._attention = self._branch = None
        self._intercept(False)  # Ctrl-C inside a block: no hook of its is called then
        self._stack.close()

    # --- hooks on modules ---------------------------------------------------------------------------------------

    def _register(self, stack: ExitStack) -> None:
        family = family_of(self.module)
        if self._concerns(FIRST_POINT):
            self._output(stack, self.module.get_submodule(family.embedding), FIRST_POINT, hand_over=-1)
        for i, block in enumerate(self.blocks):
            self._register_block(stack, i, block)
        if self._concerns(LAST_POINT) and (norm := final_norm(self.module)) is not None:
            self._output(stack, norm, LAST_POINT, hand_over=len(self.blocks))

    def _register_block(self, stack: ExitStack, i: int, block: nn.Module) -> None:
        if not any(block_of(name) == i for name in {*self.wanted, *self.edits}):
            return
        row, prefix = block_row(block), f"blocks.{i}."
        attention, mlp = block.get_submodule(row.attn), block.get_submodule(row.mlp)
        attended = any(block_of(n) == i and is_attention_point(n) for n in {*self.wanted, *self.edits})
        added = bool(row.mid) and not row.summed and prefix + "hook_resid_mid" in self.edits
        if attended or added:
            looked_at = block if added else attention  # each torch call inside costs a little
            stack.callback(looked_at.register_forward_pre_hook(lambda *_: self._intercept(True)).remove)
            # always_call: an exception must not leave the interceptor on. Registered first: no sink is looked at.
            stack.callback(looked_at.register_forward_hook(lambda *_: self._intercept(False), always_call=True).remove)
        if attended:
            stack.callback(attention.register_forward_pre_hook(lambda m, a: self._enter(i, m)).remove)
            leave = attention.register_forward_hook(lambda m, a, out: self._leave(i, m, out), always_call=True)
            stack.callback(leave.remove)
        if row.flat:
            stack.callback(block.register_forward_pre_hook(self._note_rows, with_kwargs=True).remove)
        self._input(stack, block, prefix + "hook_resid_pre")
        self._output(stack, block.get_submodule(row.attn_out or row.attn), prefix + "attn.hook_out")
        self._output(stack, block.get_submodule(row.attn_added), prefix + "hook_attn_out")
        if row.summed:
            self._output(stack, block.get_submodule(row.summed), prefix + "hook_resid_mid")
        elif added:
            # The sum feeds both the MLP and the skip connection, so the addition itself is intercepted.
            watch = block.get_submodule(row.attn_added).register_forward_hook(lambda m, a, out: self._watch(i, out))
            stack.callback(watch.remove)
        elif row.mid:
            self._input(stack, block.get_submodule(row.mid), prefix + "hook_resid_mid")
        inner = mlp_row(mlp)
        for kind, child in zip(("mlp.hook_pre", "mlp.hook_post"), inner or (None, None)):
            if child is not None:
                self._input(stack, mlp.get_submodule(child), prefix + kind)
            elif self._concerns(prefix + kind):
                raise VitscopeError(f"{prefix}{kind} is not known for {type(mlp).__name__}: see docs/models.md.")
        self._output(stack, block.get_submodule(row.mlp_out or row.mlp), prefix + "mlp.hook_out")
        self._output(stack, block.get_submodule(row.mlp_added), prefix + "hook_mlp_out")
        self._output(stack, block, prefix + "hook_resid_post", hand_over=i)

    def _input(self, stack: ExitStack, module: nn.Module, name: str) -> None:
        if self._concerns(name):

            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
                old = args[0] if args else kwargs["hidden_states"]
                new = self._visit(name, old)
                if new is old:
                    return None
                return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def _output(self, stack: ExitStack, module: nn.Module, name: str, hand_over: int | None = None) -> None:
        """Visit the output of a module; `hand_over` gives the block's points to the sink afterwards."""
        if hand_over is None and not self._concerns(name):
            return

        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            old = _first(output)
            new = self._visit(name, old) if self._concerns(name) else old
            if hand_over is not None and not self.suspended:
                self._check_met(hand_over)
                points, self._points = self._points, self._no_points()
                if self.sink is not None and points:
                    self.sink(hand_over, points)
            if new is old:
                return None
            return (new, *output[1:]) if isinstance(output, tuple) else new

        stack.callback(module.register_forward_hook(hook).remove)

    def _intercept(self, on: bool) -> None:
        """Where it is needed, and not once for the whole pass: a backward pass that recomputes blocks (activation
        checkpointing) runs them without the modes that are on around it."""
        if on != self._intercepting and not self.suspended:
            self._intercepting = on
            if on:
                self._interceptor.__enter__()
            else:
                self._interceptor.__exit__(None, None, None)

    # --- points -------------------------------------------------------------------------------------------------

    def _concerns(self, name: str) -> bool:
        return name in self.wanted or name in self.edits

    def _concerns_every_step(self, name: str) -> bool:
        return name in self.edits and name.endswith(("hook_attn_scores", "hook_pattern", "hook_bias"))

    def _note_rows(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.suspended:
            batch, tokens, _ = (args[0] if args else kwargs["hidden_states"]).shape
            self._rows = batch, tokens

    def _visit(self, name: str, value: Tensor) -> Tensor:
        """Apply the edits of a point, note its value if it is wanted, and return it."""
        if self.suspended:
            return value
        if value.ndim == 2 and self._rows is not None and not is_attention_point(name):  # (B * N, C), no causal bias
            rows = value.unflatten(0, self._rows)
            seen = self._visit(name, rows)
            return value if seen is rows else seen.flatten(0, 1)
        self._met.add(name)
        for edit in self.edits.get(name, ()):
            new = edit(value, Point(name))
            if new is not None:
                if not isinstance(new, Tensor) or new.shape != value.shape:
                    got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
                    raise VitscopeError(f"The edit of {name} returned {got}; expected a tensor {tuple(value.shape)}.")
                value = new
        if name in self.wanted:
            self._points[name] = value.flatten(1, 2) if name == FIRST_POINT and value.ndim == 4 else value
        return value

    # --- attention ----------------------------------------------------------------------------------------------

    def _enter(self, block: int, attention: nn.Module) -> None:
        if not self.suspended:
            # an attention that iterates (vitscope.attention.rpc) makes several calls; the last one makes the output
            self._attention, self._calls, self._announced = block, 0, getattr(attention, "attention_calls", 1)

    def _leave(self, block: int, attention: nn.Module, output: Tensor | None) -> None:
        if not self.suspended:
            self._attention = None
            if output is not None and self._calls < self._announced:  # None: an exception is on its way
                raise UnsupportedModelError(_no_call(block, attention, self._calls, self._announced))

    def attend(self, func: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Stand in for one call of attention. The model's own fused call still makes the output.

        Where an attention makes several calls, the points are those of the last one. Edits of scores, pattern and bias
        hold in all of them: a token that is knocked out must not be seen in an earlier step either.
        """
        self._calls += 1
        if self._calls > self._announced:
            raise UnsupportedModelError(
                f"The attention of block {self._attention} makes more than {self._announced} call(s) of attention: "
                "which has 'the' pattern? If the last makes its output, say how many there are: `attention_calls = 2`."
            )
        prefix = f"blocks.{self._attention}.attn."
        concerns = self._concerns if self._calls == self._announced else self._concerns_every_step
        call = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args), **kwargs)
        grouped = is_grouped(call) and any(
            concerns(prefix + hook) for hook in ("hook_q", "hook_k", "hook_v", "hook_pattern", "hook_attn_scores")
        )
        own = call  # as the model makes it
        call = per_head(call) if grouped else call
        q, k, v = (
            self._visit(prefix + hook, call[arg]) if concerns(prefix + hook) else call[arg]
            for hook, arg in (("hook_q", "query"), ("hook_k", "key"), ("hook_v", "value"))
        )  # each (B, H, N, D)
        pattern_name, scores_name, bias_name = (prefix + h for h in ("hook_pattern", "hook_attn_scores", "hook_bias"))
        written_out = func is weighted_attention or pattern_name in self.edits or scores_name in self.edits
        bias = None
        if written_out or any(concerns(n) for n in (pattern_name, scores_name, bias_name)):
            bias = additive_bias(call.get("attn_mask"), call.get("is_causal", False), q, k)
            if bias is None and bias_name in self.edits:  # an edit must act, also where a model adds nothing
                bias = q.new_zeros(*q.shape[:-1], k.shape[-2])
            if bias is not None and concerns(bias_name):
                bias = self._visit(bias_name, bias)
            if bias_name in self.edits:
                call |= {"attn_mask": bias, "is_causal": False}
        weights = None
        if written_out or concerns(pattern_name) or concerns(scores_name):
            scores = attention_scores(q, k, bias, call.get("scale"), call.get("scores"))  # (B, H, N, N)
            if concerns(scores_name):
                scores = self._visit(scores_name, scores)
            if written_out or concerns(pattern_name):
                weights = call["weigh"](scores) if func is weighted_attention else softmax_weights(scores, bias)
                if concerns(pattern_name):
                    weights = self._visit(pattern_name, weights)
        call |= {"query": q, "key": k, "value": v}
        if written_out and weights is not None:
            z = weighted_sum(weights, v, call.get("dropout_p", 0.0))  # (B, H, N, D)
        else:
            edited = any(prefix + hook in self.edits for hook in ("hook_q", "hook_k", "hook_v", "hook_bias"))
            z = func(**(own if grouped and not edited else call))
        if not concerns(prefix + "hook_z"):
            return z
        if is_grouped(own):
            z = z.reshape(len(z), -1, own["key"].shape[-2], z.shape[-1])  # (B, H, N, D), as transformers itself does
        return self._visit(prefix + "hook_z", z)

    # --- the addition that makes resid_mid ------------------------------------------------------------------------

    def _watch(self, block: int, branch: Any) -> None:
        if not self.suspended:
            self._branch = (block, _first(branch))

    def added(self, total: Tensor) -> Tensor:
        assert self._branch is not None
        block, self._branch = self._branch[0], None
        return self._visit(f"blocks.{block}.hook_resid_mid", total)

    def _check_met(self, block: int) -> None:
        """Every point of a block that was asked for or edited came by."""
        missing = self._due[block] - self._met if block in self._due else ()
        self._met.clear()
        self._branch = None
        for name in sorted(missing):
            owner = self.blocks[block]
            if is_attention_point(name):  # the block goes another way than through its attention module
                raise UnsupportedModelError(_no_call(block, owner.get_submodule(block_row(owner).attn), 0, 1))
            raise UnsupportedModelError(
                f"{name} was not met: {type(owner).__name__} does not run its parts in the way that "
                "vitscope.architectures.families describes, so this point can be neither read nor changed."
            )


def _first(output: Any) -> Any:
    """What a module gives on: its output, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


def _no_call(block: int, attention: nn.Module, made: int, announced: int) -> str:
    """Why there is nothing to read in an attention module, and what to do about it."""
    kind = f"{type(attention).__module__}.{type(attention).__qualname__}"
    where = f"The attention of block {block} ({kind})"
    if not getattr(attention, "fused_attn", True):
        return (
            f"{where} runs unfused (fused_attn is off, perhaps through TIMM_FUSED_ATTN=0). q, k, v and the pattern are "
            "read and edited where scaled_dot_product_attention is called: set `fused_attn = True` on it."
        )
    if made:
        return (
            f"{where} made {made} call(s) of attention and announces {announced}: set its `attention_calls` to what it "
            "makes, so that the call that gives the output is known."
        )
    return (
        f"{where} made no call of scaled_dot_product_attention, where q, k, v and the pattern are read and edited: "
        "nothing of it can be seen or changed. Let it call that function or, if it is no softmax, "
        "vitscope.attention.explicit_attention(q, k, v, weigh); docs/attention.md shows how."
    )


class _Interceptor(TorchFunctionMode):
    """Shows the tracer the calls it asked for and passes every other torch function on."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tracer, kwargs = self.tracer, kwargs or {}
        if not tracer.suspended:
            if func in _ATTENTIONS and tracer._attention is not None:
                return tracer.attend(func, args, kwargs)
            if tracer._branch is not None and func in _ADDITIONS and any(a is tracer._branch[1] for a in args):
                return tracer.added(func(*args, **kwargs))
        return func(*args, **kwargs)
