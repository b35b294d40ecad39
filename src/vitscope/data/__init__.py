"""Datasets by name or by folder, with labels, masks and a fingerprint; batches for looking and for learning."""

from vitscope.data.batch import CONTEXT, IGNORED, OBJECT, Batch, Item, Skipped
from vitscope.data.batching import steps_per_epoch, train_batches
from vitscope.data.dataset import ImageData
from vitscope.data.loading import load_data
from vitscope.data.registry import list_datasets, register_dataset
from vitscope.data.source import Source

__all__ = [
    "CONTEXT",
    "IGNORED",
    "OBJECT",
    "Batch",
    "ImageData",
    "Item",
    "Skipped",
    "Source",
    "list_datasets",
    "load_data",
    "register_dataset",
    "steps_per_epoch",
    "train_batches",
]
