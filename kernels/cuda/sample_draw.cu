/* sample_draw.cu: the last kernel of the sampler: filtered ids become -inf, weights are summed in
 * the normative order (a warp sums 1024 ids: lane by lane, then a butterfly), and the last block of
 * a row draws: block sums added in order, then the ids of the block found, in order. */
#include "kernels/cuda/philox.h"
#include "kernels/cuda/sample_row.h"

enum {
    BLOCKS = MM_ROW_SLICE / MM_DRAW_BLOCK,
    MAX_BLOCKS = MM_CUDA_MAX_VOCAB / MM_DRAW_BLOCK,
    EACH = MM_DRAW_BLOCK / 32, /* ids of a lane */
    HALF = EACH / 2            /* loads of a lane that are on their way together */
};

/* Whole warp: the sum of the weights of one draw block, in the normative order; ids that are
 * filtered become -inf where `work` is read by others. */
MM_DEV_FN float draw_block_sum(const mm_sample_run &x, const mm_sample_state &t, int32_t r,
                               int32_t forced, int32_t block)
{
    const int32_t first = block * MM_DRAW_BLOCK, lane = (int32_t)threadIdx.x % 32;
    const int64_t row = (int64_t)r * x.n_vocab;
    const float *from = (t.is_plain ? x.logits : x.work) + row;
    const bool has_never = first <= x.never_last && first + MM_DRAW_BLOCK > x.never_first;
    float sum = 0.0f;
    for (int half = 0; half < 2; half++) {
        const int32_t id0 = first + half * HALF * 32 + lane;
        float w[HALF];
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            w[j] = -INFINITY;
            if (id0 + j * 32 < x.n_vocab)
                w[j] = from[id0 + j * 32];
        }
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            const int32_t id = id0 + j * 32;
            if (t.is_plain) {
                if (has_never && id != forced && mm_is_never(x, id))
                    w[j] = -INFINITY;
                w[j] = __fdiv_rn(w[j], t.temperature);
            }
            const bool stays = mm_is_kept(t, w[j], id);
            if (!x.work_ends && !stays && w[j] > -INFINITY) /* so id < n_vocab */
                x.work[row + id] = -INFINITY;
            if (stays)
                sum += mm_weight_of(t, w[j]);
        }
    }
    for (int m = 16; m > 0; m /= 2)
        sum += __shfl_xor_sync(MM_ALL_LANES, sum, m);
    return sum;
}

/* The first id of the block at which `below` and the weights up to it exceed the threshold, or the
 * last id with weight (rounding may let the ids add up to less than their block's sum). */
MM_DEV_FN int32_t find_in_block(const float *weight, int32_t n, float below, double threshold)
{
    int32_t v = 0, found = -1;
    for (; v + 32 <= n; v += 32) { /* zeros add nothing: whole groups are passed over */
        float next = below;
#pragma unroll
        for (int k = 0; k < 32; k++)
            next += weight[v + k];
        if ((double)next > threshold)
            break;
        below = next;
    }
    for (; v < n; v++) {
        below += weight[v];
        if (weight[v] > 0.0f)
            found = v;
        if (weight[v] > 0.0f && (double)below > threshold)
            return found;
    }
    for (v = n - 1; v >= 0 && found < 0; v--)
        found = weight[v] > 0.0f ? v : -1;
    return found;
}

/* Block: the drawn id. weight: scratch of a block; upto [n_block + 1]: sums of the blocks before.
 */
MM_DEV_FN int32_t draw(const mm_sample_run &x, int32_t r, const mm_sample_state &t, int32_t forced,
                       double u, float *weight, float *upto, int32_t *found)
{
    const int32_t n_block = (x.n_vocab + MM_DRAW_BLOCK - 1) / MM_DRAW_BLOCK;
    const int32_t tid = (int32_t)threadIdx.x;
    const float *sum = x.sum + (int64_t)r * x.n_part * BLOCKS;
    for (int32_t b = tid; b < n_block; b += MM_ROW_THREADS)
        upto[b + 1] = __ldcg(&sum[b]);
    __syncthreads();
    if (tid == 0) {
        *found = -1;
        float total = 0.0f;
        upto[0] = 0.0f;
#pragma unroll 8
        for (int32_t b = 1; b <= n_block; b++) {
            total += upto[b];
            upto[b] = total;
        }
    }
    __syncthreads();
    const double threshold = u * (double)upto[n_block];
    for (int32_t b = tid; b < n_block; b += MM_ROW_THREADS) {
        if ((double)upto[b + 1] > threshold && (b == 0 || !((double)upto[b] > threshold)))
            *found = b;
    }
    __syncthreads();
    const int32_t block = *found, first = block * MM_DRAW_BLOCK;
    if (block < 0)
        return -1;
    const int32_t n = min((int32_t)MM_DRAW_BLOCK, x.n_vocab - first);
    for (int32_t k = tid; k < n; k += MM_ROW_THREADS) {
        /* what others of this launch dropped may or may not be -inf here already: both are 0 */
        const float w = mm_work_at(x, t, r, forced, first + k);
        weight[k] = mm_is_kept(t, w, first + k) ? mm_weight_of(t, w) : 0.0f;
    }
    __syncthreads();
    if (tid == 0) {
        const int32_t v = find_in_block(weight, n, upto[block], threshold);
        *found = v < 0 ? -1 : first + v;
    }
    __syncthreads();
    return *found;
}

static __global__ void __launch_bounds__(MM_ROW_THREADS, 2) sample_draw(mm_sample_run x)
{
    __shared__ float weight[MM_DRAW_BLOCK];
    __shared__ float upto[MAX_BLOCKS + 1];
    __shared__ mm_row_shared s;
    __shared__ mm_sample_commit commit;
    __shared__ int32_t found;
    const int32_t r = (int32_t)blockIdx.y, i = x.first + r, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!x.state[r].is_live)
        return;
    const mm_sample_state t = x.state[r];
    const int32_t forced = x.out.token[i];
    if (tid == MM_ROW_THREADS - 1)
        commit = mm_sample_commit_of(x, i);
    const int32_t n_block = (x.n_vocab + MM_DRAW_BLOCK - 1) / MM_DRAW_BLOCK;
    for (int32_t b = (int32_t)blockIdx.x * MM_ROW_WARPS + tid / 32; b < n_block;
         b += (int32_t)gridDim.x * MM_ROW_WARPS) {
        const float sum = draw_block_sum(x, t, r, forced, b);
        if (tid % 32 == 0)
            x.sum[(int64_t)r * x.n_part * BLOCKS + b] = sum;
    }
    if (!mm_row_last(&x.counter[r], gridDim.x, &s))
        return;
    int32_t token = forced;
    if (token < 0) {
        const double u = mm_uniform(x.s.params[commit.slot].seed, (uint64_t)commit.n_emitted,
                                    (uint32_t)x.out.lane[i], MM_RNG_TARGET);
        token = draw(x, r, t, forced, u, weight, upto, &found);
    }
    if (tid == 0)
        mm_sample_finish(x, i, commit, token, MM_SAMPLE_OK);
}

mm_status mm_cuda_sample_draw(const mm_op_context *c, const mm_sample_run *x, int32_t n_row)
{
    const int32_t n_turn = (x->n_part * BLOCKS + MM_ROW_WARPS - 1) / MM_ROW_WARPS;
    return mm_launch(c, "sample_draw", sample_draw,
                     dim3((unsigned)mm_sample_blocks(c, n_turn, n_row), (unsigned)n_row),
                     dim3(MM_ROW_THREADS), 0, *x);
}
