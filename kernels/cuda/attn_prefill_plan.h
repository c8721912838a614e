/* attn_prefill_plan.h: turns the lists "row -> pages it reads" round to "page -> rows that read
 * it", so that attention brings every page in once for many rows.
 *
 * An item is (row, KV head, place in the row's list); its number ((t - first row of the piece) * G
 * + g) * K + j is also where its partial goes. Rows come in pieces, whose partials fit the scratch.
 * Per piece a hash table counts the items of each (sequence, block, KV head); every key then
 * reserves a run of the sorted items and cuts it into tiles of at most `tile_items`. Integer
 * atomics only: they decide where an item stands in its run, which no result depends on. */
#ifndef MM_CUDA_ATTN_PREFILL_PLAN_H
#define MM_CUDA_ATTN_PREFILL_PLAN_H
#include "kernels/cuda/attn_prefill_tile.h"

/* Items [begin, begin + n) of the piece's order, all of one key. */
struct mm_item_tile {
    int seq, block, head;
    uint32_t begin, n;
};

struct mm_item_plan {
    int n_group; /* KV heads */
    int n_top, n_row, piece_rows, n_piece, tile_items;
    int n_block;    /* blocks of the longest sequence: a key is (seq * n_block + block) * G + g */
    uint32_t n_bin; /* of a piece, a power of two */
    const int16_t *list;          /* [G, T, K] */
    uint32_t *key, *count, *base; /* [n_piece, n_bin] */
    uint32_t *item_bin, *item_at; /* [T * G * K], items in the order of their numbers */
    uint32_t *item;               /* the same, sorted by key within a piece */
    mm_item_tile *tile;           /* [T * G * K] bound, a piece's from its first item's place */
    uint32_t *n_tile, *n_item;    /* [n_piece] */
};

/* p: n_group, n_top, piece_rows, tile_items and list are set; takes the rest from scratch, at most
 * mm_plan_scratch bytes, and fills it. per_row: KV heads times n_top. */
mm_status mm_plan_build(const mm_op_context *c, const mm_seq_view *seq, int64_t *n_read,
                        mm_item_plan *p);
size_t mm_plan_scratch(int64_t n_row, int64_t piece_rows, int64_t per_row);

#endif
