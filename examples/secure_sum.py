"""The sum of twenty vectors, of which one is lost on the way (a simulation in one process)."""

import numpy as np

import sotto

rng = np.random.default_rng(0)
vectors = {f"c{number}": rng.normal(size=512) / 50 for number in range(20)}
total = sotto.secure_sum(vectors, lost={"c3"}, clipping_norm=1.0)
expected = sum(vector for name, vector in vectors.items() if name != "c3")
print("largest error:", np.abs(total - expected).max())
