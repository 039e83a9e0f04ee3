"""The data holder's own side: its settings, its own limits, its keys, and what it has spent."""
