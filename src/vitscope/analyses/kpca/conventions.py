"""Words and numbers that the kernel-PCA analyses write into tables and panels read. Pages are drawn without torch."""

from __future__ import annotations

PUBLISHED = {"max": 648.46, "min": 4.65, "mean": 40.07, "median": 17.73}  # eigenvalues
VECTORS = ("eigenvectors", "perturbed", "recovered", "random")  # column `vectors` of gamma
LEARNED, RANDOM, OTHER = "learned", "random", "other head"  # column `values`: V, and its nulls
