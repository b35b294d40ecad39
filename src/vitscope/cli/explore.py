"""`vitscope explore`: open a model in the browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vitscope.cli.parsing import parse
from vitscope.explorer.options import ExploreOptions

EXAMPLES = """\
  vitscope explore runs/demo/digits-vit --data mnist5k
  vitscope explore runs/demo/digits-vit runs/demo/digits-rpc --data mnist5k     # side by side
  vitscope explore vit_tiny_patch16_224 --data path/to/imagenet --split val
  vitscope explore vit_tiny_patch16_224                                          # drop pictures of your own
  vitscope explore path/to/a-language-model                                      # type a sentence
"""


def main(arguments: Sequence[str]) -> None:
    options = parse(ExploreOptions, "explore", arguments, EXAMPLES)
    options.check()
    from vitscope.explorer.opening import import_uvicorn, start

    import_uvicorn()
    models = options.open()
    explorer = start(models, options.load(models), options)
    try:
        print(f"Exploring {', '.join(m.name for m in models)}. Ctrl-C ends it.\n{explorer.url}")
        sys.stdout.flush()
        explorer.wait()
    finally:
        explorer.close()
