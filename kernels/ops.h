/* ops.h: the phases of the model, one table per backend. The comment of an op is its contract:
 * shapes, dtypes, where results are rounded. `ref` is the definition; other backends agree with it
 * within tests/tolerances.py, and exactly where a contract says "exact" (choices, ids, codes).
 *
 * Notation. T rows of a step; D d_model; H, G, I query, KV and index heads *of this rank*; d
 * head_dim; V vocabulary. act = the activation dtype (bf16 or f32). r(.) rounds to act (no-op for
 * f32). Unless said otherwise products and sums are f32 and a row's result depends on that row, its
 * sequence's cached keys and the instruction tier only: never on T, on the other rows, on threads
 * or on how a prompt was cut into steps. norm(v, w)_j = v_j * rsqrt(mean(v^2) + eps) * (1 + w_j),
 * all f32, w zero-centred. All arrays are contiguous row-major in the backend's memory. Pointers do
 * not alias unless said. */
#ifndef MM_OPS_H
#define MM_OPS_H
#include "csrc/model/batch.h" /* plain data, the one header of a higher folder that ops see */
#include "csrc/tensor.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What does not change after open. Counts of heads and widths are this rank's share. */
typedef struct mm_op_shape {
    mm_dtype act;
    int32_t d_model, n_head, n_kv_head, head_dim, n_rotary;
    int32_t n_index_head, index_dim;
    int32_t kv_head_first, n_kv_head_total; /* this rank's KV (= index) heads are [first, first +
                                               n_kv_head) */
    int32_t n_top_block, n_init_block;
    int32_t n_expert, n_expert_used;
    int32_t d_expert, d_shared, d_dense;         /* this rank's slice */
    int32_t n_vocab, n_vocab_local, vocab_first; /* lm_head rows of this rank */
    float eps, swiglu_alpha, swiglu_beta, swiglu_limit, routed_scale;
    int32_t never_token[16];
    int32_t max_rows, max_seqs, max_model_len, max_logit_rows; /* limits of one step */
    int32_t invariant; /* batch-invariant mode: a row's bits never depend on the rows beside it. ref
                          and cpu always are; a device may otherwise use other kernels for many
                          rows */
    mm_cache_format kv_format, index_format;
} mm_op_shape;

/* One plane of one layer: [n_page, n_head, MM_PAGE, dim] in `format`, head-major; a row of dim
 * elements is mm_cache_row_bytes of codes in data and mm_cache_row_scale_bytes of e4m3 scales (one
 * per 16) in scale. */
typedef struct mm_plane {
    mm_cache_format format;
    int32_t n_head, dim;
    int64_t n_page;
    uint8_t *data, *scale; /* scale NULL but for NVFP4 */
} mm_plane;
typedef struct mm_layer_cache {
    mm_plane k, v; /* n_head = G, dim = d */
    mm_plane ik;   /* n_head = 1, dim = index_dim; data NULL in a dense layer */
} mm_layer_cache;

/* Sampling settings of a slot; lists live in mm_slots. */
typedef struct mm_slot_params {
    uint64_t seed;
    float temperature, top_p, min_p;
    float repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k, min_tokens;
    int32_t n_bias, n_ban, n_bad, n_logprob_token; /* used entries of the slot's lists */
    int32_t has_mask;
} mm_slot_params;

/* Persistent state per slot, in device memory, changed by a batch's deltas (the rank) and by
 * `sample`. n_slot rows each; M = ceil(V / 32) mask words. The last slot is reserved for padding
 * rows of captured graphs: its page table points at page 0, which is never given out, and its
 * outputs are ignored. n_ctx is written by `expand` (n_ctx_after >= 0) and by `sample` / `verify`
 * with commit (n_ctx_after -1), by nobody else. */
typedef struct mm_slots {
    int32_t n_slot, page_stride, mask_words;
    int32_t mask_lanes;   /* 1; MM_MAX_DECODE_ROWS with speculation */
    int32_t *page_table;  /* [n_slot, page_stride] logical page of each block */
    int32_t *n_ctx;       /* [n_slot] committed positions */
    int32_t *n_emitted;   /* [n_slot] tokens sampled so far: the counter of the random stream */
    int32_t *last_token;  /* [n_slot] */
    int32_t *draft_token; /* [n_slot, MM_MAX_DECODE_ROWS - 1] proposed after last_token; NULL
                             without speculation */
    int32_t *n_draft;     /* [n_slot]; NULL without speculation */
    int32_t *recent;      /* [n_slot, MM_MAX_BAD_LEN] ring of sampled tokens, token i at i %
                             MM_MAX_BAD_LEN */
    mm_slot_params *params;
    int32_t *bias_token;
    float *bias_value;   /* [n_slot, MM_MAX_LIST] */
    int32_t *ban_token;  /* [n_slot, MM_MAX_LIST] masked while n_emitted < min_tokens (end and stop
                            ids) */
    int32_t *bad_offset; /* [n_slot, MM_MAX_LIST + 1] */
    int32_t *bad_token;  /* [n_slot, MM_MAX_BAD_TOKENS] */
    int32_t *logprob_token; /* [n_slot, MM_MAX_LIST] */
    uint32_t *mask;         /* [n_slot, mask_lanes, M] 1 = allowed; read when has_mask */
    uint32_t *in_prompt; /* [n_slot, M] tokens of the prompt; kept only where repetition_penalty !=
                            1 */
    uint16_t *n_out; /* [n_slot, V] times sampled, saturating; kept only where a penalty is on */
} mm_slots;

/* The structure of one step as device arrays. Row t of sequence i (row_start[i] <= t <
 * row_start[i+1]) stands at position pos[t]; positions of a sequence's rows are consecutive, and
 * its earlier keys are already in its pages. */
typedef struct mm_seq_view {
    int32_t n_seq, n_row;
    int32_t max_pos;          /* largest pos + 1 of the step (a bound in captured graphs) */
    bool is_decode;           /* every sequence has at most 8 rows */
    const int32_t *row_start; /* [n_seq + 1] */
    const int32_t *slot;      /* [n_seq] */
    const int32_t *row_seq;   /* [n_row] */
    const int32_t *pos;       /* [n_row] */
    const int32_t *token;     /* [n_row]; -1: the slot's last_token; -1 - i: its draft i = 1..7 */
    const mm_slots *slots;
} mm_seq_view;

/* The output rows of a step as device arrays, [n_out] each; meaning as in mm_batch_out. */
typedef struct mm_out_view {
    int32_t n_out;
    const int32_t *row, *row_slot, *lane, *kind;
    const int32_t *token;     /* SCORE: known next token; SAMPLE: forced id or -1 */
    const int32_t *row_token; /* input token of the row; rows of one slot are adjacent: lane j has
                                 seen row_token[i-j+1 .. i] */
    const int32_t *mode, *n_top, *n_list;
    const int64_t *entry;
    const int64_t *list; /* byte offset in the blob of the ids to score; -1: the slot's list */
    const void *blob;    /* the batch in backend memory */
} mm_out_view;

typedef struct mm_op_context {
    mm_stream *stream;
    const mm_op_shape *shape;
    mm_comm *comm;
    const float *rope; /* [max_model_len, n_rotary]: n_rotary/2 cosines, then n_rotary/2 sines;
                          float64 maths, rounded once */
} mm_op_context;

/* Applies the batch's slots, then its masks. A slot that begins gets its history: recent, n_out,
 * last_token. plan is the host's copy of the header, blob the whole batch in backend memory (the
 * same pointer on host backends). Not in a captured step. */
typedef struct mm_begin_args {
    const mm_batch *plan;
    const void *blob;
    const mm_slots *slots; /* state behind the pointers changes */
} mm_begin_args;

/* Where captured steps find their batches. Each step in flight has a place i: its batch is built at
 * batch[i] and its results are sent to result[i]; steps take the places in turn, and `*turn` is
 * that of the next one. */
#define MM_MAX_RING 4
typedef struct mm_ring {
    int32_t n;                      /* places */
    const void *batch[MM_MAX_RING]; /* of alloc_host, n_bytes each */
    void *result[MM_MAX_RING];      /* of alloc_host */
    int64_t n_bytes;
    int32_t *turn;    /* backend memory */
    void **result_at; /* backend memory: of the step that runs, for download_to */
} mm_ring;

/* Starts the rows: applies the batch's pages and expands its plan into the arrays of the two views
 * (sized max_seqs + 1, max_rows, max_rows), then *ring->turn is that of the step after this one. A
 * sequence that stands at its slot's n_ctx takes it before n_ctx moves on. Two forms:
 * plan and blob are given (as in `begin`): the views have its n_seq, n_row and n_out.
 * Neither is (a captured step): the batch is ring->batch[*ring->turn] when the op runs, a decode
 * step of at most the views' n_seq sequences, of n_row / n_seq rows each. What it lacks is filled
 * up: sequences of the reserved slot, positions 0.., token 0, each with a greedy SAMPLE output of
 * its last row, as far as the views' n_out goes; *ring->result_at = ring->result[turn]. */
typedef struct mm_expand_args {
    const mm_batch *plan;
    const void *blob;
    const mm_ring *ring; /* NULL: no step is captured */
    int32_t i_ring;      /* place of a given batch */
    const mm_slots *slots;
    const mm_seq_view *seq; /* the arrays behind the pointers are written */
    const mm_out_view *out;
    int64_t *n_read; /* [2] counters of the step, set to 0; or NULL */
} mm_expand_args;

/* x = r(embedding row of the token), h = r(norm(x, norm_w)). A row with row_media[t] >= 0 takes
 * media[row_media[t]] instead of its token's embedding. embed is F32 or BF16, all V rows on every
 * rank. x, h [T, D] act. */
typedef struct mm_embed_args {
    const mm_weight *embed;
    const float *norm_w;      /* [D] */
    const void *media;        /* [*, D] act, or NULL */
    const int32_t *row_media; /* [T], or NULL */
    void *x, *h;
} mm_embed_args;

typedef struct mm_attn_weights {
    /* q [H*d, D], k, v [G*d, D], iq [I*di, D], ik [di, D], o [D, H*d] */
    mm_weight q, k, v, iq, ik, o;
    mm_weight qkv; /* a backend's packing of q|k|v|iq|ik; format NONE when unused */
    /* [d], [di]; f32 copies of the stored weights */
    const float *q_norm, *k_norm, *iq_norm, *ik_norm;
} mm_attn_weights;

/* q|k|v|iq|ik = r(h W^T); then for every head vector of q, k, iq, ik: f32 norm, rotation of the
 * first n_rotary dims (pairs j, j + n_rotary/2; angle of the row's position), one rounding r. v is
 * used as projected. k, v, ik go into the pages of their positions in the plane's format: F32 as
 * is; BF16 bf16(x); FP8 e4m3(bf16(x)) saturating; NVFP4 the KV4 rule of 16-blocks over bf16(x)
 *   (scale s = e4m3(max(max(amax, 1e-12)/6, 2^-9)), code = e2m1(x / s), no negative zero; a NaN in
 * the block: scale 0x7F). NaN is never laundered: it stays NaN in every format. k_out, v_out [T, G,
 * d] act, both not NULL: k and v are written there instead of into the pages (draft blocks). q [T,
 * H, d], iq [T, I, di] act out; q NULL: only k and v are wanted. A dense layer has no iq, ik
 * (formats NONE, iq NULL). */
typedef struct mm_attn_in_args {
    const mm_attn_weights *w;
    const mm_layer_cache *cache;
    const void *h; /* [T, D] act */
    void *q, *iq;
    void *k_out, *v_out;
} mm_attn_in_args;

/* For row t at position p, index head g (= KV head g): L = p/128; if L + 1 <= n_top_block every
 * block 0..L is read; else score_b = max over the 128 keys of block b < L of dot(iq[t,g], ik[key]),
 * the blocks < n_init_block and L are forced, the rest are the best by (score descending, block
 * ascending); -0 equals +0. NaN score: MM_E_INVALID is not raised; the row's output is NaN, which
 * ends its request at sampling. Operands: F32 iq, ik as stored; BF16 bf16(iq); FP8 iq and NVFP4 iq
 * = e4m3(bf16(iq)); NVFP4 ik = e4m3(e2m1 * scale). Then for each query head a of group g: keys =
 * positions <= p of the chosen blocks, o[t,a] = r(softmax(q . k / sqrt(d)) . v), formed as page
 * partials merged in ascending page order: per page m = max s, P = exp(s - m), den = sum P (P not
 * rounded), acc = sum P~ v; merge rescales by exp(m_old - m_new). Operands: F32 none rounded; BF16,
 * FP8: q~ = bf16(q), P~ = bf16(P); NVFP4: q~ = e4m3(bf16(q)), k, v = e4m3(e2m1 * scale), P' = 448
 * P, P~ = e4m3(P'), den = sum P', o = acc / max(den, 1). blocks [I, T, n_top_block] i16 ascending,
 * -1 filled: written when force is false (may be NULL), read instead of choosing when force is
 * true. n_read (may be NULL): [2] i64 counters, += blocks read and blocks visible over rows and
 * heads. o [T, H, d] act out. */
typedef struct mm_attn_sparse_args {
    const mm_layer_cache *cache;
    const void *q, *iq;
    int16_t *blocks;
    bool force;
    int64_t *n_read;
    void *o;
} mm_attn_sparse_args;

/* Attention over every visible position, same page partials and operands as attn_sparse.
 * window 0: all; w > 0: keys with position > p - w. extra_k, extra_v [T, G, d] act (or NULL): keys
 * of this step that are not in the pages; then pages hold positions < n_ctx[i] only, and every row
 * of sequence i sees all extra rows of i (bidirectional block) at their positions, as the last
 * partial. o [T, H, d] act out. */
typedef struct mm_attn_dense_args {
    const mm_layer_cache *cache;
    const void *q;
    int32_t window;
    const void *extra_k, *extra_v;
    const int32_t *n_ctx; /* [n_seq]; NULL without extra rows */
    void *o;
} mm_attn_dense_args;

/* End of a residual branch, the same in attn_out, mlp and moe: y the branch's f32 result, R = r(y)
 * (world > 1: all_reduce(r(y))), s = x + R in f32; x = r(s); h = r(norm(s, norm_w)): the norm reads
 * the unrounded sum. Here y = o Wo^T. Router (gate not NULL): logit_e = dot(h, gate_e), p =
 * 1/(1+exp(-logit)), the n_expert_used best by (p + bias descending, id ascending); experts
 * ascending by id; weight = p_e / sum of the chosen p. force: experts are given, weights computed.
 * A NaN logit: experts 0..k-1, all weights NaN, which ends the request at sampling.
 * In place: x. h may not alias o. */
typedef struct mm_attn_out_args {
    const mm_weight *wo;
    const void *o;       /* [T, H*d] act */
    void *x;             /* [T, D] act, in and out */
    const float *norm_w; /* [D] */
    void *h;             /* [T, D] act out */
    const float *gate;   /* [n_expert, D] f32, or NULL */
    const float *bias;   /* [n_expert] f32, or NULL */
    int32_t *experts;    /* [T, n_expert_used] */
    float *weights;      /* [T, n_expert_used] */
    bool force;
} mm_attn_out_args;

/* Dense MLP: g = h Wg^T, u = h Wu^T stay f32; g = min(g, limit), u = clamp(u, -limit, limit);
 * a = r((u + beta) * g * sigmoid(alpha * g)); y = a Wd^T; end of the branch as in attn_out.
 * h_out may be h. */
typedef struct mm_mlp_args {
    const mm_weight *gate, *up, *down; /* [F, D], [F, D], [D, F] */
    mm_weight gate_up;                 /* a backend's packing, or format NONE */
    const void *h;
    void *x;
    const float *norm_w;
    void *h_out;
} mm_mlp_args;

/* Experts e in [first, last): y_e = mlp(h) with w1 gate, w3 up, w2 down (each its own global
 * scale); acc[t] += routed_scale * weight_e * y_e in ascending e (f32), then the shared expert's
 * output; the last piece (finish) ends the branch as in attn_out with y = acc. accumulate false:
 * acc starts at 0. shared NULL: none in this piece. h_out may be h. */
typedef struct mm_expert_weights {
    const mm_weight *w1, *w3, *w2;   /* [n_expert] each */
    mm_weight packed_w13, packed_w2; /* a backend's packing of all experts, or format NONE */
    mm_weight shared_gate, shared_up, shared_down; /* format NONE without a shared expert */
    mm_weight shared_gate_up; /* a backend's packing of shared_gate and shared_up, or format NONE */
} mm_expert_weights;
typedef struct mm_moe_args {
    const mm_expert_weights *w;
    int32_t first, last;
    bool with_shared, accumulate, finish;
    const void *h;
    const int32_t *experts;
    const float *weights; /* [T, n_expert_used] */
    float *acc;           /* [T, D] f32 */
    void *x;
    const float *norm_w;
    void *h_out;
} mm_moe_args;

/* logits[i] = h[row[i]] W^T, f32, [n_out, V] (all-gathered over ranks); n_out <= max_logit_rows. */
typedef struct mm_head_args {
    const mm_weight *w;
    const void *h;
    const int32_t *row; /* [n_out] */
    int32_t n_out;
    float *logits;
} mm_head_args;

/* Per output row i (slot row_slot[i], lane[i] = rows before it in the same slot and step, 0 in
 * plain decoding): work = logits; masked to -inf: slot mask, never_token, bad words (last token
 * when `recent` matches the rest), ban_token while n_emitted + lane < min_tokens; += bias;
 * repetition (in_prompt or n_out > 0), frequency, presence; greedy when temperature < 1e-5: the
 * largest, ties to the lowest id; else work /= temperature, min_p, top_k (every value >= the k-th
 * largest), top_p (descending, ties by id; the smallest set whose mass reaches top_p, renormalised
 * after min_p and top_k), draw by inverse CDF in id order over blocks of 1024 ids: inside a block
 * lane j (0..31) adds weights j, j+32, ... in order, then an xor butterfly 16, 8, 4, 2, 1; block
 * sums are added in order; the threshold is u * total; inside the block found the ids are added in
 * order; the id has weight > 0. Philox4x32-10: key {lo32(seed), hi32(seed)}, counter {lo32(n),
 * hi32(n), lane, stream}, n = the slot's n_emitted (not + lane); u = (out[0] + 0.5) * 2^-32 in
 * double. Forced ids (token >= 0) are unmasked before anything is filtered and replace the drawn
 * id. work [n_out, V] f32 out: processed logits, -inf where filtered (greedy: one-hot 0 and -inf).
 * token [n_out]; flag [n_out]: 0 good, 1 NaN in logits, 2 nothing allowed: token[i] is then -1, the
 * slot's last_token becomes 0 (so that a step in flight stays in bounds) and the request is ended
 * at commit. commit (plain decoding, one row a slot): last_token, n_emitted, recent, n_out of the
 * slot go on, and n_ctx where n_ctx_after is -1. */
enum { MM_RNG_TARGET = 0, MM_RNG_DRAFT = 1, MM_RNG_ACCEPT = 2, MM_RNG_RESIDUAL = 3 };
enum { MM_SAMPLE_OK = 0, MM_SAMPLE_NAN = 1, MM_SAMPLE_EMPTY = 2 };
typedef struct mm_sample_args {
    const float *logits;   /* [n, V] of the output rows [first, first + n) of the view; rows that do
                              not SAMPLE are skipped */
    float *work;           /* [n, V] */
    const mm_slots *slots; /* state behind the pointers changes */
    const mm_out_view *out;
    int32_t first, n;
    bool commit;
    int32_t *token; /* [n_out] of the view: entries first .. first + n - 1 are written */
    uint8_t *flag;
    int32_t draw;   /* mm_draw: what is known of every SAMPLE row; saves work, changes nothing */
    bool work_ends; /* nobody reads `work` afterwards: rows that do not need it need not write it */
} mm_sample_args;

/* Log-probabilities of row i under its mode (mm_logprob_mode per row): RAW log_softmax(logits),
 * TEMPERED log_softmax(logits / T) (T < 1e-5: as RAW), PROCESSED log_softmax(work), LOGIT_* the
 * values themselves. Entries at [entry[i] ...]: token[i], then the n_top[i] best (value descending,
 * id ascending), then n_list[i] ids (of the blob at list[i], or the slot's list); each with id,
 * value and rank (1 + number of ids that come before it in that order). n_top[i] < 0: no entries.
 * chosen: log_softmax(work)[token] of SAMPLE rows. */
typedef struct mm_logprob_args {
    const float *logits, *work; /* [n, V]; work may be NULL when no row needs it */
    const mm_slots *slots;
    const mm_out_view *out;
    int32_t first, n;     /* output rows [first, first + n) */
    const int32_t *token; /* [n_out] of the view: what `sample` wrote; SCORE rows use the view's
                             token */
    uint8_t *flag;        /* SCORE and TRACE rows: MM_SAMPLE_NAN when their logits hold a NaN, else
                             MM_SAMPLE_OK */
    int32_t *out_id, *out_rank; /* [n_entry] of the step */
    float *out_value;
    float *chosen; /* [n_out] of the view, or NULL */
} mm_logprob_args;

/* Accept or reject drafts on processed logits; filled in by speculation. */
typedef struct mm_verify_args mm_verify_args;
typedef struct mm_vision_ops mm_vision_ops;

/* Copies n_tok[i] leading positions of page src[i] to dst[i] in every layer's planes. Pairs do not
 * overlap. */
typedef struct mm_copy_pages_args {
    const mm_layer_cache *layer;
    int32_t n_layer, n_copy;
    const int32_t *src, *dst, *n_tok;
} mm_copy_pages_args;

/* out[i] = in[row[i]]; rows of n_bytes. */
typedef struct mm_gather_args {
    const void *in;
    const int32_t *row;
    int32_t n_row;
    int64_t n_bytes;
    void *out;
} mm_gather_args;

typedef struct mm_layer {
    bool is_sparse, is_moe;
    mm_attn_weights attn;
    const float *input_norm, *post_norm; /* [D], backend memory */
    const float *gate, *bias;            /* router, f32, backend memory; NULL in a dense layer */
    mm_expert_weights expert;
    mm_weight mlp_gate, mlp_up, mlp_down, mlp_gate_up;
} mm_layer;

/* Activations of a step, backend memory. */
typedef struct mm_buffers {
    void *x, *h;           /* [max_rows, D] act */
    void *q, *iq, *o;      /* [max_rows, H, d], [max_rows, I, di], [max_rows, H, d] act */
    int32_t *experts;      /* [max_rows, n_expert_used] */
    float *expert_weights; /* [max_rows, n_expert_used] */
    float *acc;            /* [max_rows, D] */
    int16_t *blocks;       /* [I, max_rows, n_top_block]: traces only */
    int64_t *n_read;       /* [2] blocks read, blocks visible */
} mm_buffers;

/* Weights in a backend's own order. `pack` writes n source matrices (checkpoint order, host or
 * mapped memory) into dst (backend memory of pack_bytes) and describes it in out; callable again
 * after open for changed weights. pack NULL: checkpoint order is used. */
typedef enum mm_pack {
    MM_PACK_QKV = 0,
    MM_PACK_LINEAR,
    MM_PACK_GATE_UP,
    MM_PACK_EXPERTS_W13,
    MM_PACK_EXPERTS_W2
} mm_pack;

struct mm_ops {
    size_t (*pack_bytes)(const mm_op_shape *shape, mm_pack kind, const mm_weight *src, int32_t n);
    mm_status (*pack)(const mm_op_context *c, mm_pack kind, const mm_weight *src, int32_t n,
                      void *dst, mm_weight *out);
    /* Bytes of stream scratch that any op of this table may need for the shape. */
    size_t (*scratch_bytes)(const mm_op_shape *shape, int32_t n_thread);
    /* MM_E_UNSUPPORTED naming the size that this backend cannot take. */
    mm_status (*check_shape)(const mm_backend *b, const mm_op_shape *shape);
    mm_status (*begin)(const mm_op_context *c, const mm_begin_args *a);
    mm_status (*expand)(const mm_op_context *c, const mm_expand_args *a);
    mm_status (*embed)(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a);
    mm_status (*attn_in)(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a);
    mm_status (*attn_sparse)(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_sparse_args *a);
    mm_status (*attn_dense)(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_dense_args *a);
    mm_status (*attn_out)(const mm_op_context *c, const mm_seq_view *seq,
                          const mm_attn_out_args *a);
    mm_status (*mlp)(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a);
    mm_status (*moe)(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a);
    mm_status (*head)(const mm_op_context *c, const mm_head_args *a);
    mm_status (*sample)(const mm_op_context *c, const mm_sample_args *a);
    mm_status (*logprobs)(const mm_op_context *c, const mm_logprob_args *a);
    mm_status (*copy_pages)(const mm_op_context *c, const mm_copy_pages_args *a);
    mm_status (*gather_rows)(const mm_op_context *c, const mm_gather_args *a);
    mm_status (*verify)(const mm_op_context *c, const mm_verify_args *a); /* NULL: no speculation */
    const mm_vision_ops *vision;                                          /* NULL: no images */
    /* Optional: layers [first, first + n) at once in a captured decode step; NULL = composed by
     * forward.c. */
    mm_status (*decode_layers)(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_layer *layer, const mm_layer_cache *cache,
                               const mm_buffers *buf, int32_t first, int32_t n);
};

extern const mm_ops mm_ref_ops;

#ifdef __cplusplus
}
#endif
#endif
