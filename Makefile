# A fresh machine with Python, a C++ compiler and make needs two commands: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find csrc -type f)
CUDA_SOURCES := $(wildcard csrc/cuda/*.cu)
CUDA_ARCHITECTURES := 75 80 86 89 90 100 120

.PHONY: demo test setup test-tools lint format bench cuda-check sanitize lock clean

demo: setup
	$(BIN)/splatstudio open assets/demo --train --steps 7000

test: setup test-tools
	$(BIN)/python -m pytest $(TEST_ARGUMENTS)

# The environment and the native extension; does nothing when neither changed.
setup: $(VENV)/built

$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "splatstudio needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "The venv module is missing; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/built: $(VENV)/installed pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The browser tests need a Chromium, the tests of the file formats npx; where that is possible they are installed.
test-tools:
	@missing=""; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	command -v npx >/dev/null || missing="$$missing nodejs npm"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; then exit 0; fi; \
	echo "Not found:$$missing. The tests that need them will skip; install these packages to run them."

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h %.cu %.cuh,$(NATIVE))
	$(BIN)/pyright --warnings

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(filter %.cpp %.h %.cu %.cuh,$(NATIVE))

bench: setup
	$(BIN)/python tests/bench/step.py --scene assets/demo --json

# Compiles every CUDA source for every supported architecture; needs nvcc, no GPU.
cuda-check:
	@command -v nvcc >/dev/null || { echo "nvcc was not found: install the CUDA toolkit to check the CUDA sources"; exit 1; }
	@for source in $(CUDA_SOURCES); do for arch in $(CUDA_ARCHITECTURES); do \
	  nvcc -std=c++17 -arch=compute_$$arch --Werror all-warnings -Icsrc -ptx $$source -o /dev/null || exit 1; \
	  echo "$$source compute_$$arch: ok"; \
	done; done

# The kernel tests under the address and undefined-behaviour sanitizers (gcc). Python itself leaks by design.
SANITIZERS = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libubsan.so)
sanitize: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S csrc -B build/sanitize -DSPLAT_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize
	LD_PRELOAD="$(SANITIZERS) $(shell gcc -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0 \
	  UBSAN_OPTIONS=halt_on_error=1 SPLATSTUDIO_EXTENSION=build/sanitize/_C.so \
	  $(BIN)/python -m pytest -q tests/test_ops.py tests/test_fuzz.py

lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --no-annotate --no-header \
	  pyproject.toml -c requirements.txt -o requirements.new
	(head -2 requirements.txt; grep -vE '^(nvidia-(cu|nccl|nv)|cuda-|triton)' requirements.new) > requirements.lock
	mv requirements.lock requirements.txt; rm requirements.new

clean:
	rm -rf $(VENV) build
