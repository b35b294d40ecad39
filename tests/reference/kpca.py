"""Is a finished run of docs/results/kpca.md (ViT-Tiny, 100 images) within the tolerances of an independent computation?

python tests/reference/kpca.py runs/kpca-tiny

Not part of `make test`: the run takes minutes, while the suite compares ten images of it with less precision.
"""

from __future__ import annotations

import sys

from vitscope.runs import Run

EXPECTED = {  # (value vectors, measure): value, tolerance
    ("learned", "optimal_cosine"): (0.212, 0.005),
    ("learned", "linear_cka"): (0.067, 0.003),
    ("learned", "kernel_cka"): (0.260, 0.01),
    ("random", "optimal_cosine"): (0.238, 0.005),
    ("random", "linear_cka"): (0.080, 0.003),
    ("random", "kernel_cka"): (0.132, 0.01),
}


def main(folder: str) -> int:
    table = Run.open(folder).table("kpca_values_model")
    assert table is not None, f"{folder} has no table kpca_values_model"
    found = table[table["weights"] == "own"].set_index(["values", "metric"])["mean"]
    off = 0
    for key, (expected, tolerance) in EXPECTED.items():
        right = abs(found[key] - expected) <= tolerance
        off += not right
        words = f"{key[0]:8} {key[1]:15} {found[key]:.4f}, expected {expected} +- {tolerance}"
        sys.stdout.write(f"{words}{'' if right else ': OFF'}\n")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
