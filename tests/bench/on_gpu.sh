#!/usr/bin/env bash
# On a machine with a GPU: build for that GPU, test, measure; within 8 minutes, a short table last.
#   tests/bench/on_gpu.sh [PYTHON]     PYTHON has torch with CUDA; nvcc of the same CUDA version is on the PATH
# Scenes for the training rows are taken from shared/scenes or ../shared/scenes, else the demo scene.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${1:-python3}
export PATH="$PATH:/usr/local/cuda/bin"
BUILD=build/gpu
echo "== build"
mkdir -p build
cmake -S csrc -B "$BUILD" -DCMAKE_CUDA_ARCHITECTURES=native -DPython3_EXECUTABLE="$(command -v "$PYTHON")"
cmake --build "$BUILD" -j "$(nproc)" | tail -2
export SPLATSTUDIO_EXTENSION="$PWD/$BUILD/_C.so" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
echo "== tests"
timeout 120 "$PYTHON" -m pytest -q -m cuda tests
if command -v compute-sanitizer >/dev/null; then
  timeout 60 compute-sanitizer --error-exitcode 1 "$PYTHON" -m pytest -q -m cuda tests/test_cuda.py \
    -k "nothing_to_see or adam or (a_step_is and False-True)" | tail -3
fi
echo "== measurements"
scenes=()
for folder in shared/scenes ../shared/scenes; do
  for name in fox-colmap banana; do [ -d "$folder/$name" ] && scenes+=("$folder/$name"); done
done
[ ${#scenes[@]} -gt 0 ] || scenes=(assets/demo)
timeout 300 "$PYTHON" tests/bench/gpu.py --train "${scenes[@]}"
