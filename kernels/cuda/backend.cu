/* backend.cu: one GPU as an mm_backend: what it must be, its memory, streams, events and graphs.
 * Host functions may be called from any thread: each makes the device current first. Nothing here
 * is on the path of a step but the copies and the launch of a graph; the few KB of a step's results
 * are written into pinned memory by a kernel, which neither costs nor waits like a copy engine. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/kernels.h"

extern const mm_ops mm_cuda_ops; /* ops.cu */

#define DRIVER_HINT "install the NVIDIA driver 580 or newer, or use backend=\"cpu\""

struct device_backend {
    mm_cuda cuda;              /* first: an mm_cuda * is a device_backend * */
    cudaStream_t service;      /* zeroes new memory */
    mm_host_services services; /* of the core that opened it: a process may hold two extensions */
};
struct mm_event {
    cudaEvent_t event;
};
struct mm_graph {
    cudaGraphExec_t exec;
};

static mm_cuda *of(mm_backend *b)
{
    return (mm_cuda *)(void *)b;
}

static mm_status make_current(mm_cuda *b)
{
    static thread_local int32_t current = -1;
    if (current == b->device)
        return MM_OK;
    MM_CUDA_TRY(b, cudaSetDevice(b->device));
    current = b->device;
    return MM_OK;
}

/* ---------------------------------------------------------------- memory */

static mm_status out_of_memory(mm_cuda *b, const char *kind, size_t n_bytes)
{
    size_t n_free = 0, total = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&n_free, &total);
    return MM_CUDA_FAIL(b, MM_E_NOMEM,
                        "backend \"cuda\": %zu bytes of %s memory asked; device %d has %zu of %zu "
                        "bytes free",
                        n_bytes, kind, b->device, n_free, total);
}

static mm_status alloc_device(mm_cuda *b, void **out, size_t n_bytes)
{
    *out = NULL;
    MM_TRY(make_current(b));
    const cudaError_t err = cudaMalloc(out, n_bytes > 0 ? n_bytes : 1);
    if (err == cudaErrorMemoryAllocation)
        return out_of_memory(b, "device", n_bytes);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "cudaMalloc");
}

static mm_status cuda_alloc(mm_backend *base, void **out, size_t n_bytes)
{
    mm_cuda *b = of(base);
    MM_TRY(alloc_device(b, out, n_bytes));
    /* streams of ours do not wait for the default stream: so zeroed on one and waited for */
    const cudaStream_t s = ((device_backend *)b)->service;
    cudaError_t err = cudaMemsetAsync(*out, 0, n_bytes > 0 ? n_bytes : 1, s);
    if (err == cudaSuccess)
        err = cudaStreamSynchronize(s);
    if (err == cudaSuccess)
        return MM_OK;
    (void)cudaFree(*out);
    *out = NULL;
    return mm_cuda_fail(b, err, "zeroing new memory");
}

static void cuda_free(mm_backend *b, void *p)
{
    if (p == NULL || make_current(of(b)) != MM_OK)
        return;
    (void)cudaFree(p);
    (void)cudaGetLastError();
}

static mm_status cuda_alloc_host(mm_backend *base, void **out, size_t n_bytes)
{
    mm_cuda *b = of(base);
    *out = NULL;
    MM_TRY(make_current(b));
    const cudaError_t err = cudaHostAlloc(out, n_bytes > 0 ? n_bytes : 1, cudaHostAllocPortable);
    if (err == cudaErrorMemoryAllocation)
        return out_of_memory(b, "pinned host", n_bytes);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "cudaHostAlloc");
}

static void cuda_free_host(mm_backend *b, void *p)
{
    if (p == NULL || make_current(of(b)) != MM_OK)
        return;
    (void)cudaFreeHost(p);
    (void)cudaGetLastError();
}

/* ---------------------------------------------------------------- streams */

static void cuda_stream_close(mm_backend *base, mm_stream *s)
{
    if (s == NULL || make_current(of(base)) != MM_OK)
        return;
    if (s->s != NULL)
        (void)cudaStreamSynchronize(s->s); /* its work may still use the memory below */
    mm_cuda_pack_close(s);
    cuda_free(base, s->scratch);
    cuda_free(base, s->counter);
    if (s->s != NULL)
        (void)cudaStreamDestroy(s->s);
    (void)cudaGetLastError();
    free(s);
}

static mm_status cuda_stream_open(mm_backend *base, mm_stream **out, size_t scratch_bytes)
{
    mm_cuda *b = of(base);
    void *scratch = NULL, *counter = NULL;
    *out = NULL;
    MM_TRY(make_current(b));
    mm_stream *s = (mm_stream *)calloc(1, sizeof *s);
    if (s == NULL)
        return MM_CUDA_FAIL(b, MM_E_NOMEM, "cuda: stream: out of host memory");
    s->backend = base;
    const cudaError_t err = cudaStreamCreateWithFlags(&s->s, cudaStreamNonBlocking);
    mm_status st = err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "cudaStreamCreateWithFlags");
    if (st == MM_OK)
        st = alloc_device(b, &scratch, scratch_bytes);
    if (st == MM_OK)
        st = cuda_alloc(base, &counter, MM_CUDA_COUNTERS * sizeof(uint32_t));
    s->scratch = (uint8_t *)scratch;
    s->scratch_bytes = scratch_bytes;
    s->counter = (uint32_t *)counter;
    if (st != MM_OK) {
        cuda_stream_close(base, s);
        return st;
    }
    *out = s;
    return MM_OK;
}

static mm_status cuda_sync(mm_backend *base, mm_stream *s)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    const cudaError_t err = cudaStreamSynchronize(s->s);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "waiting for the device");
}

static mm_status copy(mm_backend *base, mm_stream *s, void *dst, const void *src, size_t n_bytes,
                      cudaMemcpyKind kind, const char *what)
{
    mm_cuda *b = of(base);
    if (n_bytes == 0)
        return MM_OK;
    MM_TRY(make_current(b));
    const cudaError_t err = cudaMemcpyAsync(dst, src, n_bytes, kind, s->s);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, what);
}

static mm_status cuda_upload(mm_backend *b, mm_stream *s, void *dst, const void *host,
                             size_t n_bytes)
{
    return copy(b, s, dst, host, n_bytes, cudaMemcpyHostToDevice, "upload");
}

enum { DELIVER_THREADS = 256, DELIVER_MOST = 16384 };

/* to [n] <- from [n], 16-byte units; to NULL: *to_at. */
static __global__ void __launch_bounds__(DELIVER_THREADS)
    deliver(uint4 *to, uint4 *const *to_at, const uint4 *from, int32_t n)
{
    mm_pdl_wait();
    if (to == NULL)
        to = *to_at;
    for (int32_t i = (int32_t)(blockIdx.x * DELIVER_THREADS + threadIdx.x); i < n;
         i += (int32_t)gridDim.x * DELIVER_THREADS)
        to[i] = from[i];
}

static mm_status launch_deliver(mm_backend *b, mm_stream *s, void *to, void *const *to_at,
                                const void *from, size_t n_bytes)
{
    const mm_op_context c = {s, NULL, NULL, NULL};
    const int32_t n = (int32_t)(n_bytes / 16);
    MM_TRY(make_current(of(b)));
    return mm_launch(
        &c, "download", deliver, dim3((unsigned)((n + DELIVER_THREADS - 1) / DELIVER_THREADS)),
        dim3(DELIVER_THREADS), 0, (uint4 *)to, (uint4 *const *)to_at, (const uint4 *)from, n);
}

static mm_status cuda_download_to(mm_backend *b, mm_stream *s, void *const *to, const void *src,
                                  size_t n_bytes)
{
    if (n_bytes == 0)
        return MM_OK;
    if ((n_bytes | (uintptr_t)src) % 16 != 0 || n_bytes > DELIVER_MOST * (size_t)256)
        return MM_CUDA_FAIL(of(b), MM_E_INVALID,
                            "cuda: a download of %zu bytes from %p in a graph; multiples of 16 and "
                            "at most 4 MB are possible",
                            n_bytes, src);
    return launch_deliver(b, s, NULL, to, src, n_bytes);
}

static mm_status cuda_download(mm_backend *b, mm_stream *s, void *host, const void *src,
                               size_t n_bytes)
{
    if (n_bytes > 0 && n_bytes <= DELIVER_MOST &&
        (n_bytes | (uintptr_t)host | (uintptr_t)src) % 16 == 0)
        return launch_deliver(b, s, host, NULL, src, n_bytes);
    return copy(b, s, host, src, n_bytes, cudaMemcpyDeviceToHost, "download");
}

static mm_status cuda_copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n_bytes)
{
    return copy(b, s, dst, src, n_bytes, cudaMemcpyDeviceToDevice, "copy");
}

static mm_status cuda_zero(mm_backend *base, mm_stream *s, void *dst, size_t n_bytes)
{
    mm_cuda *b = of(base);
    if (n_bytes == 0)
        return MM_OK;
    MM_TRY(make_current(b));
    const cudaError_t err = cudaMemsetAsync(dst, 0, n_bytes, s->s);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "zero");
}

/* ---------------------------------------------------------------- events */

static mm_status cuda_event_open(mm_backend *base, mm_event **out)
{
    mm_cuda *b = of(base);
    *out = NULL;
    MM_TRY(make_current(b));
    mm_event *ev = (mm_event *)calloc(1, sizeof *ev);
    if (ev == NULL)
        return MM_CUDA_FAIL(b, MM_E_NOMEM, "cuda: event: out of host memory");
    const cudaError_t err = cudaEventCreateWithFlags(
        &ev->event, b->services->profile ? cudaEventDefault : cudaEventDisableTiming);
    if (err != cudaSuccess) {
        free(ev);
        return mm_cuda_fail(b, err, "cudaEventCreateWithFlags");
    }
    *out = ev;
    return MM_OK;
}

static void cuda_event_close(mm_backend *b, mm_event *ev)
{
    if (ev == NULL || make_current(of(b)) != MM_OK)
        return;
    (void)cudaEventDestroy(ev->event);
    (void)cudaGetLastError();
    free(ev);
}

static mm_status cuda_event_record(mm_backend *base, mm_event *ev, mm_stream *s)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    MM_CUDA_TRY(b, cudaEventRecord(ev->event, s->s));
    return MM_OK;
}

static mm_status cuda_event_wait(mm_backend *base, mm_event *ev)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    const cudaError_t err = cudaEventSynchronize(ev->event);
    return err == cudaSuccess ? MM_OK : mm_cuda_fail(b, err, "waiting for the device");
}

static mm_status cuda_event_elapsed(mm_backend *base, mm_event *from, mm_event *to, double *out_s)
{
    mm_cuda *b = of(base);
    float ms = 0;
    MM_TRY(make_current(b));
    MM_CUDA_TRY(b, cudaEventElapsedTime(&ms, from->event, to->event));
    *out_s = 1e-3 * (double)ms;
    return MM_OK;
}

static mm_status cuda_stream_wait(mm_backend *base, mm_stream *s, mm_event *ev)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    MM_CUDA_TRY(b, cudaStreamWaitEvent(s->s, ev->event, 0));
    return MM_OK;
}

/* ---------------------------------------------------------------- graphs */

static mm_status cuda_graph_begin(mm_backend *base, mm_stream *s)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    /* thread local: other ranks may allocate meanwhile */
    MM_CUDA_TRY(b, cudaStreamBeginCapture(s->s, cudaStreamCaptureModeThreadLocal));
    return MM_OK;
}

static mm_status cuda_graph_end(mm_backend *base, mm_stream *s, mm_graph **out)
{
    mm_cuda *b = of(base);
    cudaGraph_t captured = NULL;
    *out = NULL;
    MM_TRY(make_current(b));
    mm_graph *g = (mm_graph *)calloc(1, sizeof *g);
    cudaError_t err = cudaStreamEndCapture(s->s, &captured);
    const char *what = "cudaStreamEndCapture";
    if (err == cudaSuccess && g != NULL) {
        err = cudaGraphInstantiate(&g->exec, captured, 0);
        what = "cudaGraphInstantiate";
        if (err == cudaSuccess) { /* now, not at its first launch */
            err = cudaGraphUpload(g->exec, s->s);
            what = "cudaGraphUpload";
        }
    }
    if (captured != NULL)
        (void)cudaGraphDestroy(captured);
    if (err == cudaSuccess && g != NULL) {
        *out = g;
        return MM_OK;
    }
    free(g);
    return err != cudaSuccess ? mm_cuda_fail(b, err, what)
                              : MM_CUDA_FAIL(b, MM_E_NOMEM, "cuda: graph: out of host memory");
}

static mm_status cuda_graph_launch(mm_backend *base, mm_graph *g, mm_stream *s)
{
    mm_cuda *b = of(base);
    MM_TRY(make_current(b));
    MM_CUDA_TRY(b, cudaGraphLaunch(g->exec, s->s));
    return MM_OK;
}

static void cuda_graph_close(mm_backend *b, mm_graph *g)
{
    if (g == NULL || make_current(of(b)) != MM_OK)
        return;
    (void)cudaGraphExecDestroy(g->exec);
    (void)cudaGetLastError();
    free(g);
}

/* ---------------------------------------------------------------- opening */

static void cuda_close(mm_backend *base)
{
    device_backend *b = (device_backend *)(void *)base;
    if (b->service != NULL && make_current(&b->cuda) == MM_OK)
        (void)cudaStreamDestroy(b->service);
    (void)cudaGetLastError();
    free(b);
}

static mm_status check_driver(mm_cuda *b)
{
    int driver = 0;
    const cudaError_t err = cudaDriverGetVersion(&driver);
    if (err != cudaSuccess || driver == 0)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "backend \"cuda\": no NVIDIA driver is loaded; " DRIVER_HINT);
    if (driver / 1000 < CUDART_VERSION / 1000)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "backend \"cuda\": the driver supports CUDA %d.%d, the library was "
                            "built with %d.%d; " DRIVER_HINT,
                            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                            CUDART_VERSION % 1000 / 10);
    return MM_OK;
}

static mm_status check_device(mm_cuda *b, int32_t device)
{
    int n = 0;
    const cudaError_t err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess && err != cudaErrorNoDevice && err != cudaErrorInsufficientDriver) {
        b->device = device; /* it failed, in an earlier engine of this process */
        return mm_cuda_fail(b, err, "cudaGetDeviceCount");
    }
    if (err != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "backend \"cuda\": the driver shows no GPU to this process (%s); look "
                            "at nvidia-smi and CUDA_VISIBLE_DEVICES",
                            cudaGetErrorString(err));
    }
    if (device >= 0 && device < n)
        return MM_OK;
    (void)b->services->error_set(MM_E_CONFIG, "device_ids", -1,
                                 "device_ids=[%d]: this process sees %d GPU%s, numbered from 0",
                                 device, n, n == 1 ? "" : "s");
    return MM_E_CONFIG;
}

static mm_status describe(mm_cuda *b)
{
    cudaDeviceProp prop;
    size_t n_free = 0, total = 0;
    MM_CUDA_TRY(b, cudaGetDeviceProperties(&prop, b->device));
    b->cc = 10 * prop.major + prop.minor;
    b->n_sm = prop.multiProcessorCount;
    b->smem_max = (int32_t)prop.sharedMemPerBlockOptin;
    if (b->cc < 80)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "backend \"cuda\": device %d, %s, has compute capability %d.%d; 8.0 "
                            "or newer is needed; choose another device or backend=\"cpu\"",
                            b->device, prop.name, prop.major, prop.minor);
    const bool is_generic = b->services->tier != NULL && strcmp(b->services->tier, "generic") == 0;
    b->tier = b->cc == 90 && !is_generic ? MM_CUDA_HOPPER : MM_CUDA_GENERIC;
    int32_t arch;
    MM_TRY(mm_cuda_code_arch(b, &arch));
    b->has_pdl = arch >= 90; /* older code holds no wait for the kernel before: ptx.h */
    b->is_sync = b->services->sync != 0;
    MM_CUDA_TRY(b, cudaMemGetInfo(&n_free, &total));
    mm_backend_props *p = &b->base.props;
    snprintf(p->name, sizeof p->name, "cuda");
    if (b->tier == MM_CUDA_HOPPER)
        snprintf(p->tier, sizeof p->tier, "sm_90a");
    else
        snprintf(p->tier, sizeof p->tier, "generic on sm_%d", b->cc);
    snprintf(p->device, sizeof p->device, "%.95s", prop.name);
    p->has_graph = b->services->graph != 0 && !b->is_sync;
    p->n_thread = 1;
    p->memory_total = (int64_t)total;
    p->memory_free = (int64_t)n_free;
    return MM_OK;
}

static mm_status open_device(device_backend *d, int32_t device)
{
    mm_cuda *b = &d->cuda;
    MM_TRY(check_driver(b));
    MM_TRY(check_device(b, device));
    b->device = device;
    MM_TRY(make_current(b));
    MM_TRY(describe(b));
    MM_CUDA_TRY(b, cudaStreamCreateWithFlags(&d->service, cudaStreamNonBlocking));
    return MM_OK;
}

extern "C" __attribute__((visibility("default"))) mm_status mm_cuda_backend(
    uint32_t abi, const mm_host_services *services, const mm_backend_options *opt, mm_backend **out)
{
    *out = NULL;
    if (abi != MM_ABI || services->size != sizeof *services) {
        /* the setter is the first of the services in every version */
        if (services->size >= offsetof(mm_host_services, log))
            (void)services->error_set(MM_E_UNSUPPORTED, "", -1,
                                      "backend \"cuda\": the CUDA library is of version %u, the "
                                      "extension of %u; build both again: MM_CUDA=1 pip install .",
                                      (unsigned)MM_ABI, (unsigned)abi);
        return MM_E_UNSUPPORTED;
    }
    device_backend *d = (device_backend *)calloc(1, sizeof *d);
    if (d == NULL) {
        (void)services->error_set(MM_E_NOMEM, "", -1, "backend \"cuda\": out of host memory");
        return MM_E_NOMEM;
    }
    mm_backend *b = &d->cuda.base;
    d->services = *services; /* the caller's struct ends with its call */
    d->cuda.services = &d->services;
    b->ops = &mm_cuda_ops;
    b->alloc = cuda_alloc;
    b->free = cuda_free;
    b->alloc_host = cuda_alloc_host;
    b->free_host = cuda_free_host;
    b->stream_open = cuda_stream_open;
    b->stream_close = cuda_stream_close;
    b->sync = cuda_sync;
    b->upload = cuda_upload;
    b->download = cuda_download;
    b->copy = cuda_copy;
    b->zero = cuda_zero;
    b->event_open = cuda_event_open;
    b->event_close = cuda_event_close;
    b->event_record = cuda_event_record;
    b->event_wait = cuda_event_wait;
    b->stream_wait = cuda_stream_wait;
    b->close = cuda_close;
    const mm_status st = open_device(d, opt->device);
    if (st != MM_OK) {
        cuda_close(b);
        return st;
    }
    if (d->cuda.services->profile)
        b->event_elapsed = cuda_event_elapsed;
    if (b->props.has_graph) {
        b->graph_begin = cuda_graph_begin;
        b->graph_end = cuda_graph_end;
        b->graph_launch = cuda_graph_launch;
        b->graph_close = cuda_graph_close;
        b->download_to = cuda_download_to;
    }
    *out = b;
    return MM_OK;
}
