/* cuda.h: what every file of libmm_cuda shares: the backend and its stream, errors, scratch, and
 * the one way to launch. */
#ifndef MM_CUDA_CUDA_H
#define MM_CUDA_CUDA_H
#include <cuda_runtime.h>
#include <utility>

#include "kernels/backend.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_limits.h"

enum mm_cuda_tier {
    MM_CUDA_GENERIC = 0, /* mma.sync, cp.async: sm_80 and newer */
    MM_CUDA_HOPPER = 1   /* + wgmma, clusters: sm_90a */
};

struct mm_cuda {
    mm_backend base; /* first: an mm_backend * is an mm_cuda * */
    const mm_host_services *services;
    int32_t device, n_sm, cc; /* cc: 80, 89, 90, ... */
    int32_t smem_max;         /* bytes of shared memory a block can opt in to */
    mm_cuda_tier tier;        /* MM_TIER=generic lowers it */
    bool has_pdl, is_sync;    /* is_sync: MM_SYNC, every launch is waited for */
};

/* Counters of "last block to arrive": zero before and after every kernel (who uses one resets it).
 * A kernel may use [0, MM_CUDA_COUNTERS). */
#define MM_CUDA_COUNTERS 65536

struct mm_stream {
    mm_backend *backend; /* first: comm.c relies on it */
    cudaStream_t s;
    uint8_t *scratch; /* what ops take for their duration */
    size_t scratch_bytes, scratch_used;
    uint32_t *counter;          /* [MM_CUDA_COUNTERS] zeros */
    struct mm_cuda_stage *pack; /* buffers of pack.cu, NULL until it is used; mm_cuda_pack_close */
};

static inline mm_cuda *mm_cuda_of(const mm_op_context *c)
{
    return (mm_cuda *)c->stream->backend;
}

/* The message carries "cuda: <what>: <name of the error>: ..."; out of memory and device faults
 * have their own statuses. */
mm_status mm_cuda_fail(const mm_cuda *b, cudaError_t err, const char *what);
#define MM_CUDA_TRY(b, call)                                                                       \
    do {                                                                                           \
        const cudaError_t mm_err_ = (call);                                                        \
        if (mm_err_ != cudaSuccess)                                                                \
            return mm_cuda_fail((b), mm_err_, #call);                                              \
    } while (0)
/* `return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED, "...", ...)`. */
#define MM_CUDA_FAIL(b, st, ...) ((void)(b)->services->error_set((st), "", -1, __VA_ARGS__), (st))

/* Scratch of the running op. `mm_cuda_start` at the top of every op gives all of it back; `take`
 * hands out 256-byte aligned pieces. What an op may take in all for a shape is said by its
 * *_scratch function, from which ops.cu forms scratch_bytes; running out is an error, never
 * undersized memory. */
static inline void mm_cuda_start(const mm_op_context *c)
{
    c->stream->scratch_used = 0;
}
mm_status mm_cuda_take(const mm_op_context *c, size_t n_bytes, void **out);
static inline size_t mm_cuda_size(size_t n_bytes) /* of a piece, for *_scratch */
{
    return (n_bytes + 255) & ~(size_t)255;
}

/* After a launch: its error with the kernel's name; with MM_SYNC the kernel is waited for. */
mm_status mm_cuda_launched(const mm_op_context *c, cudaError_t err, const char *name);

#ifdef MM_EMU
#include "emu_launch.h" /* mm_launch */
#else
/* Launches kernel<<<grid, block, smem>>>(args...) on the stream of c, in clusters of n_cluster
 * blocks side by side in x where that is more than 1 (sm_90); more than 48 KB is opted in to. With
 * programmatic dependent launch the kernel may start before the one before it has ended: every
 * kernel calls mm_pdl_wait() before it reads or writes what other kernels touch, and
 * mm_pdl_trigger() when its last wave has begun (or never). */
template <typename... Params, typename... Args>
static mm_status mm_launch_cluster(const mm_op_context *c, const char *name,
                                   void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                                   int32_t n_cluster, Args &&...args)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (smem > 32 * 1024) { /* 48 KB are free, static arrays of the kernel included */
        const cudaError_t err = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        if (err != cudaSuccess)
            return mm_cuda_launched(c, err, name);
    }
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2] = {};
    unsigned n = 0;
    if (b->has_pdl) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (n_cluster > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = (unsigned)n_cluster;
        attribute[n].val.clusterDim.y = attribute[n].val.clusterDim.z = 1;
        n++;
    }
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = c->stream->s;
    config.attrs = attribute;
    config.numAttrs = n;
    const cudaError_t err = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
    return mm_cuda_launched(c, err, name);
}
template <typename... Params, typename... Args>
static mm_status mm_launch(const mm_op_context *c, const char *name, void (*kernel)(Params...),
                           dim3 grid, dim3 block, size_t smem, Args &&...args)
{
    return mm_launch_cluster(c, name, kernel, grid, block, smem, 1, std::forward<Args>(args)...);
}
#endif

#endif
