"""A client: its store, its training, its answers; nothing of the coordinator's."""
