/* env.h: THE table of MM_* variables. Read once (first use), never again; none changes
 * results except to diagnose. Unknown MM_* names in the environment are warned about once: they
 * are typos. A value that cannot be read is, too, and keeps engines from opening: an engine that
 * ran otherwise than was asked for would not be noticed. */
#ifndef MM_ENV_H
#define MM_ENV_H
#include "csrc/base/base.h"

typedef struct mm_env {
    const char *log;     /* MM_LOG: level name */
    const char *backend; /* MM_BACKEND: what "auto" means */
    int threads;         /* MM_THREADS: CPU threads, 0 = physical cores */
    const char *tier; /* MM_TIER: "scalar", "avx2", "avx512" (cpu), "generic" (cuda): at most this
                         instruction tier */
    const char *cuda_so; /* MM_CUDA_SO: the CUDA library instead of the one beside the extension */
    int graph;           /* MM_GRAPH=0: no captured graphs */
    int sync;            /* MM_SYNC=1: synchronise after each op, so that an error names its op */
    int check;           /* MM_CHECK=1: run ref beside every op, report the first that differs */
    int profile;       /* MM_PROFILE=1: time every op; 2: whole steps; tables are logged at close */
    const char *probe; /* MM_PROBE=name[,layer]: log statistics of a named intermediate */
    const char *dump;  /* MM_DUMP=dir: write probes as .npy */
} mm_env;

const mm_env *mm_env_get(void);
/* What is wrong with the first variable whose value cannot be read; NULL when all can. */
const char *mm_env_bad_value(const char **name);
/* What is wrong with this variable; NULL when nothing is. */
const char *mm_env_problem_of(const char *name);
#endif
