/* emu_host.cpp: devices, memory, streams and graphs of the emulated machine. */
#include "emu_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <map>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#else
#define EMU_ASAN 0
#endif

struct emu_graph {
    std::vector<std::function<void()>> node;
};
struct emu_stream {
    emu_graph *capture;
    bool is_joined; /* another stream's capture */
};
struct emu_event {
    emu_graph *capture;
    struct timespec at;
};
struct allocation {
    void *base;
    size_t n_bytes, n_mapped;
};

static std::mutex lock;
static std::map<void *, allocation> allocated;
static size_t n_allocated;
static cudaError_t sticky = cudaSuccess; /* of the whole process, as a device fault is */
static thread_local cudaError_t last = cudaSuccess;
static thread_local int current_device;

static long long setting(const char *name, long long usual)
{
    const char *text = getenv(name);
    return text != nullptr && text[0] != '\0' ? atoll(text) : usual;
}

static cudaError_t result(cudaError_t err)
{
    if (err == cudaSuccess)
        err = sticky;
    if (err != cudaSuccess)
        last = err;
    return err;
}

const char *cudaGetErrorName(cudaError_t err)
{
#define NAME(name, value, text)                                                                    \
    if (err == name)                                                                               \
        return #name;
    EMU_ERRORS(NAME)
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t err)
{
#define TEXT(name, value, text)                                                                    \
    if (err == name)                                                                               \
        return text;
    EMU_ERRORS(TEXT)
    return "unrecognized error code";
}

cudaError_t cudaGetLastError()
{
    const cudaError_t err = sticky != cudaSuccess ? sticky : last;
    last = cudaSuccess;
    return err;
}

cudaError_t cudaPeekAtLastError()
{
    return sticky != cudaSuccess ? sticky : last;
}

/* ---------------------------------------------------------------- devices */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)setting("EMU_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = (int)setting("EMU_DEVICES", 1);
    if (setting("EMU_DRIVER", CUDART_VERSION) / 1000 < CUDART_VERSION / 1000) {
        *n = 0;
        return result(cudaErrorInsufficientDriver);
    }
    return *n > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= (int)setting("EMU_DEVICES", 1))
        return result(cudaErrorInvalidDevice);
    current_device = device;
    return result(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

static size_t smem_optin()
{
    switch (setting("EMU_CC", 90)) {
    case 80:
    case 87:
        return 163 * 1024;
    case 86:
    case 89:
    case 120:
    case 121:
        return 99 * 1024;
    default:
        return setting("EMU_CC", 90) < 80 ? 64 * 1024 : 227 * 1024;
    }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= (int)setting("EMU_DEVICES", 1))
        return result(cudaErrorInvalidDevice);
    const int cc = (int)setting("EMU_CC", 90);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    p->major = cc / 10;
    p->minor = cc % 10;
    p->multiProcessorCount = (int)setting("EMU_SM", 4);
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->l2CacheSize = 1 << 20;
    p->totalGlobalMem = (size_t)setting("EMU_MEMORY", 8ll << 30);
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = smem_optin();
    p->sharedMemPerMultiprocessor = smem_optin() + 1024;
    return result(cudaSuccess);
}

int emu_code_arch()
{
    const int cc = (int)setting("EMU_CC", 90);
    return (int)setting("EMU_CODE", cc > 90 ? 80 : cc);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    cudaDeviceProp p;
    const cudaError_t err = cudaGetDeviceProperties(&p, device);
    if (err != cudaSuccess)
        return err;
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        return cudaSuccess;
    }
    return result(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize()
{
    return result(cudaSuccess);
}

/* ---------------------------------------------------------------- memory */

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total)
{
    const std::lock_guard<std::mutex> hold(lock);
    *total = (size_t)setting("EMU_MEMORY", 8ll << 30);
    *n_free = *total > n_allocated ? *total - n_allocated : 0;
    return result(cudaSuccess);
}

/* Without a sanitizer a block ends at a page that cannot be touched. */
static cudaError_t allocate(void **out, size_t n)
{
    const size_t size = (n + 255) & ~(size_t)255;
    allocation a = {nullptr, n, 0};
    *out = nullptr;
    if (EMU_ASAN) {
        if (posix_memalign(&a.base, 256, n) != 0)
            return result(cudaErrorMemoryAllocation);
        *out = a.base;
    } else {
        a.n_mapped = ((size + 4095) & ~(size_t)4095) + 4096;
        a.base =
            mmap(nullptr, a.n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (a.base == MAP_FAILED)
            return result(cudaErrorMemoryAllocation);
        mprotect((uint8_t *)a.base + a.n_mapped - 4096, 4096, PROT_NONE);
        *out = (uint8_t *)a.base + a.n_mapped - 4096 - size;
    }
    memset(*out, 0xA5, n < 1u << 20 ? n : 1u << 20); /* not zero: nobody promised that */
    allocated[*out] = a;
    n_allocated += n;
    return result(cudaSuccess);
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    const std::lock_guard<std::mutex> hold(lock);
    *out = nullptr;
    if (n == 0)
        return result(cudaSuccess);
    const size_t total = (size_t)setting("EMU_MEMORY", 8ll << 30);
    if (n > total || n_allocated > total - n)
        return result(cudaErrorMemoryAllocation);
    return allocate(out, n);
}

cudaError_t cudaFree(void *p)
{
    const std::lock_guard<std::mutex> hold(lock);
    if (p == nullptr)
        return result(cudaSuccess);
    const auto it = allocated.find(p);
    if (it == allocated.end())
        return result(cudaErrorInvalidValue);
    n_allocated -= it->second.n_bytes;
    if (EMU_ASAN)
        free(it->second.base);
    else
        munmap(it->second.base, it->second.n_mapped);
    allocated.erase(it);
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned)
{
    *out = nullptr;
    if (n > (size_t)1 << 46 || posix_memalign(out, 4096, n > 0 ? n : 1) != 0)
        return result(cudaErrorMemoryAllocation);
    return result(cudaSuccess);
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return result(cudaSuccess);
}

static cudaError_t enqueue(cudaStream_t s, std::function<void()> work)
{
    if (sticky != cudaSuccess)
        return result(sticky);
    if (s != nullptr && s->capture != nullptr)
        s->capture->node.push_back(std::move(work));
    else
        work();
    return result(cudaSuccess);
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    return enqueue(nullptr, [=] { memset(dst, value, n); });
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
    return enqueue(s, [=] { memset(dst, value, n); });
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, cudaMemcpyKind)
{
    return enqueue(nullptr, [=] { memmove(dst, src, n); });
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t s)
{
    return enqueue(s, [=] { memmove(dst, src, n); });
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t s)
{
    if (width > dst_pitch || width > src_pitch)
        return result(cudaErrorInvalidValue);
    return enqueue(s, [=] {
        for (size_t i = 0; i < height; i++)
            memmove((uint8_t *)dst + i * dst_pitch, (const uint8_t *)src + i * src_pitch, width);
    });
}

/* ---------------------------------------------------------------- streams, events, graphs */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    *out = new emu_stream();
    return result(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    delete s;
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s != nullptr && s->capture != nullptr)
        return result(cudaErrorStreamCaptureUnsupported);
    return result(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    return cudaStreamSynchronize(s);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t ev, unsigned)
{
    if (ev->capture != nullptr && s->capture == nullptr) {
        s->capture = ev->capture;
        s->is_joined = true;
    }
    return result(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = new emu_event();
    return result(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t ev)
{
    delete ev;
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t s)
{
    ev->capture = s != nullptr ? s->capture : nullptr;
    clock_gettime(CLOCK_MONOTONIC, &ev->at);
    return result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t ev)
{
    return result(ev->capture != nullptr ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    *ms = (float)((double)(b->at.tv_sec - a->at.tv_sec) * 1e3 +
                  (double)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
    return result(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (s == nullptr || s->capture != nullptr)
        return result(cudaErrorStreamCaptureUnsupported);
    s->capture = new emu_graph();
    s->is_joined = false;
    return result(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    *out = nullptr;
    if (s->capture == nullptr || s->is_joined)
        return result(cudaErrorInvalidValue);
    *out = s->capture;
    s->capture = nullptr;
    return result(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    *status = s->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
    *out = new emu_graph(*g);
    return result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return result(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    return enqueue(s, [g] {
        for (const auto &node : g->node)
            node();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    delete g;
    return result(cudaSuccess);
}

/* ---------------------------------------------------------------- kernels */

cudaError_t emu_launch(cudaStream_t s, const emu_kernel &k)
{
    const uint64_t n_thread = (uint64_t)k.block.x * k.block.y * k.block.z;
    if (n_thread == 0 || n_thread > 1024 || k.block.z > 64 || k.grid.x == 0 || k.grid.y == 0 ||
        k.grid.z == 0 || k.grid.x > 0x7FFFFFFFu || k.grid.y > 65535 || k.grid.z > 65535)
        return result(cudaErrorInvalidConfiguration);
    if (k.smem > smem_optin())
        return result(cudaErrorInvalidValue);
    const char *fault = getenv("EMU_FAULT");
    if (fault != nullptr && strcmp(fault, k.name) == 0)
        sticky = cudaErrorIllegalAddress; /* seen by the next call, as on a device */
    if (sticky != cudaSuccess)
        return cudaSuccess;
    return enqueue(s, [k] { emu_run(k); });
}
