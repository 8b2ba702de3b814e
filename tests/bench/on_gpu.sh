#!/usr/bin/env bash
# On a machine with a GPU: build for that GPU, test, measure; within 8 minutes, a short table last.
#   tests/bench/on_gpu.sh [PYTHON]              PYTHON has torch with CUDA; nvcc of the same CUDA version is on the PATH
#   tests/bench/on_gpu.sh --rehearse [PYTHON]   the same without a GPU, on the CPU's kernels: only that it runs
#
# The oracle's garden, and the scenes that are trained on, are looked for in shared/ and ../shared/; without them
# the rows of the garden are left out, and the demo scene is trained on.
#
# A machine without a network needs these carried along (RUN is its Python's version, as 3.12):
#   pip download --no-deps --only-binary=:all: --python-version RUN -d wheels opencv-python-headless av splines ...
#   (PYTHON says which are missing: `pip install --no-index --no-deps --target site wheels/*.whl`, PYTHONPATH=site)
# gsplat and fused-ssim to compare with: where `pip download` finds no wheel with kernels for that torch, make them
# on a machine with the same torch, CUDA and Python, a GPU is not needed:
#   TORCH_CUDA_ARCH_LIST=9.0 pip wheel --no-deps --no-build-isolation -w wheels git+https://github.com/nerfstudio-project/gsplat
#   TORCH_CUDA_ARCH_LIST=9.0 pip wheel --no-deps --no-build-isolation -w wheels git+https://github.com/rahul-goel/fused-ssim
# The gsplat wheel of the package index compiles its kernels when it is first used, for minutes: let it do so before.
set -euo pipefail
cd "$(dirname "$0")/../.."
END=470  # s for all of it
device=()
if [ "${1:-}" = --rehearse ]; then
  device=(--device cpu --tiny)
  shift
fi
PYTHON=${1:-python3}
export PATH="$PATH:/usr/local/cuda/bin" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
missing=$("$PYTHON" - <<'EOF'
import importlib.util
needed = ("torch", "numpy", "cv2", "PIL", "av", "imageio", "psutil", "pynvml", "safetensors", "scipy", "splines", "pytest")
print(*(name for name in needed if importlib.util.find_spec(name) is None))
EOF
)
[ -z "$missing" ] || { echo "$PYTHON cannot import: $missing"; exit 1; }
if [ ${#device[@]} -eq 0 ]; then
  echo "== build"
  BUILD=build/gpu
  mkdir -p build
  cmake -S csrc -B "$BUILD" -DCMAKE_CUDA_ARCHITECTURES=native -DPython3_EXECUTABLE="$(command -v "$PYTHON")"
  if ! timeout 200 cmake --build "$BUILD" -j "$(nproc)" >"$BUILD/log" 2>&1; then
    grep -n -m 40 -A 3 -E "error|undefined reference" "$BUILD/log" || tail -40 "$BUILD/log"
    echo "FAILED: the build, see $BUILD/log"
    exit 1
  fi
  export SPLATSTUDIO_EXTENSION="$PWD/$BUILD/_C.so"
fi
echo "== tests"
failed=""
# Without tests/conftest.py, which needs what the page's tests need.
tests=(-q -p no:cacheprovider --noconftest -m cuda tests/test_cuda*.py)
timeout 120 "$PYTHON" -m pytest "${tests[@]}" || failed="the tests of the GPU"
if [ ${#device[@]} -eq 0 ] && command -v compute-sanitizer >/dev/null; then
  # Each tensor has memory of its own there, so that what is written beside one is found.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 60 compute-sanitizer --error-exitcode 1 "$PYTHON" -m pytest "${tests[@]}" \
    -k "nothing_to_see or adam or with_room or (a_step_is and False-True)" | tail -3 || failed="$failed compute-sanitizer"
fi
echo "== peers"
peers=()
for peer in gsplat fused_ssim; do
  # The first use may compile, for minutes: what is not ready within one is left out.
  if timeout 60 "$PYTHON" tests/bench/gpu_peers.py "$peer" --device "${device[1]:-cuda}" 2>&1 | tail -1; then
    peers+=("$peer")
  fi
done
echo "== measurements"
scenes=()
for folder in shared/scenes ../shared/scenes; do
  for name in fox-colmap banana; do
    if [ -d "$folder/$name" ]; then scenes+=("$folder/$name"); fi
  done
done
if [ ${#scenes[@]} -eq 0 ] || [ ${#device[@]} -gt 0 ]; then scenes=(assets/demo); fi
"$PYTHON" tests/bench/gpu.py "${device[@]}" --peers "${peers[@]}" --seconds $((END - SECONDS)) --train "${scenes[@]}"
[ -z "$failed" ] || { echo "FAILED: $failed"; exit 1; }
