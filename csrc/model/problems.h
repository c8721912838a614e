/* problems.h: several complaints in one message. A stage collects all it finds, then fails once:
 * the text lists what fits a message (1 KB) and counts the rest. */
#ifndef MM_MODEL_PROBLEMS_H
#define MM_MODEL_PROBLEMS_H
#include "csrc/base/base.h"

typedef struct mm_problems {
    int32_t n, n_shown;
    size_t used;
    char param[64]; /* what the first one is about */
    char text[880];
} mm_problems;

void mm_problems_add(mm_problems *p, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* MM_OK when nothing was added; else fails with "<title>: a; b; ... (and N more)". */
mm_status mm_problems_raise(const mm_problems *p, mm_status st, const char *title);
#endif
