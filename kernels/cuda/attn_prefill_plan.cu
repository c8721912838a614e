/* attn_prefill_plan.cu: fills the plan of attn_prefill_plan.h: clear, insert (a thread per item),
 * reserve (a thread per bin), sort (a thread per item). */
#include "kernels/cuda/attn_prefill_plan.h"

#define NONE 0xFFFFFFFFu /* an empty bin; an item that reads nothing */

MM_DEV_FN uint32_t plan_hash(uint32_t key)
{
    key *= 0x9E3779B1u;
    return key ^ key >> 15;
}

__global__ void __launch_bounds__(256) plan_clear_kernel(mm_item_plan p)
{
    const int64_t n = (int64_t)p.n_piece * p.n_bin;
    mm_pdl_wait();
    mm_pdl_trigger();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * 256) {
        p.key[i] = NONE;
        p.count[i] = 0;
        if (i < p.n_piece)
            p.n_tile[i] = p.n_item[i] = 0;
    }
}

/* A thread per item: finds its key's bin and its place in the bin's run. Also counts blocks read
 * and visible into n_read (may be NULL). */
__global__ void __launch_bounds__(256)
    plan_insert_kernel(mm_item_plan p, mm_prefill_rows rows, int64_t *n_read)
{
    __shared__ uint32_t read, visible;
    const uint32_t per_row = (uint32_t)(p.n_group * p.n_top);
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (threadIdx.x == 0)
        read = visible = 0;
    mm_pdl_wait();
    mm_pdl_trigger();
    __syncthreads();
    if (i < (int64_t)p.n_row * per_row) {
        const int t = (int)(i / per_row), rest = (int)(i % per_row);
        const int g = rest / p.n_top, j = rest % p.n_top;
        const int block = p.list[((int64_t)g * p.n_row + t) * p.n_top + j];
        const int local = rows.pos[t] / MM_PAGE;
        uint32_t bin = NONE;
        if (block >= 0 && block <= local) {
            const int64_t piece = t / p.piece_rows;
            const uint32_t key =
                ((uint32_t)rows.row_seq[t] * (uint32_t)p.n_block + (uint32_t)block) *
                    (uint32_t)p.n_group +
                (uint32_t)g;
            uint32_t *keys = p.key + piece * p.n_bin;
            bin = plan_hash(key) & (p.n_bin - 1);
            for (;;) { /* the table is at most half full */
                const uint32_t held = atomicCAS(keys + bin, NONE, key);
                if (held == NONE || held == key)
                    break;
                bin = (bin + 1) & (p.n_bin - 1);
            }
            p.item_at[i] = atomicAdd(p.count + piece * p.n_bin + bin, 1u);
            atomicAdd(&read, 1u);
        }
        p.item_bin[i] = bin;
        if (j == 0)
            atomicAdd(&visible, (uint32_t)local + 1);
    }
    __syncthreads();
    if (threadIdx.x == 0 && n_read != nullptr) {
        atomicAdd((unsigned long long *)n_read, (unsigned long long)read);
        atomicAdd((unsigned long long *)n_read + 1, (unsigned long long)visible);
    }
}

/* A thread per bin: reserves the run and writes its tiles. */
__global__ void __launch_bounds__(256) plan_reserve_kernel(mm_item_plan p)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (i >= (int64_t)p.n_piece * p.n_bin || p.count[i] == 0)
        return;
    const int64_t piece = i / p.n_bin;
    const uint32_t key = p.key[i], n = p.count[i], size = (uint32_t)p.tile_items;
    const uint32_t begin = atomicAdd(p.n_item + piece, n);
    const uint32_t first = atomicAdd(p.n_tile + piece, (n + size - 1) / size);
    const uint32_t page = key / (uint32_t)p.n_group;
    mm_item_tile *tile = p.tile + piece * p.piece_rows * p.n_group * p.n_top + first;
    p.base[i] = begin;
    for (uint32_t at = 0; at < n; at += size)
        *tile++ = {(int)(page / (uint32_t)p.n_block), (int)(page % (uint32_t)p.n_block),
                   (int)(key % (uint32_t)p.n_group), begin + at, min(size, n - at)};
}

/* A thread per item: writes its number, counted within its piece, to its place. */
__global__ void __launch_bounds__(256) plan_sort_kernel(mm_item_plan p)
{
    const uint32_t per_row = (uint32_t)(p.n_group * p.n_top);
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (i >= (int64_t)p.n_row * per_row || p.item_bin[i] == NONE)
        return;
    const int64_t piece = i / ((int64_t)p.piece_rows * per_row);
    const int64_t first = piece * p.piece_rows * per_row;
    p.item[first + p.base[piece * p.n_bin + p.item_bin[i]] + p.item_at[i]] = (uint32_t)(i - first);
}

/* ---------------------------------------------------------------- host */

/* Bins of a piece: twice its items, a power of two. */
static int64_t plan_bins(int64_t items)
{
    int64_t n = 64;
    while (n < 2 * items)
        n *= 2;
    return n;
}
size_t mm_plan_scratch(int64_t n_row, int64_t piece_rows, int64_t per_row)
{
    const int64_t n_piece = mm_ceil_div(n_row, piece_rows), items = n_row * per_row;
    const int64_t bins = n_piece * plan_bins(piece_rows * per_row);
    return 3 * mm_cuda_size((size_t)bins * 4) + 3 * mm_cuda_size((size_t)items * 4) +
           mm_cuda_size((size_t)items * sizeof(mm_item_tile)) +
           2 * mm_cuda_size((size_t)n_piece * 4);
}

mm_status mm_plan_build(const mm_op_context *c, const mm_seq_view *seq, int64_t *n_read,
                        mm_item_plan *p)
{
    const int64_t per_row = (int64_t)p->n_group * p->n_top, items = seq->n_row * per_row;
    const mm_prefill_rows rows = mm_prefill_rows_of(seq);
    p->n_row = seq->n_row;
    p->n_piece = (int)mm_ceil_div(seq->n_row, p->piece_rows);
    p->n_block = (int)mm_ceil_div(seq->max_pos, MM_PAGE);
    p->n_bin = (uint32_t)plan_bins(p->piece_rows * per_row);
    const int64_t bins = (int64_t)p->n_piece * p->n_bin;
    if ((int64_t)seq->n_seq * p->n_block * p->n_group >= (int64_t)NONE)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: %d sequences of up to %d blocks in one step are too many; lower "
                            "the number of sequences of a step",
                            seq->n_seq, p->n_block);
    MM_TRY(mm_cuda_take(c, (size_t)bins * 4, (void **)&p->key));
    MM_TRY(mm_cuda_take(c, (size_t)bins * 4, (void **)&p->count));
    MM_TRY(mm_cuda_take(c, (size_t)bins * 4, (void **)&p->base));
    MM_TRY(mm_cuda_take(c, (size_t)items * 4, (void **)&p->item_bin));
    MM_TRY(mm_cuda_take(c, (size_t)items * 4, (void **)&p->item_at));
    MM_TRY(mm_cuda_take(c, (size_t)items * 4, (void **)&p->item));
    MM_TRY(mm_cuda_take(c, (size_t)items * sizeof(mm_item_tile), (void **)&p->tile));
    MM_TRY(mm_cuda_take(c, (size_t)p->n_piece * 4, (void **)&p->n_tile));
    MM_TRY(mm_cuda_take(c, (size_t)p->n_piece * 4, (void **)&p->n_item));
    const dim3 per_item((unsigned)mm_ceil_div(items, 256)),
        per_bin((unsigned)mm_ceil_div(bins, 256));
    const dim3 block(256);
    MM_TRY(mm_launch(c, "plan_clear", plan_clear_kernel, per_bin, block, 0, *p));
    MM_TRY(mm_launch(c, "plan_insert", plan_insert_kernel, per_item, block, 0, *p, rows, n_read));
    MM_TRY(mm_launch(c, "plan_reserve", plan_reserve_kernel, per_bin, block, 0, *p));
    return mm_launch(c, "plan_sort", plan_sort_kernel, per_item, block, 0, *p);
}
