/* problems.c: collecting complaints until a stage is over. */
#include <stdarg.h>
#include <stdio.h>

#include "csrc/model/problems.h"

void mm_problems_add(mm_problems *p, const char *param, const char *fmt, ...)
{
    p->n++;
    if (p->n == 1)
        snprintf(p->param, sizeof p->param, "%s", param);
    if (p->n_shown != p->n - 1)
        return; /* one before it did not fit: keep the order of what is shown */
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    const char *sep = p->n_shown == 0 ? "" : "; ";
    const size_t need = strlen(sep) + strlen(line);
    if (p->used + need + 1 > sizeof p->text)
        return;
    p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "%s%s", sep, line);
    p->n_shown++;
}

mm_status mm_problems_raise(const mm_problems *p, mm_status st, const char *title)
{
    if (p->n == 0)
        return MM_OK;
    if (p->n > p->n_shown)
        return MM_FAIL_PARAM(st, p->param, -1, "%s: %s (and %d more)", title, p->text,
                             p->n - p->n_shown);
    return MM_FAIL_PARAM(st, p->param, -1, "%s: %s", title, p->text);
}
