"""The parts of a run's privacy: protection of uploads, its cost, and refused combinations."""
