"""Each round in Weights & Biases; `pip install wandb`. Offline: `wandb sync` uploads it later."""

import wandb

import sotto

tracked = wandb.init(project="sotto", mode="offline")


def show(found):
    values = {f"epsilon/{party}": value for party, value in found.epsilon._asdict().items()}
    if found.accuracy is not None:
        values["accuracy"] = found.accuracy
    tracked.log(values, step=found.number)


run = sotto.run("quickstart", rounds=3, on_round=show)
tracked.config.update({"run": run.id, "method": run.config["method"]["name"], "delta": run.delta})
tracked.finish()
print(f"offline: accuracy {run.accuracy:.1%} at epsilon {run.epsilon.server:.2f}")
