"""Two methods with the same clients, data and epsilon, over three seeds."""

from statistics import mean, stdev

import sotto

for method in ("promptfl", "prompt_fedprox"):
    runs = [sotto.run(method, rounds=2, seed=seed) for seed in (0, 1, 2)]
    found = [100 * run.accuracy for run in runs]
    spent = max(run.epsilon.server for run in runs)
    print(f"{method}: {mean(found):.1f} ± {stdev(found):.1f} %, epsilon {spent:.2f}")
