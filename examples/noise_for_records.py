"""DP-SGD protects single images of a client, and not the whole client."""

import sotto

plan = sotto.Plan("dp_sgd", rounds=2, noise_multiplier=1.2, sampling_probability=0.5, steps=2)
run = sotto.run(
    "promptfl",
    rounds=2,
    privacy={
        "mechanism": "dp_sgd",
        "relation": "add_or_remove_one",
        "clipping_norm": None,
        "target_epsilon": None,
        "noise_multiplier": 1.2,
        "per_sample_clipping_norm": 1.0,
        "sampling_probability": 0.5,
    },
    secure_aggregation={"value_bound": 1.0},
)
print("unit:", run.unit, "epsilon:", run.epsilon.server, "planned:", plan.epsilon(1e-5).server)
