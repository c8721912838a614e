/* status.c: the last failure of each thread. The record is thread-local and of fixed size, so that
 * reporting a failure (out of memory included) cannot itself fail. Text longer than the record is
 * cut at a character border. */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "csrc/base/base.h"
#include "csrc/base/log.h"

static _Thread_local mm_error last_error = {.status = MM_OK, .index = -1};

const char *mm_error_message(void)
{
    return last_error.text;
}

const char *mm_error_param(void)
{
    return last_error.param;
}

int64_t mm_error_index(void)
{
    return last_error.index;
}

const char *mm_status_name(mm_status st)
{
    static const char *const name[] = {
        [MM_OK] = "ok",
        [MM_FULL] = "full",
        [MM_AGAIN] = "again",
        [MM_E_INVALID] = "invalid",
        [MM_E_SHAPE] = "shape",
        [MM_E_TOO_LONG] = "too_long",
        [MM_E_GRAMMAR] = "grammar",
        [MM_E_CONFIG] = "config",
        [MM_E_FORMAT] = "format",
        [MM_E_CLOSED] = "closed",
        [MM_E_FORKED] = "forked",
        [MM_E_SLEEPING] = "sleeping",
        [MM_E_NO_WEIGHTS] = "no_weights",
        [MM_E_DEAD] = "dead",
        [MM_E_NOMEM] = "nomem",
        [MM_E_IO] = "io",
        [MM_E_UNSUPPORTED] = "unsupported",
        [MM_E_DEVICE] = "device",
        [MM_E_COMM] = "comm",
        [MM_E_CANCELLED] = "cancelled",
    };
    const size_t i = (size_t)st;
    return i < MM_ARRAY_LEN(name) && name[i] != NULL ? name[i] : "unknown";
}

/* A cut text may end inside a UTF-8 character: drop the bytes of that character. */
static void cut_at_character(char *text, size_t cap)
{
    size_t n = strlen(text);
    if (n + 1 < cap)
        return;
    size_t lead = n;
    while (lead > 0 && ((unsigned char)text[lead - 1] & 0xC0) == 0x80)
        lead--;
    if (lead == 0)
        return;
    const unsigned char c = (unsigned char)text[lead - 1];
    const size_t want = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    if (n - (lead - 1) < want)
        text[lead - 1] = '\0';
}

/* The arguments of a message may point into the record itself (a caller that adds words to the last
 * message), so the text is formed aside first. */
mm_status mm_error_set(mm_status st, const char *param, int64_t index, const char *fmt, ...)
{
    mm_error e = {.status = st, .index = index};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    cut_at_character(e.text, sizeof e.text);
    snprintf(e.param, sizeof e.param, "%s", param != NULL ? param : "");
    cut_at_character(e.param, sizeof e.param);
    last_error = e;
    return st;
}

void mm_error_take(mm_error *out, mm_status st)
{
    *out = last_error;
    out->status = st;
    mm_error_clear();
}

mm_status mm_error_raise(const mm_error *err, const char *prefix)
{
    if (err->status == MM_OK)
        return MM_OK;
    return mm_error_set(err->status, err->param, err->index, "%s%s", prefix != NULL ? prefix : "",
                        err->text);
}

void mm_error_clear(void)
{
    last_error = (mm_error){.status = MM_OK, .index = -1};
}

double mm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void mm_assert_failed(const char *what, const char *file, int line)
{
    mm_log_assert(what, file, line);
    abort();
}
