"""A study: two methods at two epsilons on one's own images, with a table, tests and a figure."""

from sklearn.datasets import load_digits

import sotto

found = load_digits()
images = (found.images[:300] * 15).astype("uint8")
data = sotto.Data(images, found.target[:300], clients=[f"site {i % 5}" for i in range(300)])

study = sotto.Study(["promptfl", "fedpgp"], epsilon=[None, 8], seeds=2, data=data, rounds=2)
print("filled in:", study.filled)
study.run()
print(study.table)
print(study.tests)
print("table.tex and tradeoff.svg are in", study.output)
