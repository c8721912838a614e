/* host_backend.c: memory, streams and events of the backends that run on the processor. Ops run
 * when they are called, so a stream has nothing to wait for. */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/host.h"

struct mm_event {
    int32_t unused; /* ops are done when they return */
};

/* ---------------------------------------------------------------- the machine */

static int64_t meminfo_bytes(const char *key)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    long long kb = 0;
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            kb = strtoll(line + strlen(key), NULL, 10);
            break;
        }
    }
    fclose(f);
    return kb * 1024;
}

static void processor_name(char *out, size_t cap)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    snprintf(out, cap, "processor");
    if (f == NULL)
        return;
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out, cap, "%.*s", (int)cap - 1, colon + 1 + (colon[1] == ' '));
        break;
    }
    fclose(f);
}

/* ---------------------------------------------------------------- memory */

/* Before every block lie 256 bytes with the size of its mapping: pages are committed, zeroed, when
 * first touched. */
enum { HEADER = 256 };

static mm_status host_alloc(mm_backend *b, void **out, size_t n_bytes)
{
    const size_t size = n_bytes + HEADER;
    *out = NULL;
    void *p = size < n_bytes
                  ? MAP_FAILED
                  : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return MM_FAIL(MM_E_NOMEM,
                       "backend \"%s\": %zu bytes of host memory asked, %lld bytes free",
                       b->props.name, n_bytes, (long long)meminfo_bytes("MemAvailable:"));
    *(size_t *)p = size;
    *out = (uint8_t *)p + HEADER;
    return MM_OK;
}

static void host_free(mm_backend *b, void *p)
{
    (void)b;
    if (p == NULL)
        return;
    void *base = (uint8_t *)p - HEADER;
    munmap(base, *(size_t *)base);
}

static mm_status host_copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n_bytes)
{
    (void)b, (void)s;
    if (n_bytes > 0)
        memmove(dst, src, n_bytes);
    return MM_OK;
}

static mm_status host_zero(mm_backend *b, mm_stream *s, void *dst, size_t n_bytes)
{
    (void)b, (void)s;
    if (n_bytes > 0)
        memset(dst, 0, n_bytes);
    return MM_OK;
}

/* ---------------------------------------------------------------- streams, events */

static mm_status host_stream_open(mm_backend *b, mm_stream **out, size_t scratch_bytes)
{
    *out = NULL;
    mm_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return MM_FAIL(MM_E_NOMEM, "stream: out of memory");
    const mm_status st = mm_arena_open(&s->scratch, scratch_bytes);
    if (st != MM_OK) {
        free(s);
        return st;
    }
    s->backend = b;
    s->pool = ((mm_host_backend *)(void *)b)->pool;
    *out = s;
    return MM_OK;
}

static void host_stream_close(mm_backend *b, mm_stream *s)
{
    (void)b;
    if (s == NULL)
        return;
    mm_arena_close(&s->scratch);
    free(s);
}

static mm_status host_sync(mm_backend *b, mm_stream *s)
{
    (void)b, (void)s;
    return MM_OK;
}

static mm_status host_event_open(mm_backend *b, mm_event **out)
{
    (void)b;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? MM_OK : MM_FAIL(MM_E_NOMEM, "event: out of memory");
}

static void host_event_close(mm_backend *b, mm_event *ev)
{
    (void)b;
    free(ev);
}

static mm_status host_event_record(mm_backend *b, mm_event *ev, mm_stream *s)
{
    (void)b, (void)ev, (void)s;
    return MM_OK;
}

static mm_status host_event_wait(mm_backend *b, mm_event *ev)
{
    (void)b, (void)ev;
    return MM_OK;
}

static mm_status host_stream_wait(mm_backend *b, mm_stream *s, mm_event *ev)
{
    (void)b, (void)s, (void)ev;
    return MM_OK;
}

static void host_close(mm_backend *b)
{
    mm_pool_close(((mm_host_backend *)(void *)b)->pool);
    free(b);
}

mm_status mm_host_backend_init(mm_host_backend *b, const char *name, const char *tier,
                               const mm_ops *ops, mm_pool *pool)
{
    *b = (mm_host_backend){
        .base =
            {
                .ops = ops,
                .alloc = host_alloc,
                .free = host_free,
                .alloc_host = host_alloc,
                .free_host = host_free,
                .stream_open = host_stream_open,
                .stream_close = host_stream_close,
                .sync = host_sync,
                .upload = host_copy,
                .download = host_copy,
                .copy = host_copy,
                .zero = host_zero,
                .event_open = host_event_open,
                .event_close = host_event_close,
                .event_record = host_event_record,
                .event_wait = host_event_wait,
                .stream_wait = host_stream_wait,
                .close = host_close,
            },
        .pool = pool,
    };
    mm_backend_props *p = &b->base.props;
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(p->tier, sizeof p->tier, "%s", tier);
    processor_name(p->device, sizeof p->device);
    p->is_host = true;
    p->n_thread = pool != NULL ? mm_pool_n_thread(pool) : 1;
    p->memory_total = meminfo_bytes("MemTotal:");
    p->memory_free = meminfo_bytes("MemAvailable:");
    return MM_OK;
}
