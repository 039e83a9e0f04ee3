"""The data holder's side of a federation: one long-lived process that owns data, keys and store.

What arrives is answered or refused, and never executed. Which runs it takes part in follows from
its own limits.
"""
