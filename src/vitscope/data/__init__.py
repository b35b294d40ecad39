"""Datasets by name or by folder, with labels, masks and a fingerprint; batches for looking and for learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.data.batch import CONTEXT as CONTEXT
    from vitscope.data.batch import IGNORED as IGNORED
    from vitscope.data.batch import OBJECT as OBJECT
    from vitscope.data.batch import Batch as Batch
    from vitscope.data.batch import Item as Item
    from vitscope.data.batch import Skipped as Skipped
    from vitscope.data.batching import steps_per_epoch as steps_per_epoch
    from vitscope.data.batching import train_batches as train_batches
    from vitscope.data.dataset import ImageData as ImageData
    from vitscope.data.loading import load_data as load_data
    from vitscope.data.loading import load_images as load_images
    from vitscope.data.protocol import Data as Data
    from vitscope.data.registry import list_datasets as list_datasets
    from vitscope.data.registry import register_dataset as register_dataset
    from vitscope.data.segmentation.dataset import SegmentationData as SegmentationData
    from vitscope.data.source import Source as Source
    from vitscope.data.tensors import Tensors as Tensors
    from vitscope.data.text.dataset import TextData as TextData
    from vitscope.data.text.loading import load_texts as load_texts

__getattr__, __dir__, __all__ = lazy(__name__)
