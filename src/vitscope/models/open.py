"""open_model: from a name, a folder or a built module to a Model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitscope.architectures.compiled import refuse_compiled
from vitscope.architectures.families import check_model, family_of, is_text_module
from vitscope.architectures.layout import input_size
from vitscope.attention import convert_from_description, describe_attention
from vitscope.attention.description import attention_names
from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError, suggest
from vitscope.models import segmenter_weights, separation
from vitscope.models.catalog import read_table
from vitscope.models.class_vectors import read_by_class_vectors
from vitscope.models.creation import create, create_pretrained
from vitscope.models.description import Description, read_description
from vitscope.models.examine import describe
from vitscope.models.learnt_lens import attach_named
from vitscope.models.model import Model
from vitscope.models.naming import is_own, is_text_model, is_trained
from vitscope.models.own_tokenizer import FILE, open_tokenizer
from vitscope.models.preprocessing import UNTOUCHED, Preprocess, disagreement, from_timm
from vitscope.models.published import check_arguments, published_attention
from vitscope.models.text import open_text, text_model
from vitscope.models.weights import check_finite, count_classes, is_damaged, load_into, read_weights, sha256
from vitscope.outside import import_remembered, only_named
from vitscope.registry import ATTENTIONS, BUILDERS


def open_model(
    name: str | Path | nn.Module,
    weights: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    use_ema: bool = True,
    seed: int = 0,
    attention: Any = None,
    trust: bool = False,
    class_vectors: Any = None,
    class_names: Any = None,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    **timm_options: Any,
) -> Model:
    """Open a transformer for looking inside. The model is in evaluation mode.

    name: a timm name with or without tag, 'small', a run folder of `vitscope train`, `package.module:function` that
        builds one of your own, or a module built with timm; a text model's folder (config.json, safetensors,
        tokenizer), .gguf file or name on the hub, or such a module.
    weights: a .safetensors or .pth file; None takes timm's pretrained weights (a download where the net allows), or
        those a module or run folder already has; "random" asks for random weights, drawn from `seed`.
    use_ema: take averaged weights where a checkpoint has both.
    attention: what to convert the built model to before its weights are loaded, e.g. "rpc:layers=0,iterations=4".
    trust: import the code outside of vitscope that a run folder names (an attention of one's own).
    class_vectors: of image towers (CLIP, SigLIP): (classes, width of the embedding), or a .npy file with them. Logits
        are `logit_scale` times the cosine with them, plus `logit_bias`; `class_names`: a list, or a file of lines.
    timm_options: passed to `timm.create_model`, e.g. img_size=384, num_classes=10, depth=4. Text models know
        `length`, the most tokens of a text, and a module of one its `tokenizer`; a segmenter with random weights knows
        `backbone_weights`, a file of its encoder's.
    """
    with torch.random.fork_rng(devices=[]):  # whatever is drawn comes from `seed`; the caller's random state stays
        torch.manual_seed(seed)
        model = _opened(name, weights, use_ema, seed, attention, trust, timm_options)
    if class_vectors is not None or class_names is not None:
        read_by_class_vectors(model, class_vectors, class_names, logit_scale, logit_bias)
    check_finite(model.module, f"Weights of {model.name}")
    model.module.eval()
    return model.to(device)


def _opened(
    name: str | Path | nn.Module,
    weights: str | Path | None,
    use_ema: bool,
    seed: int,
    attention: Any,
    trust: bool,
    timm_options: dict[str, Any],
) -> Model:
    if isinstance(name, nn.Module):
        if attention is None and weights is None and is_text_module(name):
            return _from_text_module(name, timm_options)
        if attention is not None or timm_options:
            raise VitscopeError("A module is opened as it is: use vitscope.attention.convert on it, or give its name.")
        return _from_module(name, weights, use_ema)
    if is_trained(name):
        if attention is not None or timm_options:
            given = sorted([*timm_options, *(["attention"] if attention is not None else [])])
            raise VitscopeError(f"A run folder knows its model: {', '.join(given)} cannot be given for {name}.")
        with only_named(trust=trust):
            return _from_run(Path(name), weights, use_ema)
    if is_text_model(name):
        if attention is not None:
            raise VitscopeError(
                f"attention={attention!r} cannot be given for the text model {name}: ViTs alone are converted."
            )
        return open_text(str(name), weights, seed, timm_options)
    return _from_name(str(name), weights, use_ema, seed, attention, timm_options)


def _from_name(
    name: str, weights: str | Path | None, use_ema: bool, seed: int, attention: Any, options: dict[str, Any]
) -> Model:
    check_name(name)
    source: dict[str, Any] = {"name": name, "options": dict(options)}
    notes: list[str] = []
    options = dict(options)
    backbone_weights = str(options.pop("backbone_weights", None) or "")  # read here, and never by a builder
    if backbone_weights and str(weights) != "random":
        raise VitscopeError("backbone_weights= goes with weights='random': the decoder is new and must be trained.")
    if weights is None:
        if not options:  # with options it is built without memory first, which tells
            _check_supported(name)
        module: Any = convert_from_description(create_pretrained(name, **options), attention)
        source["weights"] = "timm pretrained"
        if options.get("num_classes", 0) not in (0, module.pretrained_cfg.get("num_classes")):
            source["weights"] += f", new head from seed {seed}"
            notes.append(f"The head of {options['num_classes']} classes is new: it was never trained.")
    elif str(weights) == "random":
        module = _build(name, options)
        source["weights"] = f"random, seed {seed}"
        if backbone_weights:
            notes, source["backbone"] = segmenter_weights.put_into_backbone(
                module, backbone_weights, attention, use_ema
            )
        else:
            convert_from_description(module, attention)
    else:
        file = read_weights(weights, use_ema)
        state, of_study = file.state, name == "small" and separation.is_of_the_study(file.state)
        if of_study:
            state = separation.under_our_names(state)
            options = {**separation.sizes(state), **options}
            notes.append(f"{Path(weights).name} has the names of the separation study: norms add 1e-5, as there.")
        if name == "segmenter":
            told, remarks = segmenter_weights.read_off(state, options, Path(weights).name)
            options, notes = {**told, **options}, [*notes, *remarks]
        notes += file.remarks(weights)
        classes = count_classes(state, str(weights))
        if "num_classes" in options and classes not in (None, options["num_classes"]):
            raise WeightsError(
                f"num_classes={options['num_classes']} was asked for, but {weights} has {classes} classes."
            )
        if attention is None:
            attention = published_attention(file.state, file.arguments, str(weights)) or None
        module = _build(name, {**options, **({"num_classes": classes or 0} if "num_classes" not in options else {})})
        convert_from_description(module, attention)
        notes += attach_named(module, state, Path(weights).name)
        if family_of(module).trunk:
            notes += segmenter_weights.put_in(module, state, Path(weights).name)
        else:
            load_into(module, state, str(weights))
        if of_study:
            separation.take_over_norms(module)
        stated = [*options, *(["attention"] if attention is not None else [])]
        check_arguments(module, file.state, file.arguments, str(weights), stated)
        source |= {"weights": Path(weights).name, "sha256": sha256(weights), **file.origin}
        source["path"] = str(Path(weights).absolute())
    if attention is not None:
        source["attention"] = describe_attention(module)
    if family_of(module).layout is not None:
        return Model(module, name, UNTOUCHED, source, notes)
    configuration = dict(module.pretrained_cfg)
    if "." not in name and (remark := disagreement(name, configuration)):
        warnings.warn(remark, stacklevel=3)
        notes.append(remark)
    tag = f"{configuration.get('architecture', name.split('.')[0])}.{configuration.get('tag') or 'untagged'}"
    return Model(module, name, from_timm(configuration, input_size(module), tag), source, notes)


def _from_text_module(module: Any, options: dict[str, Any]) -> Model:
    refuse_compiled(module)
    check_model(module)
    if unknown := options.keys() - {"tokenizer", "length"}:
        raise VitscopeError(f"A module is opened as it is: {', '.join(sorted(unknown))} cannot be given with one.")
    name = type(module).__name__
    return text_model(module, name, source={"name": name, "weights": "of the given module"}, **options)


def _from_module(module: nn.Module, weights: str | Path | None, use_ema: bool) -> Model:
    refuse_compiled(module)
    check_model(module)
    configuration: dict[str, Any] = dict(getattr(module, "pretrained_cfg", None) or {})
    name = configuration.get("architecture") or type(module).__name__
    source: dict[str, Any] = {"name": name, "weights": "of the given module"}
    notes: list[str] = []
    if weights is not None:
        if str(weights) == "random":
            raise VitscopeError("weights='random' goes with a name; a module already has its weights.")
        file = read_weights(weights, use_ema)
        notes += [*file.remarks(weights), *attach_named(module, file.state, Path(weights).name)]
        load_into(module, file.state, str(weights))
        check_arguments(module, file.state, file.arguments, str(weights))
        source |= {"weights": Path(weights).name, "sha256": sha256(weights), **file.origin}
    if family_of(module).layout is not None:  # no pictures: what the data give goes in as it is
        return Model(module, name, UNTOUCHED, source, notes)
    if not configuration:
        notes.append("This module carries no timm pretrained_cfg: ImageNet mean/std are assumed for preprocessing.")
        warnings.warn(notes[-1], stacklevel=3)
    tag = f"{name}.{configuration.get('tag') or 'untagged'}"
    return Model(module, name, from_timm(configuration, input_size(module), tag), source, notes)


def _from_run(run: Path, weights: str | Path | None, use_ema: bool) -> Model:
    description, notes = read_description(run / "model.json"), list[str]()
    if weights is None:
        candidates = [run / "checkpoints" / which / "model.safetensors" for which in ("best", "last")]
        found = [c for c in candidates if c.is_file()]
        if not found:
            raise WeightsError(f"{run} has no checkpoint yet: expected {candidates[0]} or {candidates[1]}.")
        intact = [c for c in found if not is_damaged(c)]
        if not intact:
            raise WeightsError(f"{found[0]} is damaged: its checksum is not the one that was written with it.")
        weights = intact[0]
        if weights != found[0]:
            notes.append(f"{found[0]} is damaged (its checksum differs): {weights} was opened instead.")
            warnings.warn(notes[0], stacklevel=4)
        average = weights.with_name("ema.safetensors")
        if average.is_file():
            notes.append(f"The weights themselves were taken, not their average: --weights {average} opens that.")
    check_name(description.name)
    file = read_weights(weights, use_ema)
    notes += file.remarks(weights)
    _import_attention(description, run)
    options = {key: value for key, value in description.kwargs.items() if key != "backbone_weights"}  # it has its own
    module = convert_from_description(_build(description.name, options), description.attention)
    notes += attach_named(module, file.state, run.name)
    load_into(module, file.state, str(weights))
    which = Path(weights).parent.name
    source = {"name": description.name, "options": dict(description.kwargs), "run": run.name}
    source |= {"weights": f"{which}/{Path(weights).name}", "sha256": sha256(weights), **file.origin}
    source |= {"path": str(Path(weights).absolute()), "run_path": str(run.absolute())}
    if description.attention:
        source["attention"] = description.attention
    preprocess = _preprocess(description, run)
    return Model(module, run.name, preprocess, source, notes, classes=description.classes)


def _preprocess(description: Description, run: Path) -> Any:
    """That of pictures, or the vocabulary of a language model, which lies beside its weights."""
    if not description.of_text:
        return Preprocess.from_dict(description.preprocess)
    told = description.preprocess
    return open_tokenizer(run / FILE, int(told["length"]), str(told.get("source", "")))


def _import_attention(description: Description, run: Path) -> None:
    """An attention that is not ours is registered by a module that the run remembers."""
    known = all(ATTENTIONS.find(name) for name in attention_names(description.attention))
    if not known and (problems := import_remembered({"modules": description.modules}, run)):
        raise VitscopeError("\n".join(problems))


def check_name(name: str) -> None:
    """A name that timm knows, or an error that suggests the nearest ones."""
    import timm

    if is_own(name):
        return
    architecture, _, tag = name.partition(".")
    known = [*BUILDERS.names(), *timm.list_models()]
    if architecture not in known:
        if os.path.exists(name):
            raise VitscopeError(f"{name} exists but is no run folder with a trained model (no model.json in it).")
        raise VitscopeError(f"There is no model {name!r}.{suggest(architecture, known)} `vitscope models` lists them.")
    if tag:
        tags = [t.split(".", 1)[1] for t in timm.list_pretrained(f"{architecture}.*")]
        if tag not in tags:
            raise VitscopeError(
                f"{architecture} has no tag {tag!r}.{suggest(tag, tags)} Known: {', '.join(tags) or 'none'}."
            )


def _build(name: str, options: dict[str, Any]) -> Any:
    module = create(name, **options)
    check_model(module)
    return module


def _check_supported(name: str) -> None:
    """Refuse an unsupported family before anything is downloaded."""
    architecture = name.partition(".")[0]
    if any(row.name == architecture and row.supported for row in read_table() or ()):
        return
    row = describe(name)  # also where the table refuses: a family added since then opens
    if not row.supported:
        raise UnsupportedModelError(f"{name} is not supported: {row.remark}")
