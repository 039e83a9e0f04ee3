"""What ten noised uploads cost, what that means, and the noise for another target."""

import sotto

plan = sotto.Plan("upload_noise", rounds=10, noise_multiplier=3.8)
print(f"epsilon for the server: {plan.epsilon(delta=1e-5).server:.2f}")
print(f"right guesses, of a hundred: {100 * plan.guesses(prior=0.5):.1f}")
for epsilon in (1, 2, 4, 8):
    noise = sotto.calibrate(plan, epsilon=epsilon).noise_multiplier
    print(f"epsilon {epsilon}: noise multiplier {noise:.2f}")
