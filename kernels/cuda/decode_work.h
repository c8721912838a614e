/* decode_work.h: work of a persistent grid that depends on lengths only the device knows. Entry i
 * (a row, or a few rows of a sequence) has count(i) units; the units of all entries form one line,
 * of which every block takes an equal piece. What a unit computes never depends on who takes it. */
#ifndef MM_CUDA_DECODE_WORK_H
#define MM_CUDA_DECODE_WORK_H
#include "kernels/cuda/cuda.h"

#define MM_WORK_THREADS 128 /* of a block that calls these */
#define MM_WORK_MAX 1024    /* entries of one launch */

static inline size_t mm_work_bytes(int32_t n) /* of shared memory for n entries */
{
    return ((size_t)n + 1 + 4) * 4;
}

/* prefix[i] = units before entry i, prefix[n] = all of them; prefix: shared, mm_work_bytes(n). All
 * threads of the block call it; ends with a barrier. */
template <typename Count> MM_DEV_FN void mm_work_scan(int *prefix, int n, int thread, Count count)
{
    const int lane = thread % 32, warp = thread / 32;
    int *warp_sum = prefix + n + 1, before = 0;
    if (thread == 0)
        prefix[0] = 0;
    for (int base = 0; base < n; base += MM_WORK_THREADS) {
        const int i = base + thread;
        int sum = i < n ? count(i) : 0;
        for (int d = 1; d < 32; d *= 2) {
            const int x = __shfl_up_sync(0xFFFFFFFFu, sum, d);
            sum += lane >= d ? x : 0;
        }
        if (lane == 31)
            warp_sum[warp] = sum;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < MM_WORK_THREADS / 32; w++) {
            sum += w < warp ? warp_sum[w] : 0;
            all += warp_sum[w];
        }
        if (i < n)
            prefix[i + 1] = before + sum;
        before += all;
        __syncthreads();
    }
}
/* The entry that unit u belongs to. */
MM_DEV_FN int mm_work_find(const int *prefix, int n, int u)
{
    int low = 0, high = n; /* prefix[low] <= u < prefix[high] */
    while (high - low > 1) {
        const int mid = (low + high) / 2;
        if (prefix[mid] <= u)
            low = mid;
        else
            high = mid;
    }
    return low;
}
/* First unit of block (or warp) b of n, n < 65536: n_unit * b / n in 32 bits. */
MM_DEV_FN int mm_work_first(int n_unit, int b, int n)
{
    const uint32_t all = (uint32_t)n_unit, each = all / (uint32_t)n,
                   left = all - each * (uint32_t)n;
    return (int)(each * (uint32_t)b + left * (uint32_t)b / (uint32_t)n);
}

/* index_decode.cu: scores of every block b < pos / MM_PAGE of rows [first, first + n) of the step,
 * n <= MM_WORK_MAX: score[(r * I + g) * stride + b] of row first + r; entries of other blocks, and
 * of rows that read all their blocks, are anything. stride: a multiple of 4. Does not start the op.
 */
mm_status mm_cuda_index_decode(const mm_op_context *c, const mm_seq_view *seq, const mm_plane *ik,
                               const void *iq, int32_t first, int32_t n, float *score,
                               int32_t stride);

#endif
