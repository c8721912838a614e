/* linear_mid_sm90a.cu: the kernel of linear_mid.h with wgmma: sm_90a only. */
#include "kernels/cuda/linear_mid.h"

template <int FORMAT, int NT>
static mm_status choose_tiles(const mm_op_context *c, int tiles, const mm_mid_args *p)
{
    return tiles == 4   ? mm_mid_launch<FORMAT, NT, 4, true>(c, p)
           : tiles == 8 ? mm_mid_launch<FORMAT, NT, 8, true>(c, p)
                        : mm_mid_launch<FORMAT, NT, MM_MID_MOST_TILES, true>(c, p);
}

template <int FORMAT>
static mm_status choose_rows(const mm_op_context *c, int n8, int tiles, const mm_mid_args *p)
{
    return n8 == 4 ? choose_tiles<FORMAT, 4>(c, tiles, p) : choose_tiles<FORMAT, 8>(c, tiles, p);
}

mm_status mm_linear_mid_sm90a(const mm_op_context *c, int n8, int tiles, const mm_mid_args *p)
{
    return p->m.format == MM_WEIGHT_MXFP8 ? choose_rows<MM_WEIGHT_MXFP8>(c, n8, tiles, p)
                                          : choose_rows<MM_WEIGHT_BF16>(c, n8, tiles, p);
}
