#!/usr/bin/env bash
# On a machine with a GPU: build for that GPU, test, measure; within 8 minutes, the table last.
#   tests/bench/on_gpu.sh [PYTHON]              PYTHON has torch with CUDA; without it one is looked for
#   tests/bench/on_gpu.sh --rehearse [PYTHON]   all of it without a GPU: the CUDA kernels are built, the tests run on a
#                                               pretended GPU, the measurements on the CPU; only that it works counts
#
# Needed are a torch (2.11 or newer) with CUDA, nvcc of the same major version, CMake, and the packages of Python's that
# are listed below as `needed`. What is missing there can be carried as wheels in site/, or unpacked in it:
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
#     --platform manylinux2014_x86_64 -d site msgspec
# Whatever fails or is missing is said, and the rest goes on. The logs lie in build/gpu_logs, everything that was found
# in on_gpu.json there; where $OUT names a folder, that file goes into it, too, and all logs as logs.txt.
#
# The oracle's garden, and the scenes that are trained on, are looked for in shared/ and ../shared/; without them
# the rows of the garden are left out, and the demo scene is trained on. Where the checkout alone is carried:
#   echo /shared/ >>.git/info/exclude; mkdir shared; cp -r ../shared/oracle shared/
#   mkdir shared/scenes; cp -r ../shared/scenes/{fox-colmap,banana} shared/scenes/    (34 MB)
#
# gsplat and fused-ssim to compare with are taken from the folder site/ or from what is installed. Where `pip download`
# finds no wheel with kernels for that torch, make them on a machine with the same torch, CUDA and Python; a GPU is not
# needed:
#   TORCH_CUDA_ARCH_LIST=9.0 pip wheel --no-deps --no-build-isolation -w wheels git+https://github.com/nerfstudio-project/gsplat
#   TORCH_CUDA_ARCH_LIST=9.0 pip wheel --no-deps --no-build-isolation -w wheels git+https://github.com/rahul-goel/fused-ssim
#   pip install --no-index --no-deps --target site wheels/*.whl
# The gsplat wheel of the package index compiles its kernels when it is first used, for minutes: here that begins at
# once, beside everything else, and what is not ready when the measurements begin is left out.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
END=465  # s for all of it
REHEARSAL=1500  # s, on two cores
LOGS=$PWD/build/gpu_logs
BUILD=$PWD/build/gpu
mkdir -p "$LOGS" "$BUILD"
rm -f "$LOGS"/*
rehearse="" device=cuda
if [ "${1:-}" = --rehearse ]; then
  rehearse=yes device=cpu END=$REHEARSAL
  shift
fi
ROWS=$LOGS/rows.txt
: >"$ROWS"
failed=()
declare -A running

say() { echo "== $* ($SECONDS s)"; }
fail() { failed+=("$*"); echo "FAILED: $*"; }
left() { echo $((END - SECONDS > 1 ? END - SECONDS : 1)); }
at_most() { echo $(($1 < $(left) ? $1 : $(left))); }
within() { timeout -k 5 "$(at_most "$1")" "${@:2}"; }  # SECONDS COMMAND...
apart() {  # NAME SECONDS COMMAND...: beside the others, what it prints goes to a log
  timeout -k 5 "$(at_most "$2")" "${@:3}" >"$LOGS/$1.log" 2>&1 </dev/null &
  running[$1]=$!
}
waited() {  # NAME [COMMAND...]: its status; where it is not 0, what COMMAND finds in the log
  local status=0
  wait "${running[$1]}" || status=$?
  unset "running[$1]"
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then echo "$1 took too long"; fi
  [ "$status" = 0 ] || [ $# -eq 1 ] || "${@:2}" "$LOGS/$1.log" | head -40
  return "$status"
}
# The last word, whatever has become of the rest.
summary() {
  trap - EXIT
  if [ -n "${PYTHON:-}" ]; then
    within 30 "$PYTHON" tests/bench/gpu_report.py "$LOGS" --machine "$machine" --seconds "$SECONDS" \
      --failed "${failed[@]}" >"$LOGS/report.log" 2>&1 || fail "writing on_gpu.json: $(tail -1 "$LOGS/report.log")"
  fi
  for name in "${!running[@]}"; do kill "${running[$name]}" 2>/dev/null; done
  if [ -n "${OUT:-}" ]; then
    for log in "$LOGS"/*; do
      echo "==== $(basename "$log")"
      tail -c 500000 "$log"
    done >"$OUT/logs.txt"
    cp "$LOGS/on_gpu.json" "$OUT" 2>/dev/null
  fi
  if [ -s "$LOGS/longest.log" ]; then
    echo
    cat "$LOGS/longest.log"
  fi
  echo
  echo "$machine; $SECONDS s"
  for what in "${failed[@]}"; do echo "FAILED: $what"; done
  printf '%-56s %10s %4s %10s %8s  aim\n' "" ours "" peer ratio
  cat "$ROWS"
  [ ${#failed[@]} -eq 0 ] || exit 1
}
machine="no GPU was found"
trap summary EXIT
trap 'exit 1' INT TERM

say "machine"
for folder in /usr/local/cuda/bin /usr/local/cuda-*/bin /opt/cuda*/bin; do
  if [ -x "$folder/nvcc" ]; then PATH=$PATH:$folder; fi
done
machine=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1)
machine=${machine:-"nvidia-smi found no GPU"}
echo "$machine; $(nproc) cores; $(nvcc --version 2>/dev/null | grep -o 'release.*' || echo 'no nvcc on the PATH')"
# The first Python whose torch can use a GPU, else one whose torch could, else one that has a torch.
torch_of='
import torch
print(torch.__version__, torch.version.cuda or "without-CUDA", "sees-a-GPU" if torch.cuda.is_available() else "sees-no-GPU")
'
PYTHON="" best=0
export PYTHONPATH="$PWD:$PWD/tests/support:$PWD/tests/kernels:$PWD/tests/cuda_on_cpu:$PWD/site${PYTHONPATH:+:$PYTHONPATH}"
for candidate in "${1:-}" python3 python /opt/*/bin/python3 /opt/*/.venv/bin/python3 /opt/*/venv/bin/python3 \
  "$HOME"/*conda*/bin/python3 /usr/bin/python3; do
  file=$(command -v "$candidate" 2>/dev/null) || continue
  found=$(within 100 "$file" -c "$torch_of" 2>&1) || found="no torch: $(tail -1 <<<"$found")"
  echo "$file: $(tail -1 <<<"$found")"
  worth=0
  case $found in *sees-a-GPU) worth=3 ;; *without-CUDA*) worth=1 ;; *sees-no-GPU) worth=2 ;; esac
  if [ "$worth" -gt "$best" ]; then best=$worth PYTHON=$file; fi
  # A Python that was named is the one that is meant.
  if [ "$best" = 3 ] || { [ -n "${1:-}" ] && [ "$best" -gt 0 ]; }; then break; fi
done
[ -n "$PYTHON" ] || fail "no Python with torch was found"
[ -n "$rehearse" ] || [ "$best" = 3 ] || fail "no torch that sees a GPU was found"
echo "taken: ${PYTHON:-none}"
# Wheels are archives: unpacked, what is in them can be imported.
for wheel in site/*.whl; do
  [ -e "$wheel" ] && [ -n "$PYTHON" ] || continue
  if within 30 "$PYTHON" -m zipfile -e "$wheel" "$BUILD/wheels"; then echo "unpacked: $wheel"; else fail "unpacking $wheel"; fi
done
PYTHONPATH=$BUILD/wheels:$PYTHONPATH
[ -z "$PYTHON" ] || "$PYTHON" - <<'END_OF_PYTHON'
import importlib.util

everything, comparing = "nothing can be tested or measured", "no figures beside ours"
needed = {name: everything for name in "numpy cv2 PIL psutil scipy safetensors".split()}
needed |= {"pynvml": "memory on the GPU is not planned", "pytest": "no tests", "hypothesis": "some tests fail"}
needed |= {"msgspec": "the viewer is not measured, tests of checkpoints fail", "gsplat": comparing, "fused_ssim": comparing}
for name, lost in needed.items():
    if importlib.util.find_spec(name) is None:
        print(f"missing: {name} ({lost})")
END_OF_PYTHON

peers=()
if [ -n "$PYTHON" ]; then
  for peer in gsplat fused_ssim; do
    if "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$peer') is None)"; then
      MAX_JOBS=6 apart "$peer" 200 "$PYTHON" tests/bench/gpu_peers.py "$peer" --device "$device"
    fi
  done
fi

if [ -n "$PYTHON" ]; then
  say "build"
  cmake=(cmake)
  command -v cmake >/dev/null || cmake=("$PYTHON" -m cmake)
  generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  # As nvidia-smi says it, 9.0 for 90; CMake finds it out by itself where that does not say it.
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')
  [ -z "$rehearse" ] || architecture=90
  # A compiler that we have not seen yet may warn of more: here that shall end nothing.
  within 60 "${cmake[@]}" -S csrc -B "$BUILD" "${generator[@]}" -DCMAKE_CUDA_ARCHITECTURES="${architecture:-native}" \
    -DPython3_EXECUTABLE="$PYTHON" -DSPLAT_WERROR=OFF >"$LOGS/build.log" 2>&1 &&
    within $((${#rehearse} > 0 ? 600 : 200)) "${cmake[@]}" --build "$BUILD" -j "$(nproc)" >>"$LOGS/build.log" 2>&1
  status=$?
  grep -n -E "CMake Warning|CUDA kernels: |CUDA compiler ident" -A 1 "$LOGS/build.log"
  if [ "$status" != 0 ]; then
    grep -n -m 40 -A 3 -iE "error|undefined reference" "$LOGS/build.log" || tail -40 "$LOGS/build.log"
    fail "the build, status $status"
  fi
  if [ -e "$BUILD/_C.so" ]; then export SPLATSTUDIO_EXTENSION=$BUILD/_C.so; fi
  if [ -n "$rehearse" ]; then
    within 60 "$PYTHON" -c "from splatstudio.kernels import ops
print('CPU kernels:', ops.native_version()); print('CUDA kernels:', ops.without_cuda_kernels())" || fail "loading the kernels"
  elif ! within 60 "$PYTHON" -c "from splatstudio.kernels import ops
print('CUDA kernels:', ops.without_cuda_kernels() or ops.cuda_architectures()); assert ops.has_cuda_kernels()"; then
    fail "there are no CUDA kernels, or torch sees no GPU: nothing can be tested or measured"
    exit 1
  fi
fi
[ -n "$PYTHON" ] || exit 1

say "tests"
# Without tests/conftest.py, which needs what the page's tests need. A file each: what is wrong in one may leave the
# GPU unusable to the rest of its process.
pytest=("$PYTHON" -m pytest -q -p no:cacheprovider --noconftest -p blob_scenes -m cuda --tb=short --maxfail=5)
long=120
if [ -n "$rehearse" ]; then
  long=600
  # Graphs and bounds on memory need a real GPU, and the emulation draws the garden for minutes.
  pytest+=(-p pretend_gpu -k "not graph and not garden and not without_memory")
  "${cmake[@]}" -S tests/cuda_on_cpu -B "$BUILD/emulation" -DPython3_EXECUTABLE="$PYTHON" >"$LOGS/emulation.log" 2>&1 &&
    "${cmake[@]}" --build "$BUILD/emulation" -j "$(nproc)" --target emulated >>"$LOGS/emulation.log" 2>&1 ||
    fail "building the emulation"
  kernels=$SPLATSTUDIO_EXTENSION
  export SPLATSTUDIO_EXTENSION=$BUILD/emulation/emulated.so
fi
names=()
for file in tests/kernels/test_cuda*.py; do
  name=$(basename "$file" .py)
  case $name${rehearse:+ rehearsed} in
    test_cuda_sources*) ;;  # of the sources alone
    "test_cuda_capture rehearsed") ;;  # of graphs alone
    *) names+=("$name") ;;
  esac
done
# They run at once, and each would take all cores for what it compares with.
export OMP_NUM_THREADS=2
# Two at a time where there are two cores.
if [ -z "$rehearse" ]; then for name in "${names[@]}"; do apart "$name" "$long" "${pytest[@]}" "tests/kernels/$name.py"; done; fi
sanitizers=()
if [ -z "$rehearse" ] && command -v compute-sanitizer >/dev/null; then
  small=(tests/kernels/test_cuda.py tests/kernels/test_cuda_steps.py tests/kernels/test_cuda_training.py -k
    "nothing_to_see or adam or with_room or fused or counts or (a_step_is and False-True)")
  # Each tensor has memory of its own there, so that what is written beside one is found.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 apart memcheck 130 compute-sanitizer --target-processes all \
    --report-api-errors no --print-limit 20 --error-exitcode 1 "${pytest[@]}" "${small[@]}"
  apart racecheck 130 compute-sanitizer --tool racecheck --target-processes all --report-api-errors no \
    --print-limit 20 --error-exitcode 1 "${pytest[@]}" tests/kernels/test_cuda.py -k "a_step_is and False-True"
  sanitizers=(memcheck racecheck)
else
  echo "no compute-sanitizer"
fi
for name in "${names[@]}"; do
  [ -z "$rehearse" ] || OMP_NUM_THREADS=1 apart "$name" "$long" "${pytest[@]}" "tests/kernels/$name.py"
  waited "$name" grep -nE "^(FAILED|ERROR|E  )" || fail "$name"
  echo "$name: $(tail -1 "$LOGS/$name.log")"
done
# What a sanitizer finds is a failure; that it cannot run here, or is not done in time, is only said.
for name in "${sanitizers[@]}"; do
  waited "$name"
  if grep -qE "(ERROR|RACECHECK) SUMMARY: [1-9]" "$LOGS/$name.log"; then
    grep -nE "^=========|^(FAILED|E  )" "$LOGS/$name.log" | head -40
    fail "compute-sanitizer, $name, found something"
  elif grep -qE "(ERROR|RACECHECK) SUMMARY: 0" "$LOGS/$name.log"; then
    echo "$name found nothing: $(grep -E "passed|failed" "$LOGS/$name.log" | tail -1)"
  else
    echo "$name did not end, or cannot run here: $(grep -m 1 -E "^=========|not supported|rror" "$LOGS/$name.log")"
  fi
done
if [ -n "$rehearse" ]; then export SPLATSTUDIO_EXTENSION=$kernels; fi

unset OMP_NUM_THREADS

say "peers"
for peer in gsplat fused_ssim; do
  [ -n "${running[$peer]:-}" ] || continue
  if waited "$peer" tail -3; then peers+=("$peer"); fi
  tail -1 "$LOGS/$peer.log"
done

say "measurements"
scenes=()
for folder in shared/scenes ../shared/scenes; do
  for name in fox-colmap banana; do
    if [ ${#scenes[@]} -lt 2 ] && [ -d "$folder/$name" ]; then scenes+=("$folder/$name"); fi
  done
done
if [ ${#scenes[@]} -eq 0 ] || [ -n "$rehearse" ]; then scenes=(assets/demo); fi
tiny=()
[ -z "$rehearse" ] || tiny=(--tiny)
part() {  # NAME SECONDS: one part of the measurements, in a process of its own
  within $(($2 + 20)) "$PYTHON" tests/bench/gpu.py --device "$device" "${tiny[@]}" --peers "${peers[@]}" --rows "$ROWS" \
    --seconds "$2" --part "$1" --train "${scenes[@]}" >"$LOGS/part_$1.log" 2>&1 && return
  grep -vFf "$ROWS" "$LOGS/part_$1.log" | tail -15
  fail "measuring $1"
}
# Begun with what nobody else has measured; what comes last is left out where time is short.
all=$(left)
part kernels 15
part pictures $((all / 5))
part steps 60
part presets 40
millions=3
[ -z "$rehearse" ] || millions=0.001
within 80 "$PYTHON" tests/bench/gpu_kernels.py --device "$device" --millions "$millions" --json "$LOGS/longest.json" \
  >"$LOGS/longest.log" 2>"$LOGS/longest_errors.log" || { tail -3 "$LOGS/longest_errors.log"; fail "the table of kernels"; }
part viewer 25
part trainings $((all / 4))
part loads 25
part larger $(($(left) - 20))
