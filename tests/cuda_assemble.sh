#!/bin/sh
# Compiles one CUDA source for one architecture as the build does, for `make cuda-check`: SOURCE ARCHITECTURE.
# Those that $ASSEMBLED names, "75 90 120", are assembled too: PTX alone knows neither registers nor shared memory.
# Fails where anything is warned of, and where a kernel spills registers.
case $(basename "$1") in  # see csrc/CMakeLists.txt
  raster_fwd.cu | raster_bwd.cu | tiles.cu | modes.cu) fmad=--fmad=false ;;
  *) fmad=--fmad=true ;;
esac
compile() { nvcc -std=c++17 "$fmad" --Werror all-warnings -Icsrc "$@"; }
case " $ASSEMBLED " in
  *" $2 "*) ;;
  *)
    compile "-arch=compute_$2" -ptx "$1" -o /dev/null || exit 1
    echo "$1 compute_$2: ok"
    exit
    ;;
esac
said=$(compile "-arch=sm_$2" -cubin -Xptxas -v "$1" -o /dev/null 2>&1) || { echo "$said"; exit 1; }
# The line before names the kernel.
if spilled=$(echo "$said" | grep -B 1 -E '[1-9][0-9]* bytes spill'); then
  echo "$1 sm_$2: a kernel's registers do not suffice, and what it keeps in memory instead is slow:"
  echo "$spilled"
  exit 1
fi
registers=$(echo "$said" | grep -o 'Used [0-9]* registers' | sort -k 2 -n | tail -n 1)
echo "$1 sm_$2: ok, assembled ($registers at most)"
