"""How sure is a number? Intervals, bootstrap, means over clusters, tests by permutation: sums that merge exactly."""
