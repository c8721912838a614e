/* repeat.h: finds a reply that has begun to loop: its last tokens are `min_count` copies of a
 * pattern of min_size to max_size tokens. Work per token is one comparison per pattern size,
 * whatever the length of the reply. */
#ifndef MM_REPEAT_H
#define MM_REPEAT_H
#include "csrc/base/base.h"

typedef struct mm_repeat {
    int32_t min_size, max_size, min_count;
    int32_t *run; /* [max_size - min_size + 1]: how many last tokens equal the one `size` before
                     them */
} mm_repeat;

/* MM_E_INVALID unless 1 <= min_size <= max_size <= 4096 and min_count >= 2. All 0: off, and nothing
 * is ever found. */
mm_status mm_repeat_open(mm_repeat *out, int32_t min_size, int32_t max_size, int32_t min_count);
void mm_repeat_close(mm_repeat *r);
/* token[0 .. n) is the reply, token[n - 1] the new one; to be called once for every token. True: it
 * loops. */
bool mm_repeat_push(mm_repeat *r, const int32_t *token, int32_t n);
#endif
