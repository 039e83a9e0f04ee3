"""pFedMoAP: clients exchange noised prompts through an anonymous pool."""

import sotto

run = sotto.run("expert-pool", rounds=2)
print(run)
print(run.summary["final"]["epsilon"])
