/* trace.c: choices and streams of a traced prompt, between backend memory (rows of this step) and
 * the caller's arrays (rows of the whole prompt). Copies go through the model's staging memory in
 * pieces, each waited for. With several ranks rank 0 writes what all have, and each index head is
 * written by the first rank that holds it. */
#include "csrc/base/half.h"
#include "csrc/model/forward.h"

static mm_status pull(mm_model *m, const void *src, size_t n_bytes)
{
    MM_TRY(m->backend->download(m->backend, m->ctx.stream, m->stage, src, n_bytes));
    return m->backend->sync(m->backend, m->ctx.stream);
}

static mm_status push(mm_model *m, void *dst, size_t n_bytes)
{
    MM_TRY(m->backend->upload(m->backend, m->ctx.stream, dst, m->stage, n_bytes));
    return m->backend->sync(m->backend, m->ctx.stream);
}

mm_status mm_model_download_f32(mm_model *m, float *out, const void *src, mm_dtype dtype, int64_t n)
{
    const int64_t size = (int64_t)mm_dtype_size(dtype), piece = (int64_t)MM_MODEL_STAGE / size;
    for (int64_t i = 0; i < n; i += piece) {
        const int64_t k = mm_min_i64(piece, n - i);
        MM_TRY(pull(m, (const uint8_t *)src + i * size, (size_t)(k * size)));
        if (dtype == MM_DTYPE_F32) {
            memcpy(out + i, m->stage, (size_t)k * 4);
            continue;
        }
        const uint16_t *from = m->stage;
        for (int64_t j = 0; j < k; j++)
            out[i + j] = mm_f32_from_bf16(from[j]);
    }
    return MM_OK;
}

bool mm_trace_forces_blocks(const mm_step *step, int32_t layer)
{
    return step->trace != NULL && step->trace->force_blocks != NULL &&
           step->trace->force_blocks[layer] != NULL;
}

bool mm_trace_forces_experts(const mm_step *step, int32_t layer)
{
    return step->trace != NULL && step->trace->force_experts != NULL &&
           step->trace->force_experts[layer] != NULL;
}

static mm_status check_rows(const mm_step *step)
{
    const mm_trace *t = step->trace;
    const int64_t last = (int64_t)step->trace_first + step->seq->n_row;
    if (step->trace_first < 0 || last > t->n_prompt)
        return MM_FAIL(MM_E_INVALID, "trace: rows %d to %lld of a prompt of %d", step->trace_first,
                       (long long)last, t->n_prompt);
    return MM_OK;
}

/* Rows of the caller's array of index head g (of all), starting with this step's first. */
static int64_t block_row(const mm_step *step, const mm_model *m, int32_t g_local)
{
    const int64_t g = m->shape.kv_head_first + g_local;
    return (g * step->trace->n_prompt + step->trace_first) * step->trace->blocks_width;
}

static mm_status check_blocks(const int16_t *b, int32_t width, int32_t position)
{
    const int32_t local = position / MM_PAGE;
    int32_t n = 0;
    while (n < width && b[n] >= 0)
        n++;
    bool is_good = n > 0 && b[n - 1] <= local;
    for (int32_t j = 1; j < width; j++)
        is_good = is_good && (j < n ? b[j] > b[j - 1] : b[j] == -1);
    if (is_good)
        return MM_OK;
    return MM_FAIL_PARAM(
        MM_E_INVALID, "force_blocks", position,
        "force_blocks at position %d: expected ascending block ids 0 to %d, then -1", position,
        local);
}

mm_status mm_trace_put_blocks(mm_model *m, const mm_step *step, int32_t layer)
{
    MM_TRY(check_rows(step));
    const int32_t width = step->trace->blocks_width, k = m->shape.n_top_block,
                  n_row = step->seq->n_row;
    const int32_t piece = (int32_t)(MM_MODEL_STAGE / (sizeof(int16_t) * (size_t)k));
    if (width < 1 || width > k)
        return MM_FAIL_PARAM(MM_E_INVALID, "force_blocks", -1,
                             "force_blocks has %d blocks a row, expected 1 to %d", width, k);
    for (int32_t g = 0; g < m->shape.n_index_head; g++)
        for (int32_t t = 0; t < n_row; t += piece) {
            const int32_t n = t + piece < n_row ? piece : n_row - t;
            const int16_t *from =
                step->trace->force_blocks[layer] + block_row(step, m, g) + (int64_t)t * width;
            int16_t *to = m->stage;
            for (int32_t i = 0; i < n; i++, from += width)
                for (int32_t j = 0; j < k; j++)
                    to[(int64_t)i * k + j] = j < width ? from[j] : -1;
            for (int32_t i = 0; i < n; i++)
                MM_TRY(check_blocks(to + (int64_t)i * k, k, step->trace_first + t + i));
            MM_TRY(push(m, m->buf.blocks + ((int64_t)g * n_row + t) * k,
                        sizeof(int16_t) * (size_t)n * (size_t)k));
        }
    return MM_OK;
}

mm_status mm_trace_get_blocks(mm_model *m, const mm_step *step, int32_t layer)
{
    MM_TRY(check_rows(step));
    const mm_comm *comm = m->ctx.comm;
    const int32_t n_copy =
        comm->world > m->shape.n_kv_head_total ? comm->world / m->shape.n_kv_head_total : 1;
    if (comm->rank % n_copy != 0)
        return MM_OK;
    const int32_t width = step->trace->blocks_width, k = m->shape.n_top_block,
                  n_row = step->seq->n_row;
    const int32_t piece = (int32_t)(MM_MODEL_STAGE / (sizeof(int16_t) * (size_t)k));
    for (int32_t g = 0; g < m->shape.n_index_head; g++)
        for (int32_t t = 0; t < n_row; t += piece) {
            const int32_t n = t + piece < n_row ? piece : n_row - t;
            MM_TRY(pull(m, m->buf.blocks + ((int64_t)g * n_row + t) * k,
                        sizeof(int16_t) * (size_t)n * (size_t)k));
            int16_t *to = step->trace->blocks[layer] + block_row(step, m, g) + (int64_t)t * width;
            for (int32_t i = 0; i < n; i++, to += width)
                memcpy(to, (const int16_t *)m->stage + (int64_t)i * k,
                       sizeof(int16_t) * (size_t)width);
        }
    return MM_OK;
}

mm_status mm_trace_put_experts(mm_model *m, const mm_step *step, int32_t layer)
{
    MM_TRY(check_rows(step));
    const int32_t k = m->shape.n_expert_used, n_row = step->seq->n_row;
    const int32_t piece = (int32_t)(MM_MODEL_STAGE / (sizeof(int32_t) * (size_t)k));
    for (int32_t t = 0; t < n_row; t += piece) {
        const int32_t n = t + piece < n_row ? piece : n_row - t;
        const int16_t *from =
            step->trace->force_experts[layer] + (int64_t)(step->trace_first + t) * k;
        int32_t *to = m->stage;
        for (int64_t i = 0; i < (int64_t)n * k; i++) {
            if (from[i] < 0 || from[i] >= m->shape.n_expert ||
                (i % k != 0 && from[i] <= from[i - 1]))
                return MM_FAIL_PARAM(
                    MM_E_INVALID, "force_experts", step->trace_first + t + i / k,
                    "force_experts at position %lld: expected ascending expert ids 0 to %d",
                    (long long)(step->trace_first + t + i / k), m->shape.n_expert - 1);
            to[i] = from[i];
        }
        MM_TRY(push(m, m->buf.experts + (int64_t)t * k, sizeof(int32_t) * (size_t)n * (size_t)k));
    }
    return MM_OK;
}

mm_status mm_trace_get_experts(mm_model *m, const mm_step *step, int32_t layer)
{
    const mm_trace *trace = step->trace;
    if (m->ctx.comm->rank != 0)
        return MM_OK;
    MM_TRY(check_rows(step));
    const int32_t k = m->shape.n_expert_used;
    const int64_t n = (int64_t)step->seq->n_row * k, first = (int64_t)step->trace_first * k;
    const int64_t piece = (int64_t)(MM_MODEL_STAGE / sizeof(int32_t));
    if (trace->experts != NULL && trace->experts[layer] != NULL)
        for (int64_t i = 0; i < n; i += piece) {
            const int64_t count = mm_min_i64(piece, n - i);
            MM_TRY(pull(m, m->buf.experts + i, sizeof(int32_t) * (size_t)count));
            for (int64_t j = 0; j < count; j++)
                trace->experts[layer][first + i + j] = (int16_t)((const int32_t *)m->stage)[j];
        }
    if (trace->expert_weights != NULL && trace->expert_weights[layer] != NULL)
        return mm_model_download_f32(m, trace->expert_weights[layer] + first, m->buf.expert_weights,
                                     MM_DTYPE_F32, n);
    return MM_OK;
}

mm_status mm_trace_get_hidden(mm_model *m, const mm_step *step, int32_t layer)
{
    const mm_trace *trace = step->trace;
    if (trace->hidden == NULL || trace->hidden[layer] == NULL || m->ctx.comm->rank != 0)
        return MM_OK;
    MM_TRY(check_rows(step));
    const int64_t D = m->config.d_model;
    return mm_model_download_f32(m, trace->hidden[layer] + (int64_t)step->trace_first * D, m->buf.x,
                                 m->shape.act, (int64_t)step->seq->n_row * D);
}
