"""Sweeps: a grid of ordinary runs, and the tables and pictures that papers make of one."""
