/* backend.c: opens a backend by name. The CUDA library is found beside this extension (or at
 * MM_CUDA_SO), opened at run time and kept for the life of the process: its driver threads must not
 * lose their code. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "kernels/backend.h"

#define CUDA_LIBRARY "libmm_cuda.so"
#define BUILD_HINT                                                                                 \
    "build it on a machine with the CUDA toolkit (nvcc in PATH): MM_CUDA=1 pip install ."

/* Path of the library: MM_CUDA_SO, or next to the file that this function lies in. */
static mm_status cuda_path(char *out, size_t cap)
{
    const char *given = mm_env_get()->cuda_so;
    Dl_info info;
    int n;
    if (given != NULL) {
        n = snprintf(out, cap, "%s", given);
    } else {
        if (dladdr((const void *)(uintptr_t)cuda_path, &info) == 0 || info.dli_fname == NULL)
            return MM_FAIL(
                MM_E_UNSUPPORTED,
                "backend \"cuda\": the folder of this extension is unknown; set MM_CUDA_SO");
        const char *slash = strrchr(info.dli_fname, '/');
        const int n_folder = slash != NULL ? (int)(slash - info.dli_fname) + 1 : 0;
        n = snprintf(out, cap, "%.*s" CUDA_LIBRARY, n_folder, info.dli_fname);
    }
    if (n < 0 || (size_t)n >= cap)
        return MM_FAIL(MM_E_UNSUPPORTED,
                       "backend \"cuda\": the path of " CUDA_LIBRARY " is longer than %zu bytes",
                       cap - 1);
    if (access(out, R_OK) == 0)
        return MM_OK;
    if (given != NULL)
        return MM_FAIL(MM_E_UNSUPPORTED, "backend \"cuda\": MM_CUDA_SO=%s cannot be read", given);
    return MM_FAIL(MM_E_UNSUPPORTED,
                   "backend \"cuda\": no CUDA library was built (%s does not exist); " BUILD_HINT,
                   out);
}

static mm_status cuda_open(mm_backend **out, const mm_backend_options *opt)
{
    const mm_env *env = mm_env_get();
    const mm_host_services services = {.size = sizeof services,
                                       .error_set = mm_error_set,
                                       .log = mm_log,
                                       .tier = env->tier,
                                       .sync = env->sync,
                                       .graph = env->graph,
                                       .profile = env->profile};
    char path[4096];
    MM_TRY(cuda_path(path, sizeof path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        return MM_FAIL(MM_E_UNSUPPORTED, "backend \"cuda\": %s", why != NULL ? why : path);
    }
    void *symbol = dlsym(library, "mm_cuda_backend");
    if (symbol == NULL) {
        dlclose(library);
        return MM_FAIL(MM_E_UNSUPPORTED,
                       "backend \"cuda\": %s does not export mm_cuda_backend; " BUILD_HINT, path);
    }
    mm_cuda_backend_fn open_fn;
    memcpy(&open_fn, &symbol, sizeof open_fn);
    return open_fn(MM_ABI, &services, opt, out);
}

/* cuda where library, driver and device are there, else cpu. */
static mm_status auto_open(mm_backend **out, const mm_backend_options *opt)
{
    mm_backend_options o = *opt;
    o.name = "cuda";
    if (cuda_open(out, &o) == MM_OK)
        return MM_OK;
    mm_log(MM_LOG_INFO, "running on the CPU: %s", mm_error_message());
    mm_error_clear();
    o.name = "cpu";
    return mm_cpu_backend(out, &o);
}

mm_status mm_backend_open(mm_backend **out, const mm_backend_options *opt)
{
    const mm_env *env = mm_env_get();
    mm_backend_options o = *opt;
    *out = NULL;
    if (o.name == NULL)
        o.name = "auto";
    if (strcmp(o.name, "auto") == 0 && env->backend != NULL)
        o.name = env->backend;
    if (strcmp(o.name, "auto") == 0)
        return auto_open(out, &o);
    if (strcmp(o.name, "ref") == 0)
        return mm_ref_backend(out, &o);
    if (strcmp(o.name, "cpu") == 0)
        return mm_cpu_backend(out, &o);
    if (strcmp(o.name, "cuda") == 0)
        return cuda_open(out, &o);
    return MM_FAIL_PARAM(MM_E_CONFIG, "backend", -1,
                         "backend=\"%s\": it must be \"auto\", \"cuda\", \"cpu\" or \"ref\"",
                         o.name);
}

void mm_backend_close(mm_backend *b)
{
    if (b != NULL)
        b->close(b);
}

static void describe(const char *name, mm_backend_line *line)
{
    const mm_backend_options opt = {.name = name, .device = 0, .n_thread = 1};
    mm_backend *b = NULL;
    snprintf(line->name, sizeof line->name, "%s", name);
    line->usable = mm_backend_open(&b, &opt) == MM_OK;
    if (!line->usable) {
        snprintf(line->text, sizeof line->text, "%s", mm_error_message());
        mm_error_clear();
        return;
    }
    snprintf(line->text, sizeof line->text, "%s, %s, %.1f of %.1f GB free", b->props.tier,
             b->props.device, (double)b->props.memory_free * 1e-9,
             (double)b->props.memory_total * 1e-9);
    mm_backend_close(b);
}

int32_t mm_backend_list(mm_backend_line *line, int32_t cap)
{
    static const char *const name[] = {"cuda", "cpu", "ref"};
    const int32_t n = (int32_t)MM_ARRAY_LEN(name);
    for (int32_t i = 0; i < n && i < cap; i++)
        describe(name[i], &line[i]);
    return n;
}
