"""Small honest sketches of methods that are still to come: they prove what the interface carries.

The registry finds them by their file names alone, in this package as in `methods`.
"""
