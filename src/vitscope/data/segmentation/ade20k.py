"""ADE20K as it is distributed for scene parsing: `images/` and `annotations/`, each with `training/`, `validation/`.

A map holds 0 for everything else, which is ignored, and 1 to 150 for the classes. (Zhou et al., Scene parsing through
ADE20K dataset, CVPR 2017.)
"""

from __future__ import annotations

from pathlib import Path

from vitscope.data.places import places
from vitscope.data.registry import register_dataset
from vitscope.data.segmentation.pairs import NAMES, named_classes, pair_source
from vitscope.data.source import Source
from vitscope.errors import DataError

FOLDERS = ("", "ADEChallengeData2016", "ade20k")
OWN = "ADE_"  # how its files begin

_NAMES = (
    "wall,building,sky,floor,tree,ceiling,road,bed,windowpane,grass,cabinet,sidewalk,person,earth,door,table,"
    "mountain,plant,curtain,chair,car,water,painting,sofa,shelf,house,sea,mirror,rug,field,armchair,seat,fence,"
    "desk,rock,wardrobe,lamp,bathtub,railing,cushion,base,box,column,signboard,chest of drawers,counter,sand,"
    "sink,skyscraper,fireplace,refrigerator,grandstand,path,stairs,runway,case,pool table,pillow,screen door,"
    "stairway,river,bridge,bookcase,blind,coffee table,toilet,flower,book,hill,bench,countertop,stove,palm,"
    "kitchen island,computer,swivel chair,boat,bar,arcade machine,hovel,bus,towel,light,truck,tower,chandelier,"
    "awning,streetlight,booth,television receiver,airplane,dirt track,apparel,pole,land,bannister,escalator,"
    "ottoman,bottle,buffet,poster,stage,van,ship,fountain,conveyer belt,canopy,washer,plaything,swimming pool,"
    "stool,barrel,basket,waterfall,tent,bag,minibike,cradle,oven,ball,food,step,tank,trade name,microwave,pot,"
    "animal,bicycle,lake,dishwasher,screen,blanket,sculpture,hood,sconce,vase,traffic light,tray,ashcan,fan,pier,"
    "crt screen,plate,monitor,bulletin board,shower,radiator,glass,clock,flag"
)
CLASSES = tuple(_NAMES.split(","))


@register_dataset("ade20k")
def ade20k(root: Path | None, split: str | None = None) -> Source:
    """Scenes with 150 classes. Other pictures in this layout have as many classes as `classes.txt` or the maps say."""
    tried = [place / folder for place in places(root, ()) for folder in FOLDERS]
    home = next((p for p in tried if (p / "images").is_dir() and (p / "annotations").is_dir()), None)
    if home is None:
        raise DataError(
            f"ADE20K is not there: looked for images/ and annotations/ in {', '.join(map(str, tried))}. Give "
            "root=FOLDER (--root FOLDER)."
        )
    maps = home / "annotations"
    own = next(maps.rglob(f"{OWN}*"), None) is not None and not (maps / NAMES).is_file()
    return pair_source(home / "images", maps, split, 1, list(CLASSES) if own else named_classes(maps, 1))
