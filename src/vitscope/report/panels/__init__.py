"""Panels that belong to no single analysis. An analysis brings its panel in its own file."""
