/* log.c: the ring behind mm_log. Any thread writes; whoever calls mm_log_take reads. When it is
 * full the oldest line is dropped and counted, and the reader is told how many were lost before the
 * next line. Lines below MM_LOG (default warning) are not kept. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"

#define LOG_LINES 256
#define LOG_TEXT 512

typedef struct log_line {
    int level;
    char text[LOG_TEXT];
} log_line;

static struct {
    pthread_mutex_t lock;
    log_line line[LOG_LINES];
    int first, count;
    long lost;
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int level_from_name(const char *name)
{
    static const struct {
        const char *name;
        int level;
    } table[] = {{"debug", MM_LOG_DEBUG},
                 {"info", MM_LOG_INFO},
                 {"warning", MM_LOG_WARNING},
                 {"error", MM_LOG_ERROR}};
    for (size_t i = 0; i < MM_ARRAY_LEN(table); i++) {
        if (name != NULL && strcasecmp(name, table[i].name) == 0)
            return table[i].level;
    }
    return MM_LOG_WARNING;
}

void mm_log(int level, const char *fmt, ...)
{
    if (level < level_from_name(mm_env_get()->log))
        return;
    char text[LOG_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&ring.lock);
    if (ring.count == LOG_LINES) {
        ring.first = (ring.first + 1) % LOG_LINES;
        ring.count--;
        ring.lost++;
    }
    log_line *l = &ring.line[(ring.first + ring.count) % LOG_LINES];
    l->level = level;
    memcpy(l->text, text, sizeof text);
    ring.count++;
    pthread_mutex_unlock(&ring.lock);
}

int32_t mm_log_take(int32_t *level, char *text, size_t cap)
{
    int32_t found = 0;
    pthread_mutex_lock(&ring.lock);
    if (ring.lost > 0) {
        *level = MM_LOG_WARNING;
        snprintf(text, cap, "log: %ld lines were dropped because nobody read them", ring.lost);
        ring.lost = 0;
        found = 1;
    } else if (ring.count > 0) {
        const log_line *l = &ring.line[ring.first];
        *level = l->level;
        snprintf(text, cap, "%s", l->text);
        ring.first = (ring.first + 1) % LOG_LINES;
        ring.count--;
        found = 1;
    }
    pthread_mutex_unlock(&ring.lock);
    return found;
}

/* The process is about to abort: nobody will drain the ring any more, so this one line goes to
 * stderr. */
void mm_log_assert(const char *what, const char *file, int line)
{
    fprintf(stderr, "minimax_m31: internal error: %s does not hold (%s:%d)\n", what, file, line);
}
