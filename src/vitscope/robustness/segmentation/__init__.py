"""Segmentation under corruption and attack."""
