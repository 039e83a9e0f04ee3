"""A run that is interrupted after its first round goes on, and pays for no round twice."""

import sotto


def stop(found):
    print(f"round {found.number}: epsilon {found.epsilon.server:.2f}, and now Ctrl-C")
    raise KeyboardInterrupt


try:
    sotto.run("quickstart", rounds=3, on_round=stop)
except KeyboardInterrupt:
    run = sotto.resume("latest")
    print(f"after round {len(run.rounds)}: epsilon {run.epsilon.server:.2f}")
