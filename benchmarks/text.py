"""What looking inside text models costs: ratios to the plain fused forward pass.

    python benchmarks/text.py [--encoder FOLDER] [--decoder FOLDER_OR_GGUF]

Encoder: MiniLM (6 blocks of width 384, 12 heads), 16 texts of 128 tokens: its weights where a folder is given, else
random ones of the same sizes. Decoder: a Llama of 5 blocks and 512 words (the sizes of stories260K), or the one that is
given, 4 texts of 128 tokens: the lens of the vocabulary at every block, and the memory that it takes beyond a forward
pass.
"""

from __future__ import annotations

import argparse
import resource
from typing import Any

import torch
from torch import Tensor

import vitscope
from timing import interleaved, report
from vitscope.models import Model

RESIDUALS_AND_QKV = ["blocks.*.hook_resid_*", "blocks.*.attn.hook_[qkv]"]


def random_encoder() -> Model:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return vitscope.open_model(BertModel(BertConfig(**sizes, attn_implementation="sdpa")).eval())


def random_decoder() -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = LlamaConfig(**sizes, intermediate_size=172, vocab_size=512, attn_implementation="sdpa")
    return vitscope.open_model(LlamaForCausalLM(config).eval())


def read_vocabulary(model: Model, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """Rank and log-probability of the next token at the end of every block."""
    found: list[Tensor] = []

    def on_block(block: int, points: Any) -> None:
        (x,) = points.values()
        found.extend(model.rank_and_log_probability(x, targets))

    model.stream(tokens, "blocks.*.hook_resid_post", on_block)
    return found


def peak() -> float:
    """Megabytes, the largest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="a folder of a text model, such as MiniLM")
    parser.add_argument("--decoder", help="a folder or .gguf file of a language model, such as SmolLM2")
    given = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    encoder = vitscope.open_model(given.encoder) if given.encoder else random_encoder()
    tokens = torch.randint(1000, 20_000, (16, 128))
    contenders = {
        "plain forward": lambda: encoder.module(input_ids=tokens),
        "residuals + q, k, v, kept": lambda: encoder.run_with_cache(tokens, RESIDUALS_AND_QKV),
        "residuals + q, k, v, block by block": lambda: encoder.stream(tokens, RESIDUALS_AND_QKV, lambda b, p: None),
    }
    print(encoder)
    report(interleaved(contenders, repeats=15), "plain forward", {"residuals + q, k, v, block by block": 1.08})

    decoder = vitscope.open_model(given.decoder) if given.decoder else random_decoder()
    tokens = torch.randint(3, min(decoder.num_classes, 30_000), (4, 128))
    targets = tokens.roll(-1, 1)
    contenders = {
        "plain forward": lambda: decoder.module(input_ids=tokens, use_cache=False),
        "the next token at every block": lambda: read_vocabulary(decoder, tokens, targets),
    }
    print(decoder)
    decoder(tokens)
    before = peak()
    read_vocabulary(decoder, tokens, targets)
    print(f"peak memory beyond a forward pass: {peak() - before:.0f} MB; logits of all blocks would be "
          f"{4 * tokens.numel() * decoder.num_classes * decoder.layout.blocks / 2**20:.0f} MB")  # fmt: skip
    report(interleaved(contenders, repeats=9), "plain forward", {})


if __name__ == "__main__":
    main()
