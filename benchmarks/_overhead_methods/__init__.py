"""A method that does not train, so that what a round costs beside training is all there is."""
