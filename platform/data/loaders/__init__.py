"""One module for each family of data sets: what its files look like, and how they are read.

A loader module has `INFOS`, what is known of its data sets without their files, and `load(name,
request)`, which reads what the files say and leaves the images where they are. It refuses a layout
that is not met with one sentence (`platform.errors.DataError`), and downloads nothing.
"""
