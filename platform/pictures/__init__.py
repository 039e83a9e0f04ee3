"""Pictures as values: the same values always give the same bytes."""
