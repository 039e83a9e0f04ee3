"""The data holder's side of a federation: one long-lived process that owns data, keys and store.

The process answers or refuses messages, and never executes their contents. Its own limits decide
the runs in which it takes part.
"""
