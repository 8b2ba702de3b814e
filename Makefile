# A fresh machine with Python, a C++ compiler and make needs two commands: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
# The tests start a hundred programs: where bytecode is not kept, each compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
NATIVE := $(shell find csrc -type f -not -name '*.pyc')
EMULATION := $(wildcard tests/cuda_on_cpu/*.h tests/cuda_on_cpu/*.cpp tests/cuda_on_cpu/cub/* tests/made_up_device/*.cpp)

.PHONY: demo test setup test-tools lint format docs bench quality cuda-check gpu-build-check cuda-on-cpu sanitize fuzz wheel release-check portable-check experimental-wheels arm64-check lock clean

demo: setup
	$(BIN)/splatstudio open assets/demo --train --steps 7000

# Tests wait for processes and browsers half of their time: four at a time keep two cores busy.
test: setup test-tools
	$(BIN)/python -m pytest $(FOUR_AT_A_TIME) --no-loadscope-reorder --ignore=$(RULES_OF_WINDOWS) $(TEST_ARGUMENTS)
RULES_OF_WINDOWS := tests/portable/test_as_windows.py
TWO_AT_A_TIME := --numprocesses 2 --dist loadfile
FOUR_AT_A_TIME := --numprocesses 4 --dist loadfile

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation

# The environment and the native extension, and a line on what will train; does nothing when neither changed.
setup: $(VENV)/built

$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "splatstudio needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "The venv module is missing; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

# An editable installation knows the modules by name: it is made again where one came, went or became a folder.
MODULES := $(VENV)/modules-$(shell find splatstudio -name '*.py' | sort | cksum | cut -d ' ' -f 1)
$(MODULES): $(VENV)/installed
	@rm -f $(VENV)/modules-*; touch $@

# A CUDA compiler that comes or goes changes what is built; csrc/cuda/find_nvcc.cmake looks in the same places.
NVCC := $(wildcard $(CUDACXX) $(CUDA_HOME)/bin/nvcc $(CUDA_PATH)/bin/nvcc /usr/local/cuda*/bin/nvcc /opt/cuda*/bin/nvcc) \
  $(shell command -v nvcc)
COMPILERS := $(VENV)/compilers-$(shell echo '$(NVCC)' | cksum | cut -d ' ' -f 1)
$(COMPILERS): $(VENV)/installed
	@rm -f $(VENV)/compilers-*; touch $@

# What an earlier build could not do is tried anew: each says all of it.
$(VENV)/built: $(VENV)/installed $(MODULES) $(COMPILERS) pyproject.toml $(NATIVE)
	@$(BIN)/python csrc/cuda/install_toolkit.py
	@echo "Building the native kernels ..."
	@$(INSTALL) --config-settings=cmake.define.SPLAT_CUDA=ON -e . || { \
	  echo "The native kernels could not be built; trying without those for GPUs, so that everything runs on the CPU."; \
	  $(INSTALL) --config-settings=cmake.define.SPLAT_CUDA=OFF \
	    --config-settings=cmake.define.SPLAT_WITHOUT_CUDA="the CUDA kernels could not be compiled" -e . ; }
	@$(BIN)/python -c "from splatstudio.training.device_options import AS_FOUND as found; \
	  print('Trains on', found.use_of(found.chosen()).for_terminal())"
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
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h %.cu %.cuh,$(NATIVE) $(EMULATION))
	$(BIN)/pyright --warnings
	$(BIN)/hadolint docs/Dockerfile
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(filter %.cpp %.h %.cu %.cuh,$(NATIVE) $(EMULATION))

# The guide as a site, in build/docs.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/mkdocs.yml

bench: setup
	$(BIN)/python tests/bench/step.py --scene assets/demo --json

# The standing table of picture quality, of the scenes in ../shared/scenes and the bundled one, and what fell since the
# last one that was kept: an hour on two cores. QUALITY has further words, as QUALITY="--presets fast --seeds 42".
quality: setup
	$(BIN)/python tests/bench/quality_table.py $(QUALITY)

# Assembles every CUDA source for every supported architecture, holds what was won, and checks their binding; needs
# nvcc, no GPU.
cuda-check: setup
	$(BIN)/python tests/cuda_build/assemble.py
	@for source in csrc/ops_cuda*.cpp; do g++ -std=c++17 -fsyntax-only -fvisibility=hidden -DSPLAT_CUDA -DSPLAT_CUDA_KEY=CUDA \
	  -DSPLAT_CUDA_ARCHITECTURES='"90"' -DTORCH_TARGET_VERSION=0x020b000000000000 \
	  -Icsrc -isystem "$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/include" \
	  $$source && echo "$$source: ok" || exit 1; done

# A wheel with the CUDA kernels, built against a torch with CUDA and used without a GPU; fetches 5 GB once.
gpu-build-check: setup
	$(BIN)/python tests/cuda_build/check.py

# What is released: a wheel for every Python and torch of x86-64 Linux, and the source, in build/dist.
wheel: setup
	$(BIN)/python csrc/manylinux/build_wheel.py

# Installs both as users do, without a compiler and outside of the repository, and trains the demo; with
# PYTHONS="3.10 3.13" in those, each with the torch that pip chooses (5 GB).
release-check: wheel
	$(BIN)/python tests/release/check.py $(PYTHONS)

# The CPU kernels compiled by clang, for Linux on arm64, for Windows and for macOS: some minutes the first time, when zig
# builds those systems' libraries. With TORCH="WHEEL ..." of those systems it checks that these have all functions that
# the kernels use.
ZIG := ziglang==0.17.1
portable-check: setup test-tools
	@$(BIN)/python -c 'import ziglang' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(ZIG)
	$(BIN)/python csrc/portable.py $(if $(TORCH),--torch $(TORCH))
	$(BIN)/python -m pytest -q $(RULES_OF_WINDOWS)

# Wheels for Windows and for macOS on arm64, in build/experimental: compiled, not run; and that of arm64-check.
experimental-wheels: setup
	@$(BIN)/python -c 'import ziglang, wheel' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(ZIG) wheel
	$(BIN)/python csrc/portable.py --wheels $(if $(TORCH),--torch $(TORCH))

# splatstudio on an emulated arm64 Linux, in its own wheel: doctor, the kernels' tests, a short training, an export. Needs
# qemu-user-static and Debian's cross compiler, fetches 0.5 GB once; PART=tests, three minutes, is one part.
arm64-check: setup
	@$(BIN)/python -c 'import wheel' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check wheel
	$(BIN)/python csrc/emulated_arm64.py $(if $(PART),--only $(PART))

# The kernel tests under the address and undefined-behavior sanitizers (gcc). Python itself leaks by design.
SANITIZERS = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libubsan.so)
sanitize: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S csrc -B build/sanitize -DSPLAT_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize -j 2
	LD_PRELOAD="$(SANITIZERS) $(shell gcc -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0 \
	  UBSAN_OPTIONS=halt_on_error=1 SPLATSTUDIO_EXTENSION=build/sanitize/_C.so \
	  $(BIN)/python -m pytest -q $(TWO_AT_A_TIME) -k "not garden" tests/kernels/test_ops.py tests/kernels/test_fuzz.py \
	  tests/kernels/test_oracle.py tests/optimization/test_view_gradients.py tests/kernels/test_modes.py tests/optimization/test_regularization.py \
	  tests/kernels/test_mcmc_kernels.py tests/kernels/test_depth_error.py tests/kernels/test_area_means.py \
	  tests/kernels/test_bilateral_grid.py

# Every reader of files and messages against damaged ones, for ten minutes, others each time unless FUZZ_SEED says which;
# what a defect needs is left in build/fuzz.
FUZZ_MINUTES := 10
fuzz: setup
	PYTHONPATH=tests:tests/support $(BIN)/python -m fuzz.run --minutes $(FUZZ_MINUTES) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) || \
	  { tail -n 30 build/fuzz/native.txt; cat build/fuzz/last.txt; exit 1; }

# The CUDA kernels and their binding run on the CPU: the operators' tests, pretend devices, a search for races, random
# orders of threads; then small images under the sanitizers.
ON_CPU := build/cuda_on_cpu
cuda-on-cpu: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S tests/cuda_on_cpu -B $(ON_CPU)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(ON_CPU) -j 2
	SPLATSTUDIO_EXTENSION=$(CURDIR)/$(ON_CPU)/emulated.so $(BIN)/python -m pytest -q $(TWO_AT_A_TIME) -m "not cpu_kernels" $(OPERATOR_TESTS)
	SPLATSTUDIO_EXTENSION=$(CURDIR)/$(ON_CPU)/races.so $(BIN)/python -m pytest -q $(TWO_AT_A_TIME) -m "not cpu_kernels" -k "$(QUICK)" $(RACE_TESTS)
	SPLATSTUDIO_EMULATOR_SEED=1 SPLATSTUDIO_EXTENSION=$(CURDIR)/$(ON_CPU)/emulated.so \
	  $(BIN)/python -m pytest -q -k "tiny or ssim" tests/kernels/test_oracle.py
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S tests/cuda_on_cpu -B $(ON_CPU)_sanitized -DSPLAT_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(ON_CPU)_sanitized -j 2
	LD_PRELOAD="$(SANITIZERS) $(shell gcc -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0:handle_segv=0 \
	  UBSAN_OPTIONS=halt_on_error=1 SPLATSTUDIO_EXTENSION=$(CURDIR)/$(ON_CPU)_sanitized/emulated.so \
	  $(BIN)/python -m pytest -q $(TWO_AT_A_TIME) -m "not cpu_kernels" -k "not garden" tests/cuda_on_cpu tests/kernels/test_oracle.py tests/kernels/test_fuzz.py
# Each access is looked at: lists that are longer than they need be for that take minutes.
QUICK := not forked_process and not all_chunks and not large_picture and not without_gradients and not checkpoints
RACE_TESTS := tests/cuda_on_cpu/test_races.py tests/cuda_on_cpu/test_late_rows.py tests/cuda_on_cpu/test_warp_rectangles.py tests/cuda_on_cpu/test_long_lists.py tests/cuda_on_cpu/test_fused.py tests/cuda_on_cpu/test_views_step.py tests/cuda_on_cpu/test_pose.py tests/kernels/test_ops.py \
  tests/cuda_on_cpu/test_step_kernels.py tests/kernels/test_depth_error.py \
  tests/kernels/test_modes.py tests/kernels/test_mcmc_kernels.py
OPERATOR_TESTS := tests/cuda_on_cpu tests/made_up_device tests/kernels/test_oracle.py tests/kernels/test_ops.py tests/kernels/test_fuzz.py tests/kernels/test_gradients.py \
  tests/optimization/test_view_gradients.py tests/optimization/test_step_views.py tests/optimization/test_regularization.py tests/kernels/test_modes.py tests/kernels/test_mcmc_kernels.py tests/kernels/test_pose_kernels.py tests/kernels/test_depth_ties.py \
  tests/kernels/test_depth_error.py tests/kernels/test_bilateral_grid.py

lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --no-annotate --no-header \
	  pyproject.toml -c requirements.txt -o requirements.new
	(head -2 requirements.txt; grep -vE '^(nvidia-(cu|nccl|nv)|cuda-|triton)' requirements.new) > requirements.lock
	mv requirements.lock requirements.txt; rm requirements.new

clean:
	rm -rf $(VENV) build
