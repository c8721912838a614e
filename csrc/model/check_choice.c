/* check_choice.c: choices of a real op against those of ref, and those that are right although they
 * differ: blocks or experts that nearly tie. */
#include <math.h>

#include "csrc/base/half.h"
#include "csrc/model/check_compare.h"

static double act_at(const mm_model *m, const void *p, int64_t i)
{
    return m->shape.act == MM_DTYPE_F32 ? (double)((const float *)p)[i]
                                        : (double)mm_f32_from_bf16(((const uint16_t *)p)[i]);
}

/* ---------------------------------------------------------------- blocks */

/* A block's score, and how far another order of its f32 sums may move it. */
typedef struct block_score {
    double best, noise;
} block_score;

static double e4m3_of(double x)
{
    return (double)mm_f32_from_e4m3(mm_e4m3_from_f32(mm_f32_round_bf16((float)x)));
}

/* Element j of the index query as an operand beside keys of this format (attn_sparse, ops.h). */
static double query_at(const mm_model *m, mm_cache_format format, int64_t j)
{
    const double x = act_at(m, m->check->have.iq, j);
    return format == MM_CACHE_F32    ? x
           : format == MM_CACHE_BF16 ? (double)mm_f32_round_bf16((float)x)
                                     : e4m3_of(x);
}

static double key_at(const mm_plane *p, int64_t row, int32_t j)
{
    const uint8_t *data = p->data + row * mm_cache_row_bytes(p->format, p->dim);
    switch (p->format) {
    case MM_CACHE_F32:
        return (double)((const float *)(const void *)data)[j];
    case MM_CACHE_BF16:
        return (double)mm_f32_from_bf16(((const uint16_t *)(const void *)data)[j]);
    case MM_CACHE_FP8:
        return (double)mm_f32_from_e4m3(data[j]);
    case MM_CACHE_NVFP4:
        break;
    }
    return (double)mm_kv4_operand(
        mm_e2m1_at(data, j), p->scale[row * mm_cache_row_scale_bytes(p->format, p->dim) + j / 16]);
}

/* Of whole block b for row t and index head g. */
static block_score score_of(const mm_model *m, int32_t t, int32_t g, int32_t b)
{
    const struct mm_check_state *k = m->check;
    const mm_plane *p = &k->have_cache.ik;
    const int32_t slot = k->seq.slot[k->seq.row_seq[t]];
    const int64_t page = k->slots.page_table[(int64_t)slot * k->slots.page_stride + b];
    block_score out = {-INFINITY, 0.0};
    for (int32_t i = 0; i < MM_PAGE; i++) {
        double sum = 0.0, size = 0.0;
        for (int32_t j = 0; j < p->dim; j++) {
            const int64_t at = ((int64_t)t * m->shape.n_index_head + g) * p->dim + j;
            const double x = query_at(m, p->format, at) * key_at(p, page * MM_PAGE + i, j);
            sum += x;
            size += fabs(x);
        }
        if (isnan(sum))
            return (block_score){NAN, 0.0};
        out.best = fmax(out.best, sum);
        out.noise = fmax(out.noise, 0x1p-14 * size);
    }
    return out;
}

/* Blocks [n] that ops.h lets a row of block `local` choose: ascending, as many as it may read, the
 * forced ones among them. */
static bool is_choice(const mm_op_shape *s, const int16_t *got, int32_t local)
{
    const int32_t n = s->n_top_block;
    if (got[n - 1] != local)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (got[i] < (i > 0 ? got[i - 1] + 1 : 0) ||
            (i < s->n_init_block && i < n - 1 && got[i] != i))
            return false;
    return true;
}

static bool has_block(const int16_t *ids, int32_t n, int16_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Where the blocks that make the difference nearly tie. A row that reads every block has no choice,
 * and a NaN is none either. */
static bool blocks_tie(const mm_model *m, int32_t t, int32_t g, const int16_t *got,
                       const int16_t *want)
{
    const int32_t n = m->shape.n_top_block, local = m->check->seq.pos[t] / MM_PAGE;
    double least = INFINITY, most = -INFINITY, noise = 0.0;
    if (local + 1 <= n || !is_choice(&m->shape, got, local) ||
        !is_choice(&m->shape, want, local)) /* want: ref met a NaN */
        return false;
    for (int32_t i = 0; i < n; i++) {
        if (!has_block(got, n, want[i])) {
            const block_score s = score_of(m, t, g, want[i]);
            least = fmin(least, s.best);
            noise = fmax(noise, s.noise);
        }
        if (!has_block(want, n, got[i])) {
            const block_score s = score_of(m, t, g, got[i]);
            if (isnan(s.best))
                return false;
            most = fmax(most, s.best);
            noise = fmax(noise, s.noise);
        }
    }
    return least - most <= noise;
}

mm_check_choice mm_check_blocks(mm_model *m, int32_t layer)
{
    struct mm_check_state *k = m->check;
    const int64_t n = m->shape.n_top_block, n_row = k->seq.n_row;
    mm_check_choice found = MM_CHECK_SAME;
    k->n_compared++;
    for (int64_t r = 0; r < m->shape.n_index_head * n_row; r++) {
        const int16_t *got = k->have.blocks + r * n, *want = k->want.blocks + r * n;
        int64_t i = 0;
        while (i < n && got[i] == want[i])
            i++;
        if (i == n)
            continue;
        if (!blocks_tie(m, (int32_t)(r % n_row), (int32_t)(r / n_row), got, want)) {
            mm_check_report(m, "attn_sparse blocks", layer, r * n + i, got[i], want[i]);
            return MM_CHECK_WRONG;
        }
        found = MM_CHECK_TIES;
    }
    return found;
}

/* ---------------------------------------------------------------- experts */

/* Biased probability of an expert, from the real op's h. */
static double expert_score(const mm_model *m, const mm_layer *host, int64_t row, int32_t expert)
{
    const int64_t d = m->config.d_model;
    double logit = 0.0;
    for (int64_t i = 0; i < d; i++)
        logit += act_at(m, m->check->have.h, row * d + i) * (double)host->gate[expert * d + i];
    return 1.0 / (1.0 + exp(-logit)) + (host->bias != NULL ? (double)host->bias[expert] : 0.0);
}

static bool has_expert(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Another choice is right too where the experts that make the difference nearly tie: h has elements
 * that were rounded to the other side. Ids that are no choice at all never are. */
static bool experts_tie(const mm_model *m, const mm_layer *host, int64_t row, const int32_t *got,
                        const int32_t *want)
{
    const int32_t n = m->shape.n_expert_used;
    double least = INFINITY, most = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (got[i] < (i > 0 ? got[i - 1] + 1 : 0) || got[i] >= m->shape.n_expert)
            return false;
    for (int32_t i = 0; i < n; i++) {
        if (!has_expert(got, n, want[i]))
            least = fmin(least, expert_score(m, host, row, want[i]));
        if (!has_expert(want, n, got[i]))
            most = fmax(most, expert_score(m, host, row, got[i]));
    }
    return least - most <= 4e-3;
}

/* Rows with another choice that is right too leave the comparison. */
void mm_check_experts(mm_model *m, const mm_layer *host, int32_t layer)
{
    struct mm_check_state *k = m->check;
    const int64_t n = m->shape.n_expert_used;
    k->n_compared++;
    for (int64_t i = 0; i < k->seq.n_row * n; i++) {
        int32_t *const got = k->have.experts + i / n * n, *const want = k->want.experts + i / n * n;
        if (got[i % n] == want[i % n])
            continue;
        if (m->shape.act == MM_DTYPE_F32 || !experts_tie(m, host, i / n, got, want)) {
            mm_check_report(m, "attn_out experts", layer, i, got[i % n], want[i % n]);
            return;
        }
        memcpy(got, want, (size_t)n * sizeof *got);
        memcpy(k->have.expert_weights + i / n * n, k->want.expert_weights + i / n * n,
               (size_t)n * sizeof(float));
    }
    mm_check_values(m, "attn_out expert weights", layer, k->have.expert_weights,
                    k->want.expert_weights, MM_DTYPE_F32, mm_check_act(m), k->seq.n_row, n);
}
