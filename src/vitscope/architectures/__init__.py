"""What models are made of, as data: the families that open, the points of their blocks, the order of their tokens."""
