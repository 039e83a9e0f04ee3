"""A run of an earlier program, read from its database."""

import sotto

made = sotto.run("quickstart", rounds=1)
run = sotto.Run("latest", made.storage)
assert run.id == made.id
print(run.config["privacy"]["mechanism"], run.unit, run.epsilon)
for warning in run.warnings:
    print("-", warning)
