/* stop.h: stop strings of one request, matched on the bytes of its tokens while they come, whatever
 * the token borders. Cost per byte does not depend on how much was generated before.
 *
 * The first token that completes a match decides; among the matches that this token completes the
 * one with the smallest start wins, then the longest, then the lowest index. */
#ifndef MM_STOP_H
#define MM_STOP_H
#include "csrc/base/base.h"
#include "csrc/text/think.h"

typedef struct mm_stop_matcher mm_stop_matcher;
typedef struct mm_stop_match {
    int32_t index;      /* which string */
    int64_t begin, end; /* bytes of the concatenated token bytes */
} mm_stop_match;

/* String i = bytes[offset[i] .. offset[i+1]), copied. MM_E_INVALID for an empty string. */
mm_status mm_stop_matcher_open(mm_stop_matcher **out, const uint8_t *bytes, const int32_t *offset,
                               int32_t n_string);
void mm_stop_matcher_close(mm_stop_matcher *m); /* NULL is fine */

/* The bytes of one more token. True when it completes a match that counts; *out says which.
 * counts false (token index <= min_tokens): matches completed here are ignored for good, but one
 * that began here may be completed by a later token. outside (NULL: everywhere): matches that touch
 * the thinking span do not count. Push the token into it first. */
bool mm_stop_matcher_push(mm_stop_matcher *m, const uint8_t *bytes, int64_t n, bool counts,
                          const mm_think *outside, mm_stop_match *out);
#endif
