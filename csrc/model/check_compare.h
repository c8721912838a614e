/* check_compare.h: what MM_CHECK=1 holds, and how it compares: the inside of check*.c. A result is
 * right where a different order of f32 sums, or one rounding border, explains the difference. */
#ifndef MM_MODEL_CHECK_COMPARE_H
#define MM_MODEL_CHECK_COMPARE_H
#include "csrc/model/check.h"

struct mm_check_state {
    mm_ops ops; /* the table that m->ops points to */
    const mm_ops *real;
    mm_backend *ref;
    mm_op_context ctx; /* ref's stream, the model's shape, a host copy of rope */
    mm_seq_view seq;   /* host copies: the step's rows */
    mm_slots slots;    /* page table and tokens only */
    mm_buffers want;   /* what ref makes, and updates in place */
    mm_buffers have;   /* copies of the real op's inputs, then of its results */
    mm_layer_cache want_cache, have_cache; /* one layer's worth; want: f32, before it is stored */
    float *want_logits, *have_logits;
    int32_t *row;                     /* [max_logit_rows] */
    mm_slots state;                   /* sampling state of the slots; no page table */
    mm_out_view out;                  /* the step's outputs */
    int32_t *want_token, *have_token; /* [max_rows], as the next two pairs */
    uint8_t *want_flag, *have_flag;
    float *want_chosen, *have_chosen;
    uint8_t *one;      /* one slot's row of its longest array */
    uint8_t *expanded; /* the longest array that `expand` writes */
    void *block[96];   /* all of the above memory */
    int n_block;
    int64_t n_compared, n_bad;
};

/* Squared error against squared norm, of all rows and of each; the worst element against the
 * largest. */
typedef struct mm_check_bounds {
    double all, row, worst;
} mm_check_bounds;
extern const mm_check_bounds mm_check_sums;             /* f32 sums in another order */
const mm_check_bounds *mm_check_act(const mm_model *m); /* what is computed from activations */

/* The context of every op of a model is the one inside it. */
mm_model *mm_check_model(const mm_op_context *c);
/* Host memory that lives as long as k. */
mm_status mm_check_alloc(struct mm_check_state *k, void **out, int64_t n_bytes);
/* Backend memory as it is when everything queued before has run. */
mm_status mm_check_pull(mm_model *m, void *dst, const void *src, int64_t n_bytes);

/* Counts a difference; the first one is logged. */
void mm_check_report(mm_model *m, const char *what, int32_t layer, int64_t at, double got,
                     double want);
/* got, want [n_row, n_col] */
void mm_check_values(mm_model *m, const char *what, int32_t layer, const void *got,
                     const void *want, mm_dtype dtype, const mm_check_bounds *limit, int64_t n_row,
                     int64_t n_col);
/* Cache rows that the step stored, in the model's format; want: what ref computes, in MM_CACHE_F32;
 * n_rotary: leading values of a head that rotate. */
void mm_check_plane(mm_model *m, const char *what, int32_t layer, const mm_plane *got,
                    const mm_plane *want, int32_t n_rotary);
/* Chosen blocks of every row and index head. TIES: other blocks, as good; what follows from them is
 * another result. */
typedef enum mm_check_choice { MM_CHECK_SAME, MM_CHECK_TIES, MM_CHECK_WRONG } mm_check_choice;
mm_check_choice mm_check_blocks(mm_model *m, int32_t layer);
/* Chosen experts and their weights; host: the layer's router in host memory. */
void mm_check_experts(mm_model *m, const mm_layer *host, int32_t layer);

/* The op that starts a step, in mm_ops; open last. */
mm_status mm_check_expand_open(mm_model *m);
mm_status mm_check_expand(const mm_op_context *c, const mm_expand_args *a);

/* The ops that end a step; open after the rest. */
mm_status mm_check_sample_open(mm_model *m);
mm_status mm_check_sample(const mm_op_context *c, const mm_sample_args *a);
mm_status mm_check_logprobs(const mm_op_context *c, const mm_logprob_args *a);
#endif
