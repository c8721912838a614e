/* ref_copy.c: copies of page prefixes (forks of shared pages) and of rows. */
#include "kernels/ref/ref.h"

static void copy_plane(const mm_plane *p, int64_t src, int64_t dst, int64_t n_tok)
{
    const int64_t n_data = mm_cache_row_bytes(p->format, p->dim),
                  n_scale = mm_cache_row_scale_bytes(p->format, p->dim);
    for (int64_t g = 0; g < p->n_head; g++) {
        const int64_t from = (src * p->n_head + g) * MM_PAGE, to = (dst * p->n_head + g) * MM_PAGE;
        memcpy(p->data + to * n_data, p->data + from * n_data, (size_t)(n_tok * n_data));
        if (p->scale != NULL)
            memcpy(p->scale + to * n_scale, p->scale + from * n_scale, (size_t)(n_tok * n_scale));
    }
}

mm_status mm_ref_copy_pages(const mm_op_context *c, const mm_copy_pages_args *a)
{
    (void)c;
    for (int32_t i = 0; i < a->n_copy; i++) {
        for (int32_t l = 0; l < a->n_layer; l++) {
            const mm_layer_cache *layer = &a->layer[l];
            copy_plane(&layer->k, a->src[i], a->dst[i], a->n_tok[i]);
            copy_plane(&layer->v, a->src[i], a->dst[i], a->n_tok[i]);
            if (layer->ik.data != NULL)
                copy_plane(&layer->ik, a->src[i], a->dst[i], a->n_tok[i]);
        }
    }
    return MM_OK;
}

mm_status mm_ref_gather_rows(const mm_op_context *c, const mm_gather_args *a)
{
    (void)c;
    for (int64_t i = 0; i < a->n_row; i++)
        memcpy((uint8_t *)a->out + i * a->n_bytes, (const uint8_t *)a->in + a->row[i] * a->n_bytes,
               (size_t)a->n_bytes);
    return MM_OK;
}
