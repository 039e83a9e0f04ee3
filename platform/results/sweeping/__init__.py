"""Sweeps: a grid of ordinary runs, with tables and pictures of its results as in papers."""
