"""The vocabulary as classes: the true class of a token is the next one. Where in a language model is it known?"""
