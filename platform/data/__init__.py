"""Data: images, partitions over clients, and the cache of encoded features."""
