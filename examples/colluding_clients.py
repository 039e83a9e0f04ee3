"""Peers know their own share of the noise, so without room for colluders nothing holds for them."""

import sotto

for corrupt in (0, 1, 5, 10):
    plan = sotto.Plan(
        "distributed_noise", noise_multiplier=4.0, clients=30, size=512, corrupt=corrupt
    )
    found = plan.epsilon(delta=1e-5)
    print(f"{corrupt:2d} of 30: server {found.server:.2f}, peers {found.peers:.2f}")
