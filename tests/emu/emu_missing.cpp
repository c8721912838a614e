/* emu_missing.cpp: what a function of a file that was left out of a partial build does. */
#include "kernels/cuda/cuda.h"

extern "C" long emu_missing(const void *context, const char *name);
extern "C" long emu_missing(const void *context, const char *name)
{
    return MM_CUDA_FAIL(mm_cuda_of((const mm_op_context *)context), MM_E_UNSUPPORTED,
                        "cuda: %s was left out of this build of the emulated library", name);
}
