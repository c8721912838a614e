/* backend.c: opens a backend by name. The CUDA library is found beside this extension (or at
 * MM_CUDA_SO), looked at before it is opened (the loader dies of a file that was cut, and waits on
 * a pipe), opened at run time and kept for the life of the process: its driver threads must not
 * lose their code. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "kernels/backend.h"

#define CUDA_LIBRARY "libmm_cuda.so"
#define BUILD_HINT                                                                                 \
    "build it on a machine with the CUDA toolkit (nvcc in PATH): MM_CUDA=1 pip install ."
#define SHOWN "%.160s" /* of a path in a message, so that the remedy has room behind it */

/* A failure of the file at `path`. When MM_CUDA_SO named it the variable is the error's param:
 * nothing else may run in its place. */
static mm_status bad_library(const char *path, const char *why)
{
    if (mm_env_get()->cuda_so != NULL)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "MM_CUDA_SO", -1,
                             "backend \"cuda\": MM_CUDA_SO=" SHOWN
                             " %.200s; give the path of a " CUDA_LIBRARY
                             " of this build, or unset it to use the package's own",
                             path, why);
    return MM_FAIL(MM_E_UNSUPPORTED, "backend \"cuda\": " SHOWN " %.200s; " BUILD_HINT, path, why);
}

/* Path of the library: MM_CUDA_SO, or next to the file that this function lies in. */
static mm_status cuda_path(char *out, size_t cap)
{
    const char *given = mm_env_get()->cuda_so, *wrong = mm_env_problem_of("MM_CUDA_SO");
    Dl_info info;
    int n;
    if (wrong != NULL)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "MM_CUDA_SO", -1, "backend \"cuda\": %s", wrong);
    if (given != NULL) {
        /* a name alone is a file here, too, not one that the loader looks for elsewhere */
        n = snprintf(out, cap, "%s%s", strchr(given, '/') != NULL ? "" : "./", given);
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
    if (given != NULL || access(out, F_OK) == 0)
        return MM_OK;
    return MM_FAIL(
        MM_E_UNSUPPORTED,
        "backend \"cuda\": no CUDA library was built (" SHOWN " does not exist); " BUILD_HINT, out);
}

static bool read_at(int fd, void *out, size_t n, uint64_t offset)
{
    return offset <= INT64_MAX && pread(fd, out, n, (off_t)offset) == (ssize_t)n;
}

/* Whether n pieces of `each` bytes from `offset` on are in the file. */
static bool lies_within(uint64_t offset, uint64_t n, uint64_t each, uint64_t size)
{
    return offset <= size && n * each <= size - offset; /* n and each are of 16 bits */
}

/* What is wrong with a file of `size` bytes as a library: NULL when the loader may map it. The
 * loader itself looks at the magic alone: it maps segments that the file may end before, and dies
 * of SIGBUS in them. */
static const char *library_problem(int fd, uint64_t size)
{
    static const char cut[] = "is not whole: it ends before its sections do";
    Elf64_Ehdr h;
    Elf64_Phdr part;
    if (!read_at(fd, &h, sizeof h, 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
        return "is no shared library (an ELF file)";
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_type != ET_DYN || h.e_phentsize != sizeof part)
        return "is no 64-bit shared library";
    if (!lies_within(h.e_phoff, h.e_phnum, h.e_phentsize, size) ||
        !lies_within(h.e_shoff, h.e_shnum, h.e_shentsize, size))
        return cut;
    for (uint64_t i = 0; i < h.e_phnum; i++) {
        if (!read_at(fd, &part, sizeof part, h.e_phoff + i * sizeof part))
            return cut;
        if (part.p_offset > size || part.p_filesz > size - part.p_offset)
            return cut;
    }
    return NULL;
}

static mm_status check_library(const char *path)
{
    const char *why;
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is not waited for */
    if (fd < 0 || fstat(fd, &info) != 0) {
        char text[128];
        snprintf(text, sizeof text, "cannot be read (%s)", strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return bad_library(path, text);
    }
    if (S_ISDIR(info.st_mode))
        why = "is a folder";
    else if (!S_ISREG(info.st_mode))
        why = "is no regular file";
    else
        why = library_problem(fd, (uint64_t)info.st_size);
    (void)close(fd);
    return why != NULL ? bad_library(path, why) : MM_OK;
}

static mm_status load_library(const char *path, mm_cuda_backend_fn *open_fn)
{
    char text[512];
    MM_TRY(check_library(path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        const size_t n = strlen(path);
        if (why != NULL && strncmp(why, path, n) == 0 && strncmp(why + n, ": ", 2) == 0)
            why += n + 2; /* the message begins with the path */
        snprintf(text, sizeof text, "cannot be loaded (%s)", why != NULL ? why : "no reason given");
        return bad_library(path, text);
    }
    void *symbol = dlsym(library, "mm_cuda_backend");
    if (symbol == NULL) {
        dlclose(library);
        return bad_library(path, "does not export mm_cuda_backend");
    }
    memcpy(open_fn, &symbol, sizeof *open_fn);
    return MM_OK;
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
    mm_cuda_backend_fn open_fn = NULL;
    MM_TRY(cuda_path(path, sizeof path));
    MM_TRY(load_library(path, &open_fn));
    return open_fn(MM_ABI, &services, opt, out);
}

/* cuda where library, driver and device are there, else cpu; but never in place of a library that
 * MM_CUDA_SO names and that is none. */
static mm_status auto_open(mm_backend **out, const mm_backend_options *opt)
{
    mm_backend_options o = *opt;
    o.name = "cuda";
    const mm_status st = cuda_open(out, &o);
    if (st == MM_OK || strcmp(mm_error_param(), "MM_CUDA_SO") == 0)
        return st;
    mm_log(MM_LOG_INFO, "running on the CPU: %s", mm_error_message());
    mm_error_clear();
    o.name = "cpu";
    return mm_cpu_backend(out, &o);
}

static mm_status open_named(mm_backend **out, const mm_backend_options *o)
{
    if (strcmp(o->name, "auto") == 0)
        return auto_open(out, o);
    if (strcmp(o->name, "ref") == 0)
        return mm_ref_backend(out, o);
    if (strcmp(o->name, "cpu") == 0)
        return mm_cpu_backend(out, o);
    if (strcmp(o->name, "cuda") == 0)
        return cuda_open(out, o);
    return MM_FAIL_PARAM(MM_E_CONFIG, "backend", -1,
                         "backend=\"%s\": it must be \"auto\", \"cuda\", \"cpu\" or \"ref\"",
                         o->name);
}

mm_status mm_backend_open(mm_backend **out, const mm_backend_options *opt)
{
    mm_backend_options o = *opt;
    *out = NULL;
    if (o.name == NULL)
        o.name = "auto";
    const char *wrong = mm_env_problem_of("MM_BACKEND"), *chosen = mm_env_get()->backend;
    if (strcmp(o.name, "auto") != 0)
        return open_named(out, &o);
    if (wrong != NULL)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_BACKEND", -1, "%s", wrong);
    if (chosen == NULL)
        return auto_open(out, &o);
    o.name = chosen;
    const mm_status st = open_named(out, &o);
    if (st == MM_OK)
        return MM_OK;
    mm_error err;
    char prefix[64];
    mm_error_take(&err, st);
    snprintf(prefix, sizeof prefix, "MM_BACKEND=%s: ", chosen);
    return mm_error_raise(&err, prefix);
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
        char prefix[32]; /* the line says the name already */
        const int n = snprintf(prefix, sizeof prefix, "backend \"%s\": ", name);
        const char *text = mm_error_message();
        snprintf(line->text, sizeof line->text, "%s",
                 strncmp(text, prefix, (size_t)n) == 0 ? text + n : text);
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
