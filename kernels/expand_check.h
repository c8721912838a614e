/* expand_check.h: what `expand` refuses, in the words of every backend. */
#ifndef MM_EXPAND_CHECK_H
#define MM_EXPAND_CHECK_H
#include <stdio.h>

#include "kernels/ops.h"

/* True, and why in text, when the arguments are not as ops.h says. */
static inline bool mm_expand_is_wrong(const mm_op_shape *s, const mm_expand_args *a, char *text,
                                      size_t cap)
{
    const mm_batch *b = a->plan;
    const int32_t n_seq = a->seq->n_seq, n_row = a->seq->n_row, n_out = a->out->n_out;
    const int n_ring = a->ring != NULL ? (int)a->ring->n : 0;
    if ((b == NULL) != (a->blob == NULL))
        (void)snprintf(text, cap, "expand: plan and blob belong together; give both or neither");
    else if (a->ring != NULL &&
             (n_ring < 1 || n_ring > MM_MAX_RING || a->i_ring < 0 || a->i_ring >= n_ring))
        (void)snprintf(text, cap, "expand: place %d of a ring of %d; places are 0 to %d at most",
                       (int)a->i_ring, n_ring, MM_MAX_RING - 1);
    else if (b != NULL && (n_seq != b->n_seq || n_row != b->n_row || n_out != b->n_out))
        (void)snprintf(text, cap,
                       "expand: views of %d sequences, %d rows and %d outputs for a batch of %d, "
                       "%d and %d: they must be equal",
                       (int)n_seq, (int)n_row, (int)n_out, (int)b->n_seq, (int)b->n_row,
                       (int)b->n_out);
    else if (b == NULL && a->ring == NULL)
        (void)snprintf(text, cap, "expand: neither a batch nor a ring to find it in");
    else if (b == NULL &&
             (n_seq < 1 || n_seq > s->max_seqs || n_row < n_seq || n_row > s->max_rows ||
              n_row % n_seq != 0 || n_out < 0 || n_out > s->max_rows))
        (void)snprintf(text, cap,
                       "expand: a captured step of %d sequences, %d rows and %d outputs; it needs "
                       "1 to %d (max_seqs) sequences of equally many rows, at most %d (max_rows) "
                       "rows and outputs",
                       (int)n_seq, (int)n_row, (int)n_out, (int)s->max_seqs, (int)s->max_rows);
    else
        return false;
    return true;
}
#endif
