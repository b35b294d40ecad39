"""`vitscope train`: train a ViT, with analyses along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from vitscope.cli.configuration import FromFile, parse_with_config
from vitscope.cli.parsing import named
from vitscope.cli.results import first_process, show
from vitscope.training.options import TrainOptions
from vitscope.training.recipes import recipe_options

EXAMPLES = """\
  vitscope train --recipe quick --out runs/digits
  vitscope train --recipe quick --epochs 5 --model-options depth=2 --probe attention --out runs/short
  vitscope train --config runs/digits/config.yaml --seed 1 --out runs/digits-1
  vitscope train --data path/to/pictures --model vit_small_patch16_224 --epochs 50 --augment flip --out runs/mine
  vitscope train --recipe small --attention rpc:layers=0 --probe kpca.reconstruction,accuracy --out runs/rpc
  vitscope train --recipe quick --weights runs/digits --lr 1e-4 --data path/to/pictures --out runs/tuned
  vitscope train --refine runs/digits --refine-kind linear --out runs/digits-lens
  vitscope train --recipe quick --weights runs/digits --evaluate --data mnist5k --out runs/judged
  vitscope train --recipe quick --track tensorboard,wandb --track-offline --out runs/tracked
  vitscope train --recipe quick-text --out runs/pydoc
  vitscope train --recipe lm-small --data path/to/texts --vocabulary words:20000 --context 128 --out runs/mine
  vitscope train --recipe sentences --weights path/to/encoder --data path/to/SST-2 --test-split dev --out runs/sst2
  vitscope train --recipe segmenter-small --out runs/scenes
  vitscope train --recipe segmenter --root path/to/ade20k --weights vit_tiny.safetensors --out runs/ade
  torchrun --nproc_per_node 2 -m vitscope train --recipe quick --out runs/two
"""


@dataclass(frozen=True)
class Words(FromFile, TrainOptions):
    """Train a ViT. The same command again resumes it exactly; `vitscope analyze OUT` then looks inside."""

    recipe: Annotated[str | None, named("NAME")] = None
    """a name for options that belong together (quick, small, cifar, deit, fan; on texts quick-text, lm-small, symlm,
    sentences; of pixels segmenter, segmenter-small)"""


def main(arguments: Sequence[str]) -> None:
    words = parse_with_config(Words, "train", arguments, EXAMPLES, lambda name: recipe_options(name).to_config())
    options = TrainOptions(**{f.name: getattr(words, f.name) for f in fields(TrainOptions)})
    options.check()
    from vitscope.report import build_report
    from vitscope.training import train

    run = train(options, command=["vitscope", "train", *arguments])
    if first_process():
        build_report(run)
    show([run])
