/* weights.c: reading slots. What a matrix is stored as is decided by the tensors that are there,
 * never by config.json: X.weight_packed U8 + X.weight_scale E4M3 + X.weight_global_scale F32
 * (divide)    NVFP4 X.weight U8        + X.weight_scale E4M3 + X.weight_scale_2 F32 (multiply)
 * NVFP4, the other spelling X.weight E4M3      + X.weight_scale_inv or X.weight_scale U8 MXFP8
 *   X.weight BF16 or F32                                                             itself */
#include <math.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/base/half.h"
#include "csrc/base/log.h"
#include "csrc/model/dummy.h"
#include "csrc/model/weights.h"

#define CHECK_SCALES_BELOW                                                                         \
    ((int64_t)4 << 30) /* bytes of scales that a host backend reads at open without being asked */

enum { ALIGN = 64, NAME_MAX_LEN = 224 };

static bool has_suffix(const char *name, const char *tail)
{
    const size_t n = strlen(name), m = strlen(tail);
    return n >= m && memcmp(name + n - m, tail, m) == 0;
}

static int64_t scale_bytes_total(const mm_tensors *t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_ref; i++)
        if (has_suffix(t->ref[i].name, ".weight_scale") ||
            has_suffix(t->ref[i].name, ".weight_scale_inv"))
            n += t->ref[i].entry->n_bytes;
    return n;
}

mm_status mm_weights_open(mm_weights **out, const mm_engine_options *o, mm_backend *b,
                          const mm_op_context *ctx)
{
    *out = NULL;
    mm_weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the weight table");
    w->options = o;
    w->backend = b;
    w->ctx = *ctx;
    w->ctx.stream = NULL;
    w->keeps_host = !b->props.is_host && mm_env_get()->check != 0;
    if (o->load == MM_LOAD_FILES) {
        const mm_status st = mm_tensors_open(&w->tensors, o->weights);
        if (st != MM_OK) {
            free(w);
            return st;
        }
        w->check_scales = o->verify >= 0 && (!b->props.is_host || o->verify != 0 ||
                                             scale_bytes_total(&w->tensors) < CHECK_SCALES_BELOW);
    }
    *out = w;
    return MM_OK;
}

mm_status mm_weights_poll(mm_weights *w)
{
    const mm_engine_options *o = w->options;
    const double now = mm_now();
    if (o == NULL || o->poll == NULL || now - w->t_poll < 0.1)
        return MM_OK;
    w->t_poll = now;
    if (o->poll(o->poll_ctx, w->n_done, mm_max_i64(w->n_total, w->n_done)) != 0)
        return MM_FAIL(MM_E_CANCELLED, "loading was cancelled");
    return MM_OK;
}

mm_status mm_weights_judge(mm_weights *w, int64_t *n_unused)
{
    *n_unused = mm_tensors_leftover(&w->tensors, &w->problems);
    return mm_problems_raise(&w->problems, MM_E_FORMAT, "checkpoint");
}

mm_status mm_weights_verify(const mm_weights *w)
{
    return mm_tensors_verify(&w->tensors);
}

int64_t mm_weight_bytes(const mm_weight *m)
{
    return m->n_out * (mm_weight_row_bytes(m->format, m->n_in) +
                       mm_weight_row_scale_bytes(m->format, m->n_in));
}

/* Host memory of a slot's own, in w->owned or w->temp. */
static mm_status alloc_in(mm_blocks *blocks, void **out, int64_t n_bytes)
{
    void *p = aligned_alloc(ALIGN, (size_t)mm_round_up(mm_max_i64(n_bytes, 1), ALIGN));
    if (p == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for %lld bytes of weights", (long long)n_bytes);
    const mm_status st = mm_blocks_add(blocks, p, n_bytes);
    if (st != MM_OK) {
        free(p);
        return st;
    }
    *out = p;
    return MM_OK;
}

static bool keeps(const mm_weights *w)
{
    return w->backend->props.is_host || w->keeps_host;
}

/* Kept on host backends, gone after the next upload elsewhere. */
static mm_status own_host(mm_weights *w, void **out, int64_t n_bytes)
{
    return alloc_in(keeps(w) ? &w->owned : &w->temp, out, n_bytes);
}

/* ---------------------------------------------------------------- tensors of a slot */

/* The tensor base + suffix of the given dtype and shape; NULL and a problem otherwise. A vector has
 * n_row 0; a scalar
 * ([] or [1]) n_row -1. */
static const mm_tensor_entry *take(mm_weights *w, const char *base, const char *suffix,
                                   mm_dtype dtype, int64_t n_row, int64_t n_col)
{
    char name[NAME_MAX_LEN + 64], found[96], expected[96];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    const int64_t dim[2] = {n_row, n_col};
    if (n_row > 0)
        mm_shape_text(expected, 2, dim);
    else if (n_row == 0)
        mm_shape_text(expected, 1, dim + 1);
    else
        snprintf(expected, sizeof expected, "[1]");
    const mm_tensor_ref *r = mm_tensors_take(&w->tensors, name);
    if (r == NULL) {
        mm_problems_add(&w->problems, name,
                        "%s %s %s is missing from the %d files; fetch the checkpoint again", name,
                        mm_dtype_name(dtype), expected, w->tensors.n_file);
        return NULL;
    }
    const mm_tensor_entry *e = r->entry;
    bool fits = e->dtype == dtype;
    if (n_row > 0)
        fits = fits && e->rank == 2 && e->dim[0] == n_row && e->dim[1] == n_col;
    else if (n_row == 0)
        fits = fits && e->rank == 1 && e->dim[0] == n_col;
    else
        fits = fits && (e->rank == 0 || (e->rank == 1 && e->dim[0] == 1));
    if (fits)
        return e;
    mm_problems_add(&w->problems, e->name,
                    "%s: %s is %s %s, expected %s %s; not the checkpoint of this config.json",
                    mm_tensors_path(&w->tensors, e), e->name, mm_dtype_name(e->dtype),
                    mm_shape_text(found, e->rank, e->dim), mm_dtype_name(dtype), expected);
    return NULL;
}

static mm_dtype dtype_of(const mm_weights *w, const char *base, const char *suffix,
                         mm_dtype otherwise)
{
    char name[NAME_MAX_LEN + 64];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    mm_tensors *t = (mm_tensors *)(uintptr_t)&w->tensors; /* looked at, not taken */
    if (!mm_tensors_has(t, name))
        return otherwise;
    return mm_tensors_take(t, name)->entry->dtype;
}

static bool has(const mm_weights *w, const char *base, const char *suffix)
{
    char name[NAME_MAX_LEN + 64];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    return mm_tensors_has(&w->tensors, name);
}

static float read_f32(const mm_weights *w, const mm_tensor_entry *e)
{
    float v;
    memcpy(&v, mm_tensors_data(&w->tensors, e), sizeof v); /* the offset may be odd */
    return v;
}

/* Views need their natural alignment; a file that lacks it costs a copy. */
static mm_status aligned_data(mm_weights *w, const mm_tensor_entry *e, const void **out)
{
    const uint8_t *data = mm_tensors_data(&w->tensors, e);
    if ((uintptr_t)data % mm_dtype_size(e->dtype) == 0) {
        *out = data;
        return MM_OK;
    }
    void *copy;
    MM_TRY(alloc_in(&w->owned, &copy, e->n_bytes)); /* lives until the matrix is uploaded, groups
                                                       later */
    memcpy(copy, data, (size_t)e->n_bytes);
    *out = copy;
    mm_log(MM_LOG_WARNING, "%s: %s is not aligned in the file: %lld bytes were copied",
           mm_tensors_path(&w->tensors, e), e->name, (long long)e->n_bytes);
    return MM_OK;
}

/* ---------------------------------------------------------------- formats */

static mm_status read_plain(mm_weights *w, const char *base, mm_dtype dtype, mm_weight *m)
{
    const mm_tensor_entry *e = take(w, base, ".weight", dtype, m->n_out, m->n_in);
    if (e == NULL)
        return MM_OK;
    MM_TRY(aligned_data(w, e, &m->data));
    m->format = dtype == MM_DTYPE_F32 ? MM_WEIGHT_F32 : MM_WEIGHT_BF16;
    return MM_OK;
}

static void read_mxfp8(mm_weights *w, const char *base, mm_weight *m)
{
    if (m->n_in % 32 != 0) {
        mm_problems_add(&w->problems, base,
                        "%s is MXFP8 with %lld columns, expected a multiple of 32", base,
                        (long long)m->n_in);
        return;
    }
    const bool has_inv = has(w, base, ".weight_scale_inv"),
               has_plain = has(w, base, ".weight_scale");
    if (has_inv && has_plain) {
        mm_problems_add(&w->problems, base,
                        "%s has both .weight_scale_inv and .weight_scale; remove one", base);
        return;
    }
    const mm_tensor_entry *code = take(w, base, ".weight", MM_DTYPE_F8_E4M3, m->n_out, m->n_in);
    const mm_tensor_entry *scale = take(w, base, has_plain ? ".weight_scale" : ".weight_scale_inv",
                                        MM_DTYPE_U8, m->n_out, m->n_in / 32);
    if (code == NULL || scale == NULL)
        return;
    m->data = mm_tensors_data(&w->tensors, code);
    m->scale = mm_tensors_data(&w->tensors, scale);
    m->format = MM_WEIGHT_MXFP8;
}

/* Encode scales divide, decode scales multiply: kept is the encode scale. */
static bool read_global_scale(mm_weights *w, const char *base, bool is_encode, float *out)
{
    const mm_tensor_entry *e =
        take(w, base, is_encode ? ".weight_global_scale" : ".weight_scale_2", MM_DTYPE_F32, -1, 1);
    if (e == NULL)
        return false;
    const float value = read_f32(w, e);
    const float encode = is_encode ? value : 1.0f / value;
    if (isfinite(value) && value > 0.0f && isfinite(encode) && encode > 0.0f) {
        *out = encode;
        return true;
    }
    mm_problems_add(
        &w->problems, e->name,
        "%s: %s is %g, expected a finite scale above 0; the file is damaged, fetch it again",
        mm_tensors_path(&w->tensors, e), e->name, (double)value);
    return false;
}

static void read_nvfp4(mm_weights *w, const char *base, bool is_packed, mm_weight *m)
{
    if (m->n_in % 16 != 0) {
        mm_problems_add(&w->problems, base,
                        "%s is NVFP4 with %lld columns, expected a multiple of 16", base,
                        (long long)m->n_in);
        return;
    }
    const mm_tensor_entry *code =
        take(w, base, is_packed ? ".weight_packed" : ".weight", MM_DTYPE_U8, m->n_out, m->n_in / 2);
    const mm_tensor_entry *scale =
        take(w, base, ".weight_scale", MM_DTYPE_F8_E4M3, m->n_out, m->n_in / 16);
    const bool has_global = read_global_scale(w, base, is_packed, &m->global_scale);
    /* scales of the activations: no meaning without quantised activations */
    const char *input = is_packed ? ".input_global_scale" : ".input_scale";
    if (has(w, base, input))
        (void)dtype_of(w, base, input, MM_DTYPE_F32); /* marks it used */
    if (code == NULL || scale == NULL || !has_global)
        return;
    m->data = mm_tensors_data(&w->tensors, code);
    m->scale = mm_tensors_data(&w->tensors, scale);
    m->format = MM_WEIGHT_NVFP4;
}

/* A block scale that is NaN (or negative) makes every product NaN (or wrong): say so now, not as
 * noise in the output. */
static void check_scales(mm_weights *w, const char *base, const mm_weight *m)
{
    const int64_t n = mm_weight_row_scale_bytes(m->format, m->n_in);
    for (int64_t i = 0; i < m->n_out; i++) {
        const uint8_t *row = m->scale + i * m->scale_stride;
        uint8_t top = 0;
        for (int64_t j = 0; j < n; j++)
            top = row[j] > top ? row[j] : top;
        if (m->format == MM_WEIGHT_MXFP8 ? top < 0xFF : top < 0x7F)
            continue;
        mm_problems_add(
            &w->problems, base,
            "%s: row %lld has the block scale 0x%02X (%s); the file is damaged, fetch it again",
            base, (long long)i, top,
            m->format == MM_WEIGHT_NVFP4 && top > 0x7F && top != 0xFF ? "negative" : "NaN");
        return;
    }
}

static void cut(mm_weight *m, mm_slice s)
{
    m->data_stride = mm_weight_row_bytes(m->format, m->n_in);
    m->scale_stride = mm_weight_row_scale_bytes(m->format, m->n_in);
    if (s.n_row != m->n_out)
        *m = mm_weight_rows(m, s.row, s.n_row);
    if (s.n_col != m->n_in)
        *m = mm_weight_cols(m, s.col, s.n_col);
}

static mm_status matrix_from_files(mm_weights *w, const char *base, mm_slice s, mm_weight *m)
{
    const bool is_packed = has(w, base, ".weight_packed");
    if (is_packed && has(w, base, ".weight")) {
        mm_problems_add(&w->problems, base, "%s has both .weight and .weight_packed; remove one",
                        base);
        return MM_OK;
    }
    const mm_dtype dtype = is_packed ? MM_DTYPE_U8 : dtype_of(w, base, ".weight", MM_DTYPE_BF16);
    if (dtype == MM_DTYPE_U8)
        read_nvfp4(w, base, is_packed, m);
    else if (dtype == MM_DTYPE_F8_E4M3)
        read_mxfp8(w, base, m);
    else
        MM_TRY(read_plain(w, base, dtype == MM_DTYPE_F32 ? MM_DTYPE_F32 : MM_DTYPE_BF16, m));
    if (m->format == MM_WEIGHT_NONE)
        return MM_OK;
    cut(m, s);
    w->n_mapped += mm_weight_bytes(m);
    w->n_total += mm_weight_bytes(m);
    if (w->check_scales && m->scale != NULL)
        check_scales(w, base, m);
    return mm_weights_poll(w);
}

/* ---------------------------------------------------------------- dummy */

static mm_status matrix_from_dummy(mm_weights *w, const char *base, mm_slice s, mm_weight *m)
{
    const int64_t n_in = m->n_in;
    m->format = mm_dummy_format(base, w->options->dummy_quantized);
    if ((m->format == MM_WEIGHT_MXFP8 && n_in % 32 != 0) ||
        (m->format == MM_WEIGHT_NVFP4 && n_in % 16 != 0)) {
        mm_problems_add(&w->problems, base,
                        "%s has %lld columns: quantised dummy weights need a multiple of 32", base,
                        (long long)n_in);
        m->format = MM_WEIGHT_NONE;
        return MM_OK;
    }
    m->n_out = s.n_row;
    m->n_in = s.n_col;
    m->data_stride = mm_weight_row_bytes(m->format, s.n_col);
    m->scale_stride = mm_weight_row_scale_bytes(m->format, s.n_col);
    if (w->is_counting) {
        w->n_total += mm_weight_bytes(m);
        return MM_OK;
    }
    void *data, *scale = NULL;
    MM_TRY(own_host(w, &data, m->n_out * m->data_stride));
    if (m->scale_stride > 0)
        MM_TRY(own_host(w, &scale, m->n_out * m->scale_stride));
    m->data = data;
    m->scale = scale;
    mm_dummy_matrix(w->pool, w->options->dummy_seed, base, n_in, s, m);
    if (w->backend->props.is_host)
        w->n_done += mm_weight_bytes(m);
    return mm_weights_poll(w);
}

mm_status mm_weights_matrix(mm_weights *w, const char *name, int64_t n_out, int64_t n_in,
                            mm_slice s, mm_weight *out)
{
    *out =
        (mm_weight){.format = MM_WEIGHT_NONE, .n_out = n_out, .n_in = n_in, .global_scale = 1.0f};
    return w->options->load == MM_LOAD_DUMMY ? matrix_from_dummy(w, name, s, out)
                                             : matrix_from_files(w, name, s, out);
}

/* ---------------------------------------------------------------- small f32 copies */

static void floats_from_files(mm_weights *w, const char *name, int64_t n_row, int64_t n_col,
                              float *out)
{
    const mm_dtype dtype =
        dtype_of(w, name, "", MM_DTYPE_BF16) == MM_DTYPE_F32 ? MM_DTYPE_F32 : MM_DTYPE_BF16;
    const mm_tensor_entry *e = take(w, name, "", dtype, n_row, n_col);
    if (e == NULL)
        return;
    const int64_t n = mm_max_i64(n_row, 1) * n_col;
    const uint8_t *data = mm_tensors_data(&w->tensors, e);
    if (dtype == MM_DTYPE_F32) {
        memcpy(out, data, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, 2);
        out[i] = mm_f32_from_bf16(bits);
    }
}

mm_status mm_weights_floats(mm_weights *w, const char *name, int64_t n_row, int64_t n_col,
                            const float **out)
{
    *out = NULL;
    const int64_t n_bytes = mm_max_i64(n_row, 1) * n_col * 4;
    const bool is_dummy = w->options->load == MM_LOAD_DUMMY;
    if (w->is_counting)
        return MM_OK;
    void *host;
    MM_TRY(alloc_in(keeps(w) ? &w->owned : is_dummy ? &w->temp : &w->vectors, &host, n_bytes));
    memset(host, 0, (size_t)n_bytes);
    if (is_dummy)
        mm_dummy_floats(w->pool, w->options->dummy_seed, name, n_row, n_col, host);
    else
        floats_from_files(w, name, n_row, n_col, host);
    *out = host;
    return MM_OK;
}
