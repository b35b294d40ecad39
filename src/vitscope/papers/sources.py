"""Who thought of it first: the works behind everything that has a name here. The entries are in works.bib.

`OURS` says that there is nobody to cite but vitscope itself. What a class of your own cites, it says itself:
`cites = ("@article{...}",)`.
"""

from __future__ import annotations

OURS: tuple[str, ...] = ()

_KPCA = ("teo2024unveiling", "saritas2025reproduction")
_CLASS_SPACE = ("vilas2023analyzing",)
_RANKS = ("genus", "family", "order", "class", "phylum", "kingdom", "supercategory")
_SHARES = ("wilson1927probable",)

ANALYSES: dict[str, tuple[str, ...]] = {
    "accuracy": ("guo2017calibration", *_SHARES),
    "attack": _SHARES,
    "attention": ("dosovitskiy2021image",),  # the mean attention distance
    "causes.ablation": ("michel2019sixteen",),
    "causes.attribution": ("elhage2021mathematical",),
    "causes.patching": ("vig2020investigating", "goldowskydill2023localizing", "nanda2023attribution"),
    "class_space.composition": _CLASS_SPACE,
    "class_space.identifiability": _CLASS_SPACE,
    "class_space.lens": _CLASS_SPACE,
    "class_space.memories": _CLASS_SPACE,
    "evaluation": ("guo2017calibration", "hendrycks2019deep", *_SHARES),
    "importance": _CLASS_SPACE,
    "kpca.gamma": _KPCA,
    "kpca.norms": _KPCA,
    "kpca.reconstruction": _KPCA,
    "kpca.spectrum": _KPCA,
    "kpca.values": (*_KPCA, "kornblith2019similarity"),
    "patches.attention": OURS,
    "patches.identifiability": _CLASS_SPACE,
    "perplexity": OURS,
    "perturbation": _CLASS_SPACE,
    "point_means": OURS,
    "probes": _CLASS_SPACE,
    "probes.moments": OURS,
    "relevance": (*_CLASS_SPACE, "chefer2021generic", "abnar2020quantifying", "zhang2016top"),
    "save": OURS,
    "segmentation": ("everingham2010pascal",),  # intersection over union
    "segmentation.attack": ("everingham2010pascal",),
    "segmentation.lens": _CLASS_SPACE,
    "separation": ("he2023law",),
    "swapped.lens": OURS,
    "swapped.perplexity": ("teo2024unveiling", "morris2020textattack"),
    "vocabulary.identifiability": ("vilas2023analyzing", "nostalgebraist2020interpreting"),
    "vocabulary.knockout": ("michel2019sixteen",),
}
ATTENTIONS: dict[str, tuple[str, ...]] = {
    "softmax": ("vaswani2017attention",),
    "symmetric": ("teo2024unveiling",),
    "rpc": ("teo2024unveiling", "candes2011robust"),
    "scaled": ("teo2024unveiling",),
    "standardised": _KPCA,
}
ATTACKS: dict[str, tuple[str, ...]] = {
    "apgd-ce": ("croce2020reliable",),
    "autoattack": ("croce2020reliable", "andriushchenko2020square"),
    "cw": ("carlini2017towards",),
    "fgsm": ("goodfellow2015explaining",),
    "hopskipjump": ("chen2020hopskipjump",),
    "noise": OURS,
    "pgd": ("madry2018towards",),
    "sparse-l1": ("tramer2019adversarial",),
    "spsa": ("uesato2018adversarial",),
    "square": ("andriushchenko2020square",),
}
MOMENTUM = ("dong2018boosting",)  # of PGD
CORRUPTION = ("hendrycks2019benchmarking",)  # all fifteen
SETS: dict[str, tuple[str, ...]] = {
    "A": ("hendrycks2021natural",),
    "C": CORRUPTION,
    "O": ("hendrycks2021natural",),
    "R": ("hendrycks2021many",),
    "SKETCH": ("wang2019learning",),
    "V2": ("recht2019do",),
}
DATASETS: dict[str, tuple[str, ...]] = {
    "ade20k": ("zhou2017scene",),
    "cifar10": ("krizhevsky2009learning",),
    "cifar100": ("krizhevsky2009learning",),
    "digit-scenes": ("lecun1998gradient",),
    "fashion-mnist": ("xiao2017fashion",),
    "imagenet": ("russakovsky2015imagenet",),
    "imagenet-s": ("gao2022large", "russakovsky2015imagenet"),
    "imagenet-s-maps": ("gao2022large", "russakovsky2015imagenet"),
    "imagenet-v2": ("recht2019do",),
    **{f"inaturalist{rank}": ("vanhorn2018inaturalist",) for rank in ("", *(f"-{rank}" for rank in _RANKS))},
    "mnist": ("lecun1998gradient",),
    "mnist5k": ("lecun1998gradient",),
    "oxford-pet": ("parkhi2012cats",),
    "pydoc": OURS,
    "pydoc-sentences": OURS,
    "voc2012": ("everingham2010pascal",),
    "wikitext-103": ("merity2017pointer",),
    "wikitext-2": ("merity2017pointer",),
}
TIMM = ("wightman2019timm",)
# the first pattern that a model's name fits, as in `re.match`
MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"deit_ensemble_16$", ("naseer2022improving", "touvron2021training", *_CLASS_SPACE)),
    (r"vit_cifar_16$", ("dosovitskiy2021image", *_CLASS_SPACE)),
    (r"fan_", ("zhou2022understanding",)),
    (r"segmenter$", ("strudel2021segmenter",)),
    (r"symlm$", ("teo2024unveiling", "grave2017efficient")),
    (r"lm-small$|text-classifier$", ("vaswani2017attention",)),
    (r"small$", ("dosovitskiy2021image",)),
    (r"deit3?_", ("touvron2021training", *TIMM)),
    (r"vit_.*(siglip)", ("zhai2023sigmoid", "dosovitskiy2021image", *TIMM)),
    (r"vit_.*clip", ("radford2021learning", "dosovitskiy2021image", *TIMM)),
    (r"vit_", ("dosovitskiy2021image", *TIMM)),
    (r"(?i).*roberta", ("liu2019roberta", "wolf2020transformers")),
    (r"(?i).*bert", ("devlin2019bert", "wolf2020transformers")),
)
# works whose particulars we do not know well enough for an entry
UNSURE: dict[str, str] = {
    "separation": "Varam et al., IEEE Access 2025 (spike and decay in vision transformers): take the entry from the "
    "publisher.",
}
REFINED, LINEAR = ("naseer2022improving",), ("belrose2023tuned",)  # learnt lenses
