"""Segmentation: how well every pixel is told, and what is taken for what."""
