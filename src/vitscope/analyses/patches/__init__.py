"""Patches of a segmenter, each with a true class: when does a patch know what it is, and whom does it ask?"""
