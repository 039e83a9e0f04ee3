"""The contract of methods: what every one must hold to, whoever wrote it, as a suite for pytest.

`pytest --pyargs platform.contract --methods DIR` checks the methods of a folder. Without a folder
it checks those that installed packages offer; in Sotto's own repository, all that are in it.
It needs pytest, which `.venv/bin/pip install -e '.[contract]'` in the checkout brings; nothing else
of Sotto imports this.

Each test is one rule, and its docstring says the rule in words: they are repeated beside a failure
and at the end. A rule is tried on a small random CLIP and on drawn examples, so that it takes
seconds and no data. `platform.contract.cases` says which methods are tried and which cases a quick
run (`-m "not slow"`) leaves out, `examples` says on what, `driving` and `mechanisms` make real
rounds.
"""
