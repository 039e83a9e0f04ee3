"""One's own images, here scikit-learn's digits, with ten clients and a frozen CLIP model."""

import numpy as np
from sklearn.datasets import load_digits

import sotto

digits = load_digits()
images = (digits.images * 15).astype(np.uint8)
owner = np.arange(len(images)) % 10
data = sotto.Data(images, digits.target, clients=owner)
run = sotto.run("promptfl", data=data, model=sotto.clip("sotto-tiny"), rounds=3)
print(run)
