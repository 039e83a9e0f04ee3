"""The contract of methods: a pytest suite with the rules that every method must keep.

`pytest --pyargs platform.contract --plugins DIR` checks the methods of a folder. Without a folder,
the suite checks the methods of installed packages; in Sotto's own repository, Sotto's methods.
The suite needs pytest: install it with `.venv/bin/pip install -e '.[contract]'` in the checkout. No
other part of Sotto imports this package.

Each test is one rule, and its docstring states the rule; pytest prints the rule beside a failure
and at the end. A test uses a small random CLIP and random examples, so it takes seconds and needs
no data. `platform.contract.cases` selects the methods, and the cases that a quick run
(`-m "not slow"`) leaves out. `examples` makes the data; `driving` and `mechanisms` run real rounds.
"""
