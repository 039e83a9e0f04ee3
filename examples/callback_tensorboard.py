"""Each round in TensorBoard; `pip install tensorboard`, then look: `tensorboard --logdir logs`."""

from torch.utils.tensorboard import SummaryWriter

import sotto

writer = SummaryWriter("logs")


def show(found):
    if found.accuracy is not None:
        writer.add_scalar("accuracy", found.accuracy, found.number)
    for party, epsilon in found.epsilon._asdict().items():
        writer.add_scalar(f"epsilon/{party}", epsilon, found.number)


run = sotto.run("quickstart", rounds=3, on_round=show)
writer.add_text("configuration", str(run.config))
writer.close()
print(f"logs: accuracy {run.accuracy:.1%} at epsilon {run.epsilon.server:.2f}")
