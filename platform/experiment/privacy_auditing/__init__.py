"""The games behind `audit-privacy`: the canaries, the adversary's view of them, and the picture."""
