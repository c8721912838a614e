/* env.c: the only reader of the environment. Everything is read once, at the first look, and
 * copied: later changes of the environment have no effect. Values that cannot be read and names
 * that nobody knows are warned about, once; with the former no engine opens. */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"

extern char **environ;

typedef enum env_kind { ENV_TEXT, ENV_INT, ENV_CHOICE } env_kind;

typedef struct env_entry {
    const char *name;
    env_kind kind;
    int low, high;       /* ENV_INT */
    const char *choices; /* ENV_CHOICE: words between spaces */
    size_t offset;       /* of the field in mm_env */
    const char *help;
} env_entry;

#define FIELD(f) offsetof(mm_env, f)
static const env_entry table[] = {
    {"MM_LOG", ENV_CHOICE, 0, 0, " debug info warning error ", FIELD(log),
     "least level that is logged (default warning)"},
    {"MM_BACKEND", ENV_CHOICE, 0, 0, " ref cpu cuda ", FIELD(backend),
     "what backend=\"auto\" means"},
    {"MM_THREADS", ENV_INT, 0, 4096, NULL, FIELD(threads),
     "CPU threads (default 0: one per physical core)"},
    {"MM_TIER", ENV_CHOICE, 0, 0, " scalar avx2 avx512 generic ", FIELD(tier),
     "most advanced instruction tier to use: scalar, avx2, avx512 (CPU), generic (CUDA)"},
    {"MM_CUDA_SO", ENV_TEXT, 0, 0, NULL, FIELD(cuda_so),
     "path of libmm_cuda.so instead of the one in the package"},
    {"MM_GRAPH", ENV_INT, 0, 1, NULL, FIELD(graph),
     "0: decode without captured graphs (default 1)"},
    {"MM_SYNC", ENV_INT, 0, 1, NULL, FIELD(sync),
     "1: synchronise after each op, so that an error names its op"},
    {"MM_CHECK", ENV_INT, 0, 1, NULL, FIELD(check),
     "1: run the reference beside every op, report the first that differs"},
    {"MM_PROFILE", ENV_INT, 0, 2, NULL, FIELD(profile),
     "1: time every op (no captured graphs), 2: time steps; the engine logs tables when it closes"},
    {"MM_PROBE", ENV_TEXT, 0, 0, NULL, FIELD(probe),
     "name[,layer]: log statistics of a named intermediate"},
    {"MM_DUMP", ENV_TEXT, 0, 0, NULL, FIELD(dump),
     "directory that probes are written to as .npy files"},
};
#define N_ENTRY ((int)MM_ARRAY_LEN(table))

/* Read by the build, not by the core; known here so that leaving them set is no warning. */
static const char *const build_names[] = {"MM_DEV", "MM_CUDA", "MM_SANITIZE"};

static mm_env env;
static char value_text[MM_ARRAY_LEN(table)][1024]; /* "" when unset */
typedef struct env_problem {
    char name[64]; /* longer names are cut */
    int32_t is_value;
    char text[256];
} env_problem;
static env_problem problem[64]; /* values before names; more than that are not told */
static int n_problem;
static atomic_bool warnings_pending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* name: n bytes. */
__attribute__((format(printf, 4, 5))) static void note(const char *name, size_t n, bool is_value,
                                                       const char *fmt, ...)
{
    if (n_problem == (int)MM_ARRAY_LEN(problem))
        return;
    env_problem *const p = &problem[n_problem++];
    va_list ap;
    snprintf(p->name, sizeof p->name, "%.*s", (int)n, name);
    p->is_value = is_value;
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
}

#define REFUSE(e, ...) note((e)->name, strlen((e)->name), true, __VA_ARGS__)

static const char *find(const char *name)
{
    const char *v = getenv(name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

static bool is_choice(const char *choices, const char *v)
{
    const size_t n = strlen(v);
    if (strchr(v, ' ') != NULL) /* several words are none of them */
        return false;
    for (const char *p = choices + 1; *p != '\0'; p = strchr(p, ' ') + 1) {
        if (strncasecmp(p, v, n) == 0 && p[n] == ' ')
            return true;
    }
    return false;
}

static void load_entry(int i)
{
    const env_entry *e = &table[i];
    char *const field = (char *)&env + e->offset;
    const char *v = find(e->name);
    if (v == NULL)
        return;
    if (strlen(v) >= sizeof value_text[i]) {
        REFUSE(e, "%s is longer than %zu characters; correct or unset it", e->name,
               sizeof value_text[i] - 1);
        return;
    }
    if (e->kind == ENV_INT) {
        char *end;
        errno = 0;
        const long n = strtol(v, &end, 10);
        if (errno != 0 || *end != '\0' || n < e->low || n > e->high) {
            REFUSE(e, "%s=%.64s: it must be a number from %d to %d; correct or unset it", e->name,
                   v, e->low, e->high);
            return;
        }
        *(int *)(void *)field = (int)n;
    } else if (e->kind == ENV_CHOICE && !is_choice(e->choices, v)) {
        REFUSE(e, "%s=%.64s: it must be one of %.*s; correct or unset it", e->name, v,
               (int)strlen(e->choices) - 2, e->choices + 1);
        return;
    }
    snprintf(value_text[i], sizeof value_text[i], "%s", v);
    for (char *p = value_text[i]; e->kind == ENV_CHOICE && *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p); /* words may be written in letters of any case */
    if (e->kind != ENV_INT)
        *(const char **)(void *)field = value_text[i];
}

static void find_unknown(void)
{
    for (char **p = environ; p != NULL && *p != NULL; p++) {
        if (strncmp(*p, "MM_", 3) != 0)
            continue;
        const size_t n = strcspn(*p, "=");
        bool known = false;
        for (int i = 0; i < N_ENTRY && !known; i++)
            known = strlen(table[i].name) == n && strncmp(table[i].name, *p, n) == 0;
        for (size_t i = 0; i < MM_ARRAY_LEN(build_names) && !known; i++)
            known = strlen(build_names[i]) == n && strncmp(build_names[i], *p, n) == 0;
        if (!known)
            note(*p, n, false,
                 "environment variable %.*s is not known (a typo?); see `python -m minimax_m31 "
                 "doctor`",
                 (int)mm_min_i64((int64_t)n, 128), *p);
    }
}

static void load(void)
{
    env = (mm_env){.graph = 1};
    for (int i = 0; i < N_ENTRY; i++)
        load_entry(i);
    find_unknown();
    atomic_store(&warnings_pending, n_problem > 0);
}

const mm_env *mm_env_get(void)
{
    pthread_once(&once, load);
    /* Logging asks for the level, hence for the environment: only after the load, and only the
     * first caller. */
    if (atomic_load_explicit(&warnings_pending, memory_order_relaxed) &&
        atomic_exchange(&warnings_pending, false)) {
        for (int i = 0; i < n_problem; i++)
            mm_log(MM_LOG_WARNING, "%s", problem[i].text);
    }
    return &env;
}

const char *mm_env_bad_value(const char **name)
{
    (void)mm_env_get();
    *name = n_problem > 0 && problem[0].is_value ? problem[0].name : NULL;
    return *name != NULL ? problem[0].text : NULL;
}

const char *mm_env_problem_of(const char *name)
{
    (void)mm_env_get();
    for (int i = 0; i < n_problem; i++) {
        if (strcmp(problem[i].name, name) == 0)
            return problem[i].text;
    }
    return NULL;
}

int32_t mm_env_problem(int32_t i, const char **name, const char **text, int32_t *is_value)
{
    (void)mm_env_get();
    if (i < 0 || i >= n_problem)
        return 0;
    *name = problem[i].name;
    *text = problem[i].text;
    *is_value = problem[i].is_value;
    return 1;
}

int32_t mm_env_entry(int32_t i, const char **name, const char **value, const char **help)
{
    if (i < 0 || i >= N_ENTRY)
        return 0;
    (void)mm_env_get();
    *name = table[i].name;
    *value = value_text[i];
    *help = table[i].help;
    return 1;
}
