"""A simulation's additions to a federation: all clients at once, measurements, and the report."""
