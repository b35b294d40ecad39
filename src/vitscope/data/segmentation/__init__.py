"""Pictures with a class for every pixel: data sets, label maps, and what moves both together."""
