/* probe.c: statistics and dumps of intermediates, f32 whatever the activation type. Slow on
 * purpose: everything is waited for and copied, so nothing here may be reached with the variables
 * unset. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/model/forward.h"
#include "csrc/model/probe.h"

#define PATH_CAP 1280
#define FILE_NAME 64 /* at most, of what is written into the folder */

static const char *const names[] = {"embed",          "attn_q", "attn_iq", "attn_o", "attn_x",
                                    "expert_weights", "hidden", "final",   "logits"};

struct mm_probe_state {
    char name[64];   /* "" : no statistics */
    int32_t layer;   /* -1: every layer */
    const char *dir; /* NULL: no dumps */
    int64_t n_dump;  /* files so far: their order is in their names */
    int64_t n_look;  /* intermediates that passed, those whose statistics were logged */
    int64_t n_match;
    float *row;        /* host copy */
    int64_t n_row_cap; /* elements */
};

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < MM_ARRAY_LEN(names); i++) {
        if (strlen(names[i]) == n && memcmp(names[i], text, n) == 0)
            return true;
    }
    return false;
}

static mm_status parse_probe(struct mm_probe_state *p, const char *text, int32_t n_layer)
{
    const char *comma = strchr(text, ',');
    const size_t n = comma != NULL ? (size_t)(comma - text) : strlen(text);
    if (!is_name(text, n)) {
        char all[256] = "";
        for (size_t i = 0, at = 0; i < MM_ARRAY_LEN(names); i++)
            at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", i > 0 ? ", " : "", names[i]);
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_PROBE", -1,
                             "MM_PROBE=%.200s: no intermediate has that name; there are %s", text,
                             all);
    }
    snprintf(p->name, sizeof p->name, "%.*s", (int)n, text);
    if (comma == NULL)
        return MM_OK;
    char *end;
    const long layer = strtol(comma + 1, &end, 10);
    if (*end != '\0' || end == comma + 1 || layer < 0 || layer >= n_layer)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_PROBE", -1,
                             "MM_PROBE=%s: expected name or name,layer with a layer below %d", text,
                             n_layer);
    p->layer = (int32_t)layer;
    return MM_OK;
}

/* Makes the folder and a file in it: rights alone do not say whether a file system can be written.
 */
static mm_status open_folder(struct mm_probe_state *p, const char *dir)
{
    char path[PATH_CAP];
    struct stat info;
    if (strlen(dir) + FILE_NAME >= sizeof path)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_DUMP", -1,
                             "MM_DUMP=%.100s...: the path is longer than %zu characters", dir,
                             sizeof path - FILE_NAME - 1);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_DUMP", -1,
                             "MM_DUMP=%s: cannot make the folder: %s; give one that can be written",
                             dir, strerror(errno));
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_DUMP", -1,
                             "MM_DUMP=%s is no folder: give one that can be written", dir);
    snprintf(path, sizeof path, "%s/.probe-XXXXXX", dir);
    const int fd = mkstemp(path);
    if (fd < 0)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_DUMP", -1,
                             "MM_DUMP=%s: no file can be made in it: %s; give a folder that can be "
                             "written",
                             dir, strerror(errno));
    (void)close(fd);
    (void)unlink(path);
    p->dir = dir;
    return MM_OK;
}

mm_status mm_probe_open(mm_model *m)
{
    const mm_env *env = mm_env_get();
    if (env->probe == NULL && env->dump == NULL)
        return MM_OK;
    struct mm_probe_state *p = calloc(1, sizeof *p);
    if (p == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for probes");
    m->probe = p;
    p->layer = -1;
    if (env->probe != NULL)
        MM_TRY(parse_probe(p, env->probe, m->config.n_layer));
    return env->dump != NULL ? open_folder(p, env->dump) : MM_OK;
}

void mm_probe_close(mm_model *m)
{
    struct mm_probe_state *p = m->probe;
    if (p == NULL)
        return;
    if (p->n_look > 0 && p->name[0] != '\0' && p->n_match == 0)
        mm_log(MM_LOG_WARNING,
               "MM_PROBE=%s matched nothing: embed, final and logits have no layer, and not every "
               "layer has attn_iq and expert_weights",
               mm_env_get()->probe);
    free(p->row);
    free(p);
    m->probe = NULL;
}

static void log_stats(const char *name, int32_t layer, const float *v, int64_t n)
{
    double sum = 0.0, square = 0.0;
    float low = INFINITY, high = -INFINITY;
    int64_t n_bad = 0, at_bad = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) {
            at_bad = n_bad++ == 0 ? i : at_bad;
            continue;
        }
        sum += (double)v[i];
        square += (double)v[i] * (double)v[i];
        low = fminf(low, v[i]);
        high = fmaxf(high, v[i]);
    }
    const double n_good = (double)(n > n_bad ? n - n_bad : 1);
    mm_log(MM_LOG_WARNING, /* whoever set MM_PROBE wants to see it */
           "probe %s layer %d: n %lld min %g max %g mean %g rms %g not finite %lld (first at %lld)",
           name, layer, (long long)n, (double)low, (double)high, sum / n_good,
           sqrt(square / n_good), (long long)n_bad, (long long)at_bad);
}

/* NumPy format 1.0: magic, version, header length, header padded to 64. */
static mm_status write_npy(struct mm_probe_state *p, const char *name, int32_t layer,
                           const float *v, int64_t n_row, int64_t n_col)
{
    char path[PATH_CAP], head[192];
    snprintf(path, sizeof path, "%s/%06lld_layer%02d_%s.npy", p->dir, (long long)p->n_dump++, layer,
             name);
    int n = snprintf(head, sizeof head,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)n_row, (long long)n_col);
    while ((10 + n + 1) % 64 != 0)
        head[n++] = ' ';
    head[n++] = '\n';
    const uint8_t magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)(n & 255), (uint8_t)(n >> 8)};
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        return MM_FAIL(MM_E_IO, "%s: cannot write: %s", path, strerror(errno));
    const size_t count = (size_t)(n_row * n_col);
    const bool is_done = fwrite(magic, 1, sizeof magic, f) == sizeof magic &&
                         fwrite(head, 1, (size_t)n, f) == (size_t)n &&
                         fwrite(v, sizeof *v, count, f) == count;
    if (fclose(f) != 0 || !is_done)
        return MM_FAIL(MM_E_IO, "%s: cannot write: %s", path, strerror(errno));
    return MM_OK;
}

mm_status mm_probe_look(mm_model *m, const char *name, int32_t layer, const void *data,
                        mm_dtype dtype, int64_t n_row, int64_t n_col)
{
    struct mm_probe_state *p = m->probe;
    const bool wants_stats = strcmp(p->name, name) == 0 && (p->layer < 0 || p->layer == layer);
    const int64_t n = n_row * n_col;
    p->n_look++;
    p->n_match += wants_stats;
    if ((!wants_stats && p->dir == NULL) || m->ctx.comm->rank != 0)
        return MM_OK;
    if (n > p->n_row_cap) {
        float *grown = realloc(p->row, (size_t)n * sizeof *grown);
        if (grown == NULL)
            return MM_FAIL(MM_E_NOMEM, "no memory to probe %lld values", (long long)n);
        p->row = grown;
        p->n_row_cap = n;
    }
    MM_TRY(mm_model_download_f32(m, p->row, data, dtype, n));
    if (wants_stats)
        log_stats(name, layer, p->row, n);
    return p->dir != NULL ? write_npy(p, name, layer, p->row, n_row, n_col) : MM_OK;
}
