/* cpu.h: the seams inside the cpu backend. A *tier* is an instruction set, chosen once at open; its
 * table of kernels (mm_cpu_linear_kernels, mm_cpu_math_kernels) works on rows, panels and pages and
 * knows no threads. The ops (cpu_<op>.c) cut a step into items of the thread pool and call the
 * kernels; they know no instructions.
 *
 * Every kernel computes one output by a sequence of operations that depends on the shapes only. So
 * results do not depend on threads, on the rows computed together or on how many there are. */
#ifndef MM_CPU_H
#define MM_CPU_H
#include "csrc/base/half.h"
#include "kernels/host.h"

/* How y = x W^T is computed: by the weight's format and by what is multiplied: f32 lanes (x
 * widened to f32), or pairs of bf16 ("dot": two products per lane and instruction; x is bf16 as
 * it stands). */
typedef enum mm_cpu_kind {
    MM_CPU_F32 = 0,
    MM_CPU_BF16,
    MM_CPU_MXFP8,
    MM_CPU_NVFP4,
    MM_CPU_BF16_DOT,
    MM_CPU_MXFP8_DOT,
    MM_CPU_NVFP4_DOT,
    MM_CPU_N_KIND
} mm_cpu_kind;

/* Elements of x that one step of a kernel takes; prepared rows are padded with zeros to a multiple
 * of MM_CPU_PAD. */
#define MM_CPU_PAD 128
#define MM_CPU_PANEL 16 /* rows of W decoded together when several rows of x use them */

/* Running softmax state of n_head query heads of one row (ops.h: page partials): acc
 * [n_head, dim]. */
typedef struct mm_cpu_attn_state {
    float *max, *den, *acc;
} mm_cpu_attn_state;

typedef struct mm_cpu_linear_kernels {
    /* One row x [k] in the order the kernel reads, padded: f32, or bf16 for the dot kinds (then act
     * is BF16). */
    void (*prepare)(mm_cpu_kind kind, mm_dtype act, const void *x, int64_t k, void *out);
    /* y[i] = dot(x, w_{first + i}) / global_scale, i < n; x prepared. */
    void (*gemv)(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n, const void *x,
                 float *y);
    /* Rows [first, first + n), n <= MM_CPU_PANEL, decoded; a row takes mm_cpu_panel_bytes. */
    void (*panel)(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n, void *panel);
    /* y[r * y_stride + i] = dot(x[r], panel row i) / global_scale: the same bits as gemv. Rows of
     * the panel are `stride` bytes apart. */
    void (*tile)(mm_cpu_kind kind, const void *panel, int64_t stride, int64_t n, int64_t k,
                 const void *const *x, int64_t m, float global_scale, float *y, int64_t y_stride);
} mm_cpu_linear_kernels;

typedef struct mm_cpu_math_kernels {
    void (*to_f32)(mm_dtype act, const void *src, int64_t n, float *dst);
    void (*from_f32)(mm_dtype act, const float *src, int64_t n, void *dst); /* rounds */
    void (*round)(mm_dtype act, float *v, int64_t n);
    /* out_j = v_j * rsqrt(mean(v^2) + eps) * (1 + w_j); out may be v. */
    void (*norm)(const float *v, const float *w, int64_t n, float eps, float *out);
    /* out = x + y: x act; y f32, already rounded to act. */
    void (*add)(mm_dtype act, const void *x, const float *y, int64_t n, float *out);
    /* (u + beta) * g * sigmoid(alpha g) with g, u clamped (ops.h, mlp), rounded to act. */
    void (*swiglu)(const mm_op_shape *s, const float *g, const float *u, int64_t n, void *out);
    /* y += a x: a product, then a sum */
    void (*axpy)(float a, const float *x, int64_t n, float *y);
    double (*sum_exp)(const float *v, int64_t n, float max, float scale); /* sum of exp(scale (v -
                                                                             max)) */
    bool (*has_nan)(const float *v, int64_t n);
    float (*max)(const float *v, int64_t n); /* no NaN in v; -inf for none */
    /* 1 + how many ids come before `id` by (value descending, id ascending) */
    int32_t (*rank)(const float *v, int32_t n, int32_t id);

    /* Rows [0, n) of a cache page as operands (ops.h, attn_sparse), padded with zeros to 16 rows:
     * natural order [n, dim], and transposed [dim, MM_PAGE]; tmp: scratch [16, dim]. */
    void (*cache_rows)(const mm_plane *p, int64_t page, int32_t head, int32_t n, float *out);
    void (*cache_columns)(const mm_plane *p, int64_t page, int32_t head, int32_t n, float *out,
                          float *tmp);
    void (*round_query)(mm_cache_format format, bool is_index, float *q, int64_t n);
    /* Merges keys [first, last) of a page into the state of n_head heads; q [n_head, dim], kt [dim,
     * MM_PAGE], v [*, dim]; p: scratch [n_head, MM_PAGE], part: scratch [n_head, dim]. */
    void (*attend)(mm_cache_format format, int32_t dim, int32_t n_head, const float *q,
                   const float *kt, const float *v, int32_t first, int32_t last,
                   const mm_cpu_attn_state *s, float *p, float *part);
    /* Merges state b into a. */
    void (*merge)(int32_t dim, int32_t n_head, const mm_cpu_attn_state *a,
                  const mm_cpu_attn_state *b);
    /* acc becomes the output. */
    void (*finish)(mm_cache_format format, int32_t dim, int32_t n_head, const mm_cpu_attn_state *s);
    /* score[i] = max over keys < n of dot(q_i, key), NaN if one is; q [n_query, dim], kt [dim,
     * MM_PAGE]; p: scratch [n_query, MM_PAGE]. */
    void (*index_score)(int32_t dim, int32_t n_query, const float *q, const float *kt, int32_t n,
                        float *score, float *p);
} mm_cpu_math_kernels;

typedef struct mm_cpu_isa {
    const char *name;
    bool has_dot; /* the *_DOT kinds exist */
    const mm_cpu_linear_kernels *linear;
    const mm_cpu_math_kernels *math;
} mm_cpu_isa;

extern const mm_cpu_linear_kernels mm_cpu_linear_scalar;
extern const mm_cpu_math_kernels mm_cpu_math_scalar;
#if defined(__x86_64__)
extern const mm_cpu_linear_kernels mm_cpu_linear_avx2, mm_cpu_linear_avx512,
    mm_cpu_linear_avx512_bf16;
extern const mm_cpu_math_kernels mm_cpu_math_avx2, mm_cpu_math_avx512;
#endif
extern const uint32_t mm_cpu_e8m0_bits[256]; /* f32 of every e8m0 code */

/* The best tier this processor runs that is not above `limit` ("scalar", "avx2", "avx512"; NULL:
 * any). */
mm_status mm_cpu_isa_find(const char *limit, const mm_cpu_isa **out);

typedef struct mm_cpu_backend_state {
    mm_host_backend host; /* first */
    const mm_cpu_isa *isa;
} mm_cpu_backend_state;
extern const mm_ops mm_cpu_ops;
/* As mm_cpu_backend, with a limit on the tier instead of MM_TIER. */
mm_status mm_cpu_backend_open(mm_backend **out, const mm_backend_options *opt, const char *tier);

/* What an op works with. */
typedef struct mm_cpu_run {
    const mm_op_context *c;
    const mm_op_shape *s;
    const mm_cpu_isa *isa;
    mm_pool *pool;
    int n_thread;
} mm_cpu_run;
mm_cpu_run mm_cpu_start(const mm_op_context *c); /* forgets the scratch of the op before */
/* The pool for a loop of about `work` multiply-adds in all; NULL, the caller alone, where waking
 * the others would take longer than the loop. */
static inline mm_pool *mm_cpu_pool(const mm_cpu_run *r, int64_t work)
{
    return work < 1 << 17 ? NULL : r->pool;
}
mm_status mm_cpu_scratch(const mm_cpu_run *r, size_t n_bytes, void **out);
mm_status mm_cpu_floats(const mm_cpu_run *r, int64_t n, float **out);
static inline int64_t mm_cpu_act_size(mm_dtype act)
{
    return act == MM_DTYPE_BF16 ? 2 : 4;
}

/* ---------------------------------------------------------------- linear (cpu_linear.c) */

mm_cpu_kind mm_cpu_kind_of(const mm_cpu_isa *isa, mm_weight_format format, mm_dtype act);
size_t mm_cpu_prepared_bytes(mm_cpu_kind kind, int64_t k);
size_t mm_cpu_panel_bytes(mm_cpu_kind kind, int64_t k);
mm_status mm_cpu_check_weight(const mm_weight *w, const char *name);

/* y [m rows of y_stride] = x W^T for prepared rows x[0 .. m). */
typedef struct mm_cpu_job {
    const mm_weight *w;
    mm_cpu_kind kind;
    const void *const *x;
    int64_t m;
    float *y;
    int64_t y_stride;
    int64_t item; /* filled in: items of the jobs before */
} mm_cpu_job;
/* Runs the jobs over the pool; takes panel memory from the scratch and gives it back. */
mm_status mm_cpu_linear(const mm_cpu_run *r, mm_cpu_job *job, int32_t n_job);
size_t mm_cpu_linear_scratch(int64_t max_k, int32_t n_thread);
/* Activation rows row[i] (row NULL: rows first + i) of x [*, k], i < n, prepared once per kind that
 * is asked for. */
typedef struct mm_cpu_rows {
    const void *x;
    const int32_t *row;
    int64_t first, n, k;
    const void **at[MM_CPU_N_KIND]; /* [n] pointers each, NULL until asked for */
} mm_cpu_rows;
mm_status mm_cpu_prepare(const mm_cpu_run *r, mm_cpu_rows *rows, mm_cpu_kind kind);
size_t mm_cpu_prepare_scratch(int64_t n, int64_t k, int32_t n_kind);

/* ---------------------------------------------------------------- ops */

#define MM_CPU_CHUNK 256 /* rows of a step that linear ops take at a time */

/* End of a residual branch (ops.h, attn_out) of rows [0, n): y [n, D] f32 is overwritten. */
mm_status mm_cpu_branch_end(const mm_cpu_run *r, int64_t n, float *y, void *x, const float *norm_w,
                            void *h);
size_t mm_cpu_branch_end_scratch(const mm_op_shape *s, int64_t n);

mm_status mm_cpu_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a);
mm_status mm_cpu_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a);
mm_status mm_cpu_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_sparse_args *a);
mm_status mm_cpu_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_dense_args *a);
mm_status mm_cpu_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                          const mm_attn_out_args *a);
mm_status mm_cpu_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a);
mm_status mm_cpu_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a);
mm_status mm_cpu_head(const mm_op_context *c, const mm_head_args *a);
mm_status mm_cpu_sample(const mm_op_context *c, const mm_sample_args *a);
mm_status mm_cpu_logprobs(const mm_op_context *c, const mm_logprob_args *a);

size_t mm_cpu_attn_in_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_attention_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_attn_out_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_mlp_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_moe_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_head_scratch(const mm_op_shape *s, int32_t n_thread);
size_t mm_cpu_sample_scratch(const mm_op_shape *s, int32_t n_thread);

/* Block scores and choice for rows (cpu_index.c): blocks [I, n_row of the step, n_top_block];
 * is_bad[g * n_row + t] where a score was NaN. */
mm_status mm_cpu_choose_blocks(const mm_cpu_run *r, const mm_seq_view *seq, const mm_plane *ik,
                               const void *iq, int16_t *blocks, uint8_t *is_bad);
size_t mm_cpu_index_scratch(const mm_op_shape *s, int32_t n_thread);
#endif
