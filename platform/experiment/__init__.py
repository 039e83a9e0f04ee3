"""The only place that joins methods, privacy, storage and the run, and what a simulation adds.

It builds, and if necessary refuses, everything before it writes anything.
"""
