/* ref_index.c: block scores from index queries and index keys, and the choice of blocks per row and
 * index head. */
#include "kernels/ref/ref.h"

/* Largest of the scores, NaN when one is: a broken key must end its request, not lose quietly. */
static float max_or_nan(float a, float b)
{
    return isnan(a) || b <= a ? a : b;
}

void mm_ref_index_scores(const mm_op_shape *s, const mm_seq_view *seq, const mm_plane *ik,
                         int32_t i_seq, int32_t t, int32_t n_row, const float *iq, int32_t n_block,
                         float *score, float *key)
{
    const int32_t n_head = s->n_index_head, dim = s->index_dim;
    const int32_t last = seq->pos[t + n_row - 1];
    for (int32_t b = 0; b < n_block; b++) {
        const int32_t first = b * MM_PAGE;
        const int32_t n_key = (int32_t)mm_min_i64(MM_PAGE, last + 1 - first);
        mm_ref_plane_read(ik, mm_ref_page(seq, i_seq, b), 0, n_key, key);
        for (int32_t r = 0; r < n_row; r++) {
            const int32_t n_seen = (int32_t)mm_min_i64(n_key, seq->pos[t + r] + 1 - first);
            for (int32_t g = 0; g < n_head; g++) {
                const float *q = iq + ((int64_t)r * n_head + g) * dim;
                float best = -INFINITY;
                for (int32_t i = 0; i < n_seen; i++)
                    best = max_or_nan(best, mm_ref_dot(q, key + (int64_t)i * dim, dim));
                score[((int64_t)r * n_head + g) * n_block + b] = best;
            }
        }
    }
}

bool mm_ref_choose_blocks(const mm_op_shape *s, const float *score, int32_t local, int16_t *out)
{
    const int32_t k = s->n_top_block;
    int32_t n = 0;
    for (int32_t i = 0; i < k; i++)
        out[i] = -1;
    if (local + 1 <= k) {
        for (int32_t b = 0; b <= local; b++)
            out[b] = (int16_t)b;
        return true;
    }
    for (int32_t b = 0; b < local; b++) {
        if (isnan(score[b])) {
            out[0] = (int16_t)local;
            return false;
        }
    }
    /* The best k - 1 blocks below the local one, kept sorted by rank. The forced blocks come first
     * in id order, and no score passes one. */
    const int32_t n_free = k - 1;
    for (int32_t b = 0; b < local && n_free > 0; b++) {
        int32_t i = n;
        while (i > 0 && out[i - 1] >= s->n_init_block && score[b] > score[out[i - 1]])
            i--;
        if (i == n_free)
            continue;
        if (n < n_free)
            n++;
        for (int32_t j = n - 1; j > i; j--)
            out[j] = out[j - 1];
        out[i] = (int16_t)b;
    }
    for (int32_t i = 1; i < n; i++) { /* ascending by id */
        const int16_t b = out[i];
        int32_t j = i;
        for (; j > 0 && out[j - 1] > b; j--)
            out[j] = out[j - 1];
        out[j] = b;
    }
    out[n] = (int16_t)local;
    return true;
}
