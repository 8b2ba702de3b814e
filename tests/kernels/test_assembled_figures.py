"""The figures of the CUDA kernels that `make cuda-check` holds: how they are read, and what is worse."""

from __future__ import annotations

import copy
import json

import pytest
from assemble import FIGURES, MULTIPROCESSORS, code_of, risen, room

KEPT = json.loads(FIGURES.read_text())
BACKWARD = "raster_bwd_kernel<false, false>"

PTX = """
	ld.param.u64 	%rd1, [kernel_param_0];
	setp.lt.s32 	%p1, %r1, 1;
	@%p1 bra 	$L__BB0_4;
$L__BB0_1:
	add.s32 	%r2, %r2, 1;
$L__BB0_2:
	fma.rn.f32 	%f1, %f2, %f3, %f4;
	div.rn.f32 	%f5, %f1, %f2;
	@%p2 bra 	$L__BB0_2;
	cvt.f64.f32 	%fd1, %f1;
	st.local.f32 	[%rd2], %f1;
	@%p3 bra 	$L__BB0_1;
$L__BB0_4:
	ret;
"""


def test_the_instructions_of_a_kernel_are_counted() -> None:
    code = code_of(PTX)
    assert code.instructions == 11 and code.loops == (3,)
    assert (code.fp64, code.divisions, code.local_memory) == (1, 1, 1)


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks"),
    [
        (90, 256, 32, 0, 8),  # 2048 threads
        (90, 256, 33, 0, 6),  # registers are given out in eights
        (86, 128, 56, 12288, 7),  # shared memory, of which each block takes a kilobyte more
        (75, 128, 56, 12288, 5),
        (90, 32, 16, 0, 32),  # the most blocks
    ],
)
def test_the_scarcest_resource_says_how_many_blocks_find_room(
    architecture: int, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert room(architecture, threads, registers, shared) == blocks


def test_what_became_worse_is_named_and_what_became_better_is_not() -> None:
    assert risen(KEPT, KEPT) == []
    now = copy.deepcopy(KEPT)
    now["kernels"][BACKWARD]["code"]["fp64"] += 1
    now["kernels"][BACKWARD]["fits"]["86"]["blocks"] -= 1
    now["kernels"][BACKWARD]["fits"]["90"]["registers"] -= 1
    now["kernels"]["adam_kernel"]["code"]["instructions"] -= 1
    fp64, fit = risen(KEPT, now)
    assert fp64.startswith(f"{BACKWARD}: fp64 ") and fit.startswith(f"{BACKWARD} on sm_86: blocks ")
    del now["kernels"]["adam_kernel"]
    assert "adam_kernel is gone" in risen(KEPT, now)


def test_the_loops_that_draw_are_without_what_is_slow() -> None:
    for name, figures in KEPT["kernels"].items():
        assert set(figures["fits"]) == {str(architecture) for architecture in MULTIPROCESSORS}
        if name.startswith("raster_"):
            assert figures["code"]["fp64"] == figures["code"]["local_memory"] == 0, name
            assert figures["code"]["loops"], name
