# Everything a person or CI does here is one target. `make` alone prints them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
ENGINE ?= local
PACKAGES := methods platform privacy sotto storage

# Where torch and torchvision for the processor alone are to be had: an index that `make install` is
# told of once, and remembers. Empty is the default, PyPI's with all that CUDA needs.
ifeq ($(origin TORCH_INDEX),undefined)
TORCH_INDEX := $(shell cat $(VENV)/torch-index 2> /dev/null)
endif
LOCK := $(if $(TORCH_INDEX),requirements-cpu.lock,requirements.lock)
TORCH := $(shell sed -nE 's/^((torch|torchvision)==[^ ;]+).*/\1/p' requirements.lock)

# What an install depends on. The stamp's name carries its digest (and this folder, to which an
# editable install points), so a checkout that only changes file times installs nothing anew.
INPUTS := $(LOCK) pyproject.toml setup.py platform/_startup_hook.py
STAMP := $(VENV)/installed-$(shell (echo "$(CURDIR) $(TORCH_INDEX)"; cat $(INPUTS)) \
	| sha256sum | cut -c 1-16)
# On a terminal pip shows sizes and progress; elsewhere, as in CI, each command's line is enough.
PIP_INSTALL := -m pip install --disable-pip-version-check $(if $(MAKE_TERMOUT),,--quiet)
SIZE := $(if $(TORCH_INDEX),2.5 GB,7 GB (2.5 GB without CUDA: see README.md))
# This package itself: built from what is here, with the setuptools that is locked.
EDITABLE := --no-deps --no-build-isolation --editable .
# Its former name, under which an environment of before may know it still. The folder goes first:
# pip would take what lies in the checkout for the install, and leave the environment as it is.
FORMER := sotto
FORGET := -m pip uninstall --disable-pip-version-check --quiet --quiet --yes $(FORMER)

# Engines relay messages in environments of their own, which share their versions with the other.
FLARE := .venv-nvflare
FLOWER := .venv-flower
FLARE_STAMP := $(FLARE)/installed-$(shell (echo "$(CURDIR)"; cat requirements-nvflare.lock \
	pyproject.toml setup.py platform/_startup_hook.py) | sha256sum | cut -c 1-16)
FLOWER_STAMP := $(FLOWER)/installed-$(shell (echo "$(CURDIR)"; cat requirements-flower.lock \
	pyproject.toml setup.py platform/_startup_hook.py) | sha256sum | cut -c 1-16)

# What the documents' site is built from.
SOURCE := build/docs-source

# What the deployment guide's test finds on a bare machine: Debian, and what the guide installs there.
MACHINE := build/machine
MACHINE_HAS := python3-venv,openssh-server,openssh-client,systemd-sysv,dbus,iproute2,procps,nginx-light,openssl

PYTEST := $(BIN)/python -m pytest
# One worker a core, each with one thread: the tests are small, threads would wait for each other.
PARALLEL := -n auto --dist worksteal
export OMP_NUM_THREADS ?= 1
# Every worker, and every interpreter that a test starts, would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install lock nvflare flower demo test test-slow bench-smallest test-engines test-python check docs sbom audit-dependencies methods tables split sharing federation tradeoff pretrain glyphs machine clean

help:  ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' \
		| while IFS='|' read -r name text; do printf '  make %-18s %s\n' "$$name" "$$text"; done

install: $(STAMP)  ## Create .venv with the locked versions; TORCH_INDEX=URL takes torch without CUDA from there

# Locks are whole, so pip shall not look for what packages ask for beside them: an old one then finds
# a version newer than the locked one, of which there is no hash, and gives up.
# Between torch with CUDA and torch without it pip would see no difference in the version.
$(STAMP):
	@echo "Installing into $(VENV), which takes about $(SIZE) and some minutes"
	test "$$(cat $(VENV)/torch-index 2> /dev/null)" = "$(TORCH_INDEX)" || rm -rf $(VENV)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/installed-*
	$(if $(TORCH_INDEX),echo "$(TORCH_INDEX)" > $(VENV)/torch-index)
	$(if $(TORCH_INDEX),$(BIN)/python $(PIP_INSTALL) --no-deps --index-url "$(TORCH_INDEX)" $(TORCH))
	$(BIN)/python $(PIP_INSTALL) --no-deps --require-hashes -r $(LOCK)
	rm -rf $(FORMER).egg-info
	$(BIN)/python $(FORGET)
	$(BIN)/python $(PIP_INSTALL) $(EDITABLE)
	@touch $@

nvflare: $(FLARE_STAMP)  ## Create .venv-nvflare, in which NVIDIA FLARE relays messages

$(FLARE_STAMP):
	test -x $(FLARE)/bin/python || $(PYTHON) -m venv $(FLARE)
	rm -f $(FLARE)/installed-*
	$(FLARE)/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements-nvflare.lock
	rm -rf $(FORMER).egg-info
	$(FLARE)/bin/python $(FORGET)
	$(FLARE)/bin/python $(PIP_INSTALL) $(EDITABLE)
	@touch $@

flower: $(FLOWER_STAMP)  ## Create .venv-flower, in which Flower relays messages

$(FLOWER_STAMP):
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	rm -f $(FLOWER)/installed-*
	$(FLOWER)/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements-flower.lock
	rm -rf $(FORMER).egg-info
	$(FLOWER)/bin/python $(FORGET)
	$(FLOWER)/bin/python $(PIP_INSTALL) $(EDITABLE)
	@touch $@

# Locks hold for each Python that pyproject.toml names, and for each system. What a lock has already
# stays as it is, unless UPGRADE names it.
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
	--python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate \
	$(addprefix --upgrade-package ,$(UPGRADE))
ENGINE_OF = $(shell sed -nE 's/^$(1) = \["(.*)"\]$$/\1/p' pyproject.toml)

lock: $(STAMP)  ## Write all locks anew from pyproject.toml, with hashes; UPGRADE="name ..." raises versions
	$(COMPILE) pyproject.toml --extra dev --extra serve --output-file requirements.lock
	awk '/^[^ ]/ {kept = $$0 !~ /^(torch|torchvision|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/} kept' \
		requirements.lock > requirements-cpu.lock
	$(COMPILE) pyproject.toml --constraints requirements.lock --output-file requirements-run.lock
	echo "$(call ENGINE_OF,flower)" | $(COMPILE) requirements-relay.in - \
		--constraints requirements.lock --output-file requirements-flower.lock
	echo "$(call ENGINE_OF,nvflare)" | $(COMPILE) requirements-relay.in - \
		--constraints requirements.lock --output-file requirements-nvflare.lock

demo: $(STAMP)  ## Run the quickstart: one private federated run
	$(BIN)/python -m platform.coordinator

test: $(STAMP)  ## Run the tests but slow ones and those of `make check`; COVERAGE=1 measures what they cover
	$(PYTEST) -m "not slow and not lint" $(PARALLEL) $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-slow: $(STAMP)  ## Run the slow tests, and all that a quick run does not draw; SHARD=K runs one shard of them
	$(PYTEST) -m slow $(PARALLEL) $(if $(SHARD),--shard $(SHARD))

bench-smallest: $(STAMP)  ## Run every benchmark at its smallest size; nothing is written into the repository
	$(PYTEST) benchmarks/test_smallest.py $(PARALLEL)

test-engines: $(STAMP) $(FLARE_STAMP) $(FLOWER_STAMP)  ## Run the tests over NVIDIA FLARE and Flower
	$(PYTEST) tests/engines

test-python: $(STAMP)  ## Try another Python: VENV=.venv-3.13 PYTHON=python3.13
	$(BIN)/python -m pip check
	$(BIN)/python -m platform.coordinator
	$(PYTEST) -q -m "not slow" $(PARALLEL) tests/repository/test_platform_name.py tests/storage

check: $(STAMP)  ## Lint, format, types, layering, house style and documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(PYTEST) -q tests/repository/test_layering.py tests/repository/test_rooms.py \
		tests/repository/test_house_style.py tests/repository/test_docs.py

docs: $(STAMP)  ## Build the documents' site into build/docs: pages, methods, keys, interface; warnings are errors
	$(BIN)/python -m docs.pages $(SOURCE)
	rm -rf build/docs
	$(BIN)/python -m sphinx --builder html --jobs 2 --quiet --fail-on-warning --keep-going \
		--conf-dir docs/site --doctree-dir build/docs-trees $(SOURCE) build/docs
	$(BIN)/python -m docs.pages.built build/docs

sbom: $(STAMP)  ## Write the lists of parts of each lock into build/sbom, in CycloneDX's form
	mkdir -p build/sbom
	for lock in requirements*.lock; do \
		$(BIN)/cyclonedx-py requirements --output-reproducible --of JSON \
			--no-validate --pyproject pyproject.toml --output-file build/sbom/$${lock%.lock}.cdx.json $$lock || exit 1; \
	done

audit-dependencies: $(STAMP)  ## Look locked versions up among known vulnerabilities, where a registry answers
	$(BIN)/python .ci/audit_dependencies.py requirements*.lock

methods: $(STAMP)  ## Compare methods on homonyms, and time a step of each (an hour or two)
	$(BIN)/python benchmarks/methods_on_homonyms.py
	$(BIN)/python benchmarks/method_speed.py

tables: $(STAMP)  ## Measure the tables of methods on homonyms anew, as sweeps (an hour)
	$(BIN)/python benchmarks/methods_on_homonyms.py --tables

split: $(STAMP)  ## Compare methods on small networks, and PM-MoE over nine of them (an hour)
	$(BIN)/python benchmarks/model_split.py

sharing: $(STAMP)  ## Measure one prompt under privacy beside a client alone, 100 and 1,000 clients (hours)
	$(BIN)/python benchmarks/alone.py sharing --no-coop --seeds 0 1 2 3 4 5 6 7 8 9 --kinds iid pathological senses --csv docs/results/sharing-alone.csv
	$(BIN)/python benchmarks/worth_of_sharing.py --stage tuning
	$(BIN)/python benchmarks/worth_of_sharing.py --stage final --large 0 1 2 3 4 5 6 7 8 9

federation: $(STAMP) $(if $(filter nvflare,$(ENGINE)),$(FLARE_STAMP)) $(if $(filter flower,$(ENGINE)),$(FLOWER_STAMP))  ## Hold a federation of four processes, one of them killed; ENGINE=local (nvflare, flower)
	$(BIN)/python benchmarks/federation.py --engine $(ENGINE)

tradeoff: $(STAMP)  ## Measure accuracy against epsilon under each mechanism (an hour or more)
	$(BIN)/python benchmarks/tradeoff.py

pretrain: $(STAMP)  ## Train the tiny CLIP of drawn outlines (CPU, minutes)
	OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.pretraining

# Unpack the packages of benchmarks/glyphs.txt with `apt-get download` and `dpkg-deb -x`.
glyphs: $(STAMP)  ## Train the tiny CLIP of printed characters (FONTS=DIR, a folder for each family; 40 minutes)
	OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.glyphs $(FONTS)

machine: $(MACHINE)/ready  ## Make the bare machine that docs/deploy.md is followed on (root, debootstrap)

# Without keys, which each machine makes at its first start, and without a terminal to log in at.
$(MACHINE)/ready:
	rm -rf $(MACHINE)
	mkdir -p $(MACHINE)
	debootstrap --variant=minbase --include=$(MACHINE_HAS) bookworm $(MACHINE)
	rm -f $(MACHINE)/etc/ssh/ssh_host_* $(MACHINE)/var/cache/apt/archives/*.deb
	ln -sf /dev/null $(MACHINE)/etc/systemd/system/console-getty.service
	ln -sf /dev/null $(MACHINE)/etc/systemd/system/nginx.service
	touch $@

clean:  ## Delete .venv, caches and build output; runs/ is kept
	rm -rf $(VENV) .venv-3.* $(FLARE) $(FLOWER) build dist *.egg-info .coverage .coverage.* htmlcov \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
