"""The conditions of an evaluation as one set of pictures, what is read off each, and the tables."""
