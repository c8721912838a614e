/* log.h: lines of the core for Python's logging. A ring of 256 lines (the oldest are dropped,
 * counted); the caller's thread drains it with mm_log_take. The core itself writes to no stream.
 * Levels as in Python: 10, 20, 30, 40. */
#ifndef MM_LOG_H
#define MM_LOG_H
#include "csrc/base/base.h"

#define MM_LOG_DEBUG 10
#define MM_LOG_INFO 20
#define MM_LOG_WARNING 30
#define MM_LOG_ERROR 40

#ifdef __cplusplus
extern "C" {
#endif
void mm_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Last words of mm_assert_failed: the one line that goes to stderr, since the process aborts. */
void mm_log_assert(const char *what, const char *file, int line);
#ifdef __cplusplus
}
#endif
#endif
