// In place of the C library's own header, whose variable glibc 2.28 does not have. libstdc++ asks
// it whether a shared_ptr may count without atomic instructions: beside torch, which always has
// threads, never.
#pragma once

static const char __libc_single_threaded = 0;
