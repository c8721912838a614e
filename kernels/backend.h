/* backend.h: one device as seen by the engine: memory, an ordered stream, graphs, and its table of
 * ops.
 *
 * "ref" and "cpu" live in the core. "cuda" is libmm_cuda.so beside the extension, opened at run
 * time with dlopen(RTLD_NOW | RTLD_LOCAL); it exports one function, mm_cuda_backend, and reaches
 * the core only through the services passed to it. A backend is opened per rank and used by that
 * rank's thread. */
#ifndef MM_BACKEND_H
#define MM_BACKEND_H
#include "csrc/base/base.h"
#include "kernels/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mm_backend mm_backend;
typedef struct mm_ops mm_ops;
typedef struct mm_event mm_event;
typedef struct mm_graph mm_graph;

typedef struct mm_backend_props {
    char name[16];   /* "ref", "cpu", "cuda" */
    char tier[32];   /* instruction tier: "scalar", "avx2", "avx512", "sm_90a", ... */
    char device[96]; /* e.g. the processor's or the GPU's name */
    /* pointers of alloc can be read by the host; weights can stay in their mappings */
    bool is_host;
    bool has_graph; /* then its ops can read memory of alloc_host, as captured steps do */
    int32_t n_thread;
    int64_t memory_total, memory_free; /* bytes, when opened */
} mm_backend_props;

struct mm_backend {
    mm_backend_props props;
    const mm_ops *ops;
    /* Zeroed, 256-byte aligned device memory. MM_E_NOMEM says how much was asked and is free. */
    mm_status (*alloc)(mm_backend *b, void **out, size_t n_bytes);
    void (*free)(mm_backend *b, void *p);
    /* Host memory the device copies from at full speed (pinned); host backends: plain. */
    mm_status (*alloc_host)(mm_backend *b, void **out, size_t n_bytes);
    void (*free_host)(mm_backend *b, void *p);
    /* scratch_bytes: what ops may use between the start and the end of one op; ask
     * ops->scratch_bytes. */
    mm_status (*stream_open)(mm_backend *b, mm_stream **out, size_t scratch_bytes);
    void (*stream_close)(mm_backend *b, mm_stream *s);
    mm_status (*sync)(mm_backend *b, mm_stream *s);
    /* Asynchronous on a device: host memory must be from alloc_host and untouched until an event
     * after it. */
    mm_status (*upload)(mm_backend *b, mm_stream *s, void *dst, const void *host, size_t n_bytes);
    mm_status (*download)(mm_backend *b, mm_stream *s, void *host, const void *src, size_t n_bytes);
    mm_status (*copy)(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n_bytes);
    mm_status (*zero)(mm_backend *b, mm_stream *s, void *dst, size_t n_bytes);
    mm_status (*event_open)(mm_backend *b, mm_event **out);
    void (*event_close)(mm_backend *b, mm_event *ev);
    mm_status (*event_record)(mm_backend *b, mm_event *ev, mm_stream *s);
    mm_status (*event_wait)(mm_backend *b, mm_event *ev);                /* host waits */
    mm_status (*stream_wait)(mm_backend *b, mm_stream *s, mm_event *ev); /* the stream waits */
    /* NULL unless has_graph: what runs between begin and end on s becomes a graph. */
    mm_status (*graph_begin)(mm_backend *b, mm_stream *s);
    mm_status (*graph_end)(mm_backend *b, mm_stream *s, mm_graph **out);
    mm_status (*graph_launch)(mm_backend *b, mm_graph *g, mm_stream *s);
    void (*graph_close)(mm_backend *b, mm_graph *g);
    /* For a graph: a download to the host address that *to, in backend memory, holds when it runs.
     * All at multiples of 16. */
    mm_status (*download_to)(mm_backend *b, mm_stream *s, void *const *to, const void *src,
                             size_t n_bytes);
    /* Collectives of several devices; NULL on host backends. id is made once and given to every
     * rank. */
    mm_status (*comm_id)(mm_backend *b, uint8_t id[128]);
    mm_status (*comm_open)(mm_backend *b, mm_comm **out, const uint8_t id[128], int32_t rank,
                           int32_t world);
    void (*close)(mm_backend *b);
    /* Seconds between two recorded events that are over; NULL unless asked for (services.profile):
     * events that keep time cost more. */
    mm_status (*event_elapsed)(mm_backend *b, mm_event *from, mm_event *to, double *out_s);
};

typedef struct mm_backend_options {
    const char *name; /* "ref", "cpu", "cuda", "auto" */
    int32_t device;   /* ordinal */
    int32_t n_thread; /* host backends */
} mm_backend_options;

/* "auto": cuda where library, driver and device are there, else cpu (logged why). Failure says what
 * was tried. */
mm_status mm_backend_open(mm_backend **out, const mm_backend_options *opt);
void mm_backend_close(mm_backend *b); /* NULL is fine */
mm_status mm_ref_backend(mm_backend **out, const mm_backend_options *opt);
mm_status mm_cpu_backend(mm_backend **out, const mm_backend_options *opt);

/* What the CUDA library gets from the core (it is opened RTLD_LOCAL and links nothing of it). */
typedef struct mm_host_services {
    uint32_t size;
    mm_status (*error_set)(mm_status st, const char *param, int64_t index, const char *fmt, ...);
    void (*log)(int level, const char *fmt, ...);
    const char *tier; /* MM_TIER or NULL */
    int32_t sync;     /* MM_SYNC */
    int32_t graph;    /* MM_GRAPH */
    int32_t profile;  /* MM_PROFILE: events keep time */
} mm_host_services;
typedef mm_status (*mm_cuda_backend_fn)(uint32_t abi, const mm_host_services *services,
                                        const mm_backend_options *opt, mm_backend **out);

#ifdef __cplusplus
}
#endif
#endif
