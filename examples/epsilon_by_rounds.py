"""How epsilon grows with the rounds, for the server and for whoever sees the final model only."""

import sotto

noise = {"noise_multiplier": 4.0, "size": 1000}
print("rounds   upload_noise   central_noise, observer of a secret draw of 20 in 1000")
for rounds in (1, 10, 100):
    uploads = sotto.Plan("upload_noise", rounds=rounds, noise_multiplier=4.0)
    drawn = sotto.Plan("central_noise", rounds=rounds, clients=20, population=1000, **noise)
    pair = uploads.epsilon(1e-5).server, drawn.epsilon(1e-5).observer
    print(f"{rounds:6d}   {pair[0]:12.2f}   {pair[1]:12.2f}")
