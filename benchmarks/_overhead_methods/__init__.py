"""A method that does not train, which shows what a round costs apart from training."""
