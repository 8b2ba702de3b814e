// What the CUDA library takes from torch's own, to link against where the torch at hand has no
// CUDA.
extern "C" __attribute__((visibility("default"))) void aoti_torch_get_current_cuda_stream() {}
