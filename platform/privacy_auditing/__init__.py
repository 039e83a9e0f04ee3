"""The games behind `audit-privacy`: what is sent, what an adversary sees of it, and the picture."""
