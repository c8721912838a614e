/* think.h: where the thinking span of a reply lies, followed byte by byte while the reply grows.
 * The marks are normally single tokens but may arrive in pieces, so the states work on bytes. A
 * reply has at most one thinking span.
 *
 *   LEAD     start adaptive, disabled   blanks, closers: dropped; an opener: THINK; else CONTENT
 *   LEAD_IN  start enabled              an opener (blanks before it): dropped, THINK; else THINK
 *   THINK    up to the closer           AFTER
 *   AFTER    blanks, closers: dropped; else DONE
 *   CONTENT  up to an opener            THINK
 *   DONE     everything is content
 *
 * Bytes that may still turn into a mark are *held*; every question is answered as if the reply
 * ended now (held bytes then belong to the current channel). */
#ifndef MM_THINK_H
#define MM_THINK_H
#include "csrc/base/base.h"

#define MM_MAX_MARK 64 /* bytes of a mark */

typedef enum mm_think_phase {
    MM_PHASE_OFF = 0,
    MM_PHASE_LEAD,
    MM_PHASE_LEAD_IN,
    MM_PHASE_THINK,
    MM_PHASE_AFTER,
    MM_PHASE_CONTENT,
    MM_PHASE_DONE
} mm_think_phase;

typedef struct mm_think_mark {
    uint8_t byte[MM_MAX_MARK];
    uint8_t fail[MM_MAX_MARK]; /* length of the longest proper border of byte[0 .. i] */
    int32_t n;
} mm_think_mark;

/* A plain value: copy it to keep a state, no close. */
typedef struct mm_think {
    mm_think_phase phase;
    bool blanks_over;    /* LEAD, LEAD_IN, AFTER: a mark has begun after the blanks */
    int32_t n_open;      /* matched bytes of the opener */
    int32_t n_close;     /* matched bytes of the closer */
    int64_t pos;         /* bytes seen */
    int64_t lead_end;    /* bytes before it are dropped marks (and their blanks) */
    int64_t span_begin;  /* thinking span, marks included; INT64_MAX before one began */
    int64_t span_end;    /* INT64_MAX while it is open */
    int64_t text_begin;  /* first byte of reasoning text, the opener behind it */
    int64_t text_end;    /* end of reasoning text that is decided */
    int64_t token_begin; /* first byte of the token being pushed */
    int64_t n_token;     /* tokens counted */
    int64_t n_blank;     /* LEAD_IN: earlier tokens that are blanks only, not counted yet */
    int32_t n_held;
    mm_think_mark close, open;
    int64_t held[MM_MAX_MARK]; /* [n_held] begin of earlier tokens that touch held bytes of a mark,
                                  not counted yet */
} mm_think;

/* MM_E_INVALID when a mark is empty or longer than MM_MAX_MARK; marks are not read with
 * MM_THINK_OFF. */
mm_status mm_think_init(mm_think *t, mm_think_state start, const uint8_t *open, int32_t n_open,
                        const uint8_t *close, int32_t n_close);
/* The bytes of one more token (n may be 0). */
void mm_think_push(mm_think *t, const uint8_t *bytes, int64_t n);
/* The reply is inside the thinking span now (what a budget ends and a stop scope excludes). */
bool mm_think_is_inside(const mm_think *t);
/* Some byte of [begin, end) belongs to the thinking span or to a mark that was dropped. */
bool mm_think_covers(const mm_think *t, int64_t begin, int64_t end);
/* Tokens with text inside the span; the marks' own tokens do not count. A token without bytes
 * counts when it comes inside the span, so that a budget always ends. */
int64_t mm_think_n_token(const mm_think *t);
#endif
