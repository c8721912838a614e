/* launch.cu: errors of CUDA as messages and statuses, the scratch of an op, and what follows every
 * launch. */
#include "kernels/cuda/cuda.h"

/* After these every call of the process fails: the context is gone. */
static bool is_fault(cudaError_t err)
{
    switch (err) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

static mm_status status_of(cudaError_t err)
{
    switch (err) {
    case cudaErrorMemoryAllocation:
        return MM_E_NOMEM;
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return MM_E_UNSUPPORTED;
    default:
        return MM_E_DEVICE;
    }
}

/* What to do about it; "" where the text of the error must do. */
static const char *remedy_of(cudaError_t err)
{
    switch (err) {
    case cudaErrorUnsupportedPtxVersion: /* PTX of a newer minor version, for a newer GPU */
        return "; update the NVIDIA driver, or use backend=\"cpu\"";
    case cudaErrorNoKernelImageForDevice:
        return "; build libmm_cuda.so again with the architectures of setup.py, or use "
               "backend=\"cpu\"";
    default:
        return "";
    }
}

mm_status mm_cuda_fail(const mm_cuda *b, cudaError_t err, const char *what)
{
    const mm_status st = status_of(err);
    (void)cudaGetLastError(); /* a fault stays, everything else is told once */
    if (!is_fault(err))
        return MM_CUDA_FAIL(b, st, "cuda: %s: %s: %s%s", what, cudaGetErrorName(err),
                            cudaGetErrorString(err), remedy_of(err));
    if (b->is_sync)
        return MM_CUDA_FAIL(b, st,
                            "cuda: %s: %s: %s; device %d cannot be used by this process any more: "
                            "start a new process",
                            what, cudaGetErrorName(err), cudaGetErrorString(err), b->device);
    return MM_CUDA_FAIL(b, st,
                        "cuda: %s: %s: %s, in this or an earlier op; device %d cannot be used by "
                        "this process any more: start a new process (MM_SYNC=1 names the op)",
                        what, cudaGetErrorName(err), cudaGetErrorString(err), b->device);
}

mm_status mm_cuda_take(const mm_op_context *c, size_t n_bytes, void **out)
{
    mm_stream *s = c->stream;
    const size_t n = mm_cuda_size(n_bytes);
    *out = NULL;
    if (n < n_bytes || n > s->scratch_bytes - s->scratch_used)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_NOMEM,
                            "cuda: an op asked for %zu bytes of scratch, %zu of %zu are left",
                            n_bytes, s->scratch_bytes - s->scratch_used, s->scratch_bytes);
    *out = s->scratch + s->scratch_used;
    s->scratch_used += n;
#ifdef MM_EMU /* what an op reads before it wrote it is NaN, not the last op's */
    MM_CUDA_TRY(mm_cuda_of(c), cudaMemsetAsync(*out, 0xFF, n, s->s));
#endif
    return MM_OK;
}

mm_status mm_cuda_launched(const mm_op_context *c, cudaError_t err, const char *name)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (err == cudaSuccess && b->is_sync) {
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        err = cudaStreamIsCapturing(c->stream->s, &capture);
        if (err == cudaSuccess && capture == cudaStreamCaptureStatusNone)
            err = cudaStreamSynchronize(c->stream->s);
    }
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, name);
}
