"""A network and a loss of one's own, averaged under a privacy that was planned before."""

import numpy as np
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import sotto

digits = load_digits()
images = (digits.images * 15).astype(np.uint8)
data = sotto.Data(images, digits.target, clients=np.arange(len(images)) % 50)
network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))


def smooth(scores, labels):
    return functional.cross_entropy(scores, labels, reduction="none", label_smoothing=0.1)


plan = sotto.calibrate(sotto.Plan("upload_noise", rounds=10), epsilon=8)
method = sotto.averaged(network, loss=smooth, size=8)
run = sotto.run(method, data=data, privacy=plan, training={"learning_rate": 0.3})
print(run)
