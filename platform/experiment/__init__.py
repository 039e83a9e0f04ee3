"""What a simulation adds to a federation: all clients at once, measurements, and the report."""
