/* ref_embed.c: the input rows of a step: token embeddings or rows of the media buffer, and layer
 * 0's norm of them. */
#include "kernels/ref/ref.h"

static int32_t row_token(const mm_seq_view *seq, int32_t t)
{
    const mm_slots *s = seq->slots;
    const int32_t token = seq->token[t];
    if (token >= 0)
        return token;
    const int32_t slot = seq->slot[seq->row_seq[t]];
    return token == -1 ? s->last_token[slot]
                       : s->draft_token[(int64_t)slot * (MM_MAX_DECODE_ROWS - 1) - 2 - token];
}

mm_status mm_ref_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model;
    mm_ref_start(c);
    MM_TRY(mm_ref_check_weight(a->embed, "embed"));
    float *x, *h;
    MM_TRY(mm_ref_floats(c, d, &x));
    MM_TRY(mm_ref_floats(c, d, &h));
    for (int32_t t = 0; t < seq->n_row; t++) {
        const int32_t media = a->row_media != NULL ? a->row_media[t] : -1;
        if (media >= 0) {
            mm_ref_act_read(s->act, a->media, media * d, d, x);
        } else {
            const int32_t token = row_token(seq, t);
            MM_ASSERT(token >= 0 && token < a->embed->n_out);
            mm_ref_weight_row(a->embed, token, x);
        }
        for (int64_t j = 0; j < d; j++)
            x[j] = mm_ref_round(s->act, x[j]);
        mm_ref_act_write(s->act, a->x, t * d, d, x);
        mm_ref_norm(x, a->norm_w, d, s->eps, h);
        mm_ref_act_write(s->act, a->h, t * d, d, h);
    }
    return MM_OK;
}
