/* test_weights.c: binding a checkpoint made by hand, and everything that can be wrong with one. A
 * mock backend (plain memory, or memory that calls itself a device) stands in for the real ones: no
 * op runs here. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/half.h"
#include "csrc/model/config.h"
#include "csrc/model/dummy.h"
#include "csrc/model/weights.h"
#include "tests/c/mm_test.h"

/* ---------------------------------------------------------------- mock backend */

static int mock_n_alloc;

static mm_status mock_alloc(mm_backend *b, void **out, size_t n)
{
    (void)b;
    *out = aligned_alloc(256, (n + 255) / 256 * 256);
    if (*out == NULL)
        return MM_FAIL(MM_E_NOMEM, "mock");
    memset(*out, 0, n);
    mock_n_alloc++;
    return MM_OK;
}

static void mock_free(mm_backend *b, void *p)
{
    (void)b;
    mock_n_alloc -= p != NULL;
    free(p);
}

static mm_status mock_stream_open(mm_backend *b, mm_stream **out, size_t scratch)
{
    (void)b;
    (void)scratch;
    *out = malloc(1);
    return MM_OK;
}

static void mock_stream_close(mm_backend *b, mm_stream *s)
{
    (void)b;
    free(s);
}

static mm_status mock_sync(mm_backend *b, mm_stream *s)
{
    (void)b;
    (void)s;
    return MM_OK;
}

static mm_status mock_copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b;
    (void)s;
    memcpy(dst, src, n);
    return MM_OK;
}

static mm_status mock_event_open(mm_backend *b, mm_event **out)
{
    (void)b;
    *out = malloc(1);
    return MM_OK;
}

static void mock_event_close(mm_backend *b, mm_event *ev)
{
    (void)b;
    free(ev);
}

static mm_status mock_event_record(mm_backend *b, mm_event *ev, mm_stream *s)
{
    (void)b;
    (void)ev;
    (void)s;
    return MM_OK;
}

static mm_status mock_event_wait(mm_backend *b, mm_event *ev)
{
    (void)b;
    (void)ev;
    return MM_OK;
}

static size_t mock_scratch_bytes(const mm_op_shape *s, int32_t n_thread)
{
    (void)s;
    (void)n_thread;
    return 64;
}

static mm_status mock_check_shape(const mm_op_shape *s)
{
    (void)s;
    return MM_OK;
}

/* A packing that keeps checkpoint order: codes and scales of the sources one after another. */
static size_t mock_pack_bytes(const mm_op_shape *s, mm_pack kind, const mm_weight *src, int32_t n)
{
    (void)s;
    (void)kind;
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += mm_weight_bytes(&src[i]);
    return (size_t)total;
}

static mm_status mock_pack(const mm_op_context *c, mm_pack kind, const mm_weight *src, int32_t n,
                           void *dst, mm_weight *out)
{
    (void)c;
    uint8_t *at = dst;
    *out = (mm_weight){.format = src[0].format,
                       .layout = MM_LAYOUT_BACKEND,
                       .n_in = src[0].n_in,
                       .data = dst,
                       .scale_stride = kind};
    for (int32_t i = 0; i < n; i++) {
        const int64_t row = mm_weight_row_bytes(src[i].format, src[i].n_in);
        for (int64_t r = 0; r < src[i].n_out; r++, at += row)
            memcpy(at, (const uint8_t *)src[i].data + r * src[i].data_stride, (size_t)row);
        out->n_out += src[i].n_out;
    }
    return MM_OK;
}

static const mm_ops mock_ops = {.scratch_bytes = mock_scratch_bytes,
                                .check_shape = mock_check_shape};
static const mm_ops packing_ops = {.scratch_bytes = mock_scratch_bytes,
                                   .check_shape = mock_check_shape,
                                   .pack_bytes = mock_pack_bytes,
                                   .pack = mock_pack};

static mm_backend mock_backend(bool is_host)
{
    return (mm_backend){.props = {.name = "mock", .is_host = is_host, .n_thread = 1},
                        .ops = &mock_ops,
                        .alloc = mock_alloc,
                        .free = mock_free,
                        .alloc_host = mock_alloc,
                        .free_host = mock_free,
                        .stream_open = mock_stream_open,
                        .stream_close = mock_stream_close,
                        .sync = mock_sync,
                        .upload = mock_copy,
                        .download = mock_copy,
                        .copy = mock_copy,
                        .event_open = mock_event_open,
                        .event_close = mock_event_close,
                        .event_record = mock_event_record,
                        .event_wait = mock_event_wait};
}

/* ---------------------------------------------------------------- a checkpoint by hand */

enum { N_LAYER = 2, D = 64, H = 4, G = 2, HD = 32, V = 48, E = 4, F = 128, DENSE = 256 };
enum { BF16 = 0, QUANTIZED, MODELOPT };

static const uint8_t is_sparse[N_LAYER] = {1, 1}, is_moe[N_LAYER] = {0, 1};

typedef struct checkpoint {
    mm_config config;
    mm_tensor_entry entry[256];
    char name[256][96];
    int n;
    int64_t size;
    uint8_t *byte;
    char path[64];
    const char *paths[1];
    const char *prefix;
    mm_tensor_table table;
} checkpoint;

static checkpoint ck; /* one at a time */

static mm_tensor_entry *add(const char *name, mm_dtype dtype, int64_t a, int64_t b)
{
    mm_tensor_entry *e = &ck.entry[ck.n];
    snprintf(ck.name[ck.n], sizeof ck.name[0], "%s%s", ck.prefix, name);
    *e = (mm_tensor_entry){.name = ck.name[ck.n],
                           .dtype = dtype,
                           .rank = b > 0 ? 2 : 1,
                           .dim = {a, b},
                           .offset = ck.size};
    e->n_bytes = (int64_t)mm_dtype_size(dtype) * a * (b > 0 ? b : 1);
    ck.size += e->n_bytes;
    ck.n++;
    return e;
}

static void add_linear(const char *name, int64_t n_out, int64_t n_in, int format)
{
    char full[96];
#define PART(suffix, dtype, a, b)                                                                  \
    (snprintf(full, sizeof full, "%s." suffix, name), add(full, dtype, a, b))
    const bool is_expert = strstr(name, ".experts.") != NULL;
    if (format == BF16) {
        PART("weight", MM_DTYPE_BF16, n_out, n_in);
    } else if (is_expert && format == QUANTIZED) {
        PART("input_global_scale", MM_DTYPE_F32, 1, 0);
        PART("weight_global_scale", MM_DTYPE_F32, 1, 0);
        PART("weight_packed", MM_DTYPE_U8, n_out, n_in / 2);
        PART("weight_scale", MM_DTYPE_F8_E4M3, n_out, n_in / 16);
    } else if (is_expert) {
        PART("input_scale", MM_DTYPE_F32, 1, 0);
        PART("weight", MM_DTYPE_U8, n_out, n_in / 2);
        PART("weight_scale", MM_DTYPE_F8_E4M3, n_out, n_in / 16);
        PART("weight_scale_2", MM_DTYPE_F32, 1, 0)->rank = 0;
    } else {
        PART("weight", MM_DTYPE_F8_E4M3, n_out, n_in);
        if (format == QUANTIZED)
            PART("weight_scale_inv", MM_DTYPE_U8, n_out, n_in / 32);
        else
            PART("weight_scale", MM_DTYPE_U8, n_out, n_in / 32);
    }
#undef PART
}

static mm_tensor_entry *entry(const char *part)
{
    for (int i = 0; i < ck.n; i++)
        if (strstr(ck.entry[i].name, part) != NULL)
            return &ck.entry[i];
    printf("  no entry %s\n", part);
    abort();
}

static uint8_t *bytes_of(const char *part)
{
    return ck.byte + entry(part)->offset;
}

static void fill_bytes(void)
{
    uint64_t state = 12345;
    free(ck.byte);
    ck.byte = malloc((size_t)ck.size + 16);
    for (int64_t i = 0; i < ck.size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ck.byte[i] = (uint8_t)(state >> 33) & 0x77;
    }
    for (int i = 0; i < ck.n; i++)
        if (ck.entry[i].dtype == MM_DTYPE_F32 && ck.entry[i].n_bytes == 4) {
            const float scale = 3.0f + (float)i;
            memcpy(ck.byte + ck.entry[i].offset, &scale, 4);
        }
}

static void build(int format, const char *prefix)
{
    static const char *const mlp[3] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];
    mm_config_init(&ck.config);
    ck.config.n_layer = N_LAYER;
    ck.config.n_vocab = V;
    ck.config.d_model = D;
    ck.config.n_head = H;
    ck.config.n_kv_head = ck.config.n_index_head = G;
    ck.config.head_dim = ck.config.index_dim = HD;
    ck.config.n_rotary = 16;
    ck.config.n_top_block = 2;
    ck.config.n_expert = E;
    ck.config.n_expert_used = 2;
    ck.config.d_expert = ck.config.d_shared = F;
    ck.config.d_dense = DENSE;
    ck.config.max_position = 1024;
    ck.config.layer_is_sparse = is_sparse;
    ck.config.layer_is_moe = is_moe;
    ck.n = 0;
    ck.size = 64; /* where a header would be */
    ck.prefix = prefix;
    add("model.embed_tokens.weight", MM_DTYPE_BF16, V, D);
    add("lm_head.weight", MM_DTYPE_BF16, V, D);
    add("model.norm.weight", MM_DTYPE_BF16, D, 0);
    for (int i = 0; i < N_LAYER; i++) {
#define LAYER(part) (snprintf(name, sizeof name, "model.layers.%d.%s", i, part), name)
        add(LAYER("input_layernorm.weight"), MM_DTYPE_BF16, D, 0);
        add(LAYER("post_attention_layernorm.weight"), MM_DTYPE_F32, D, 0);
        add_linear(LAYER("self_attn.q_proj"), H * HD, D, format);
        add_linear(LAYER("self_attn.k_proj"), G * HD, D, format);
        add_linear(LAYER("self_attn.v_proj"), G * HD, D, format);
        add_linear(LAYER("self_attn.o_proj"), D, H * HD, format);
        add_linear(LAYER("self_attn.index_q_proj"), G * HD, D, format);
        add_linear(LAYER("self_attn.index_k_proj"), HD, D, format);
        add(LAYER("self_attn.q_norm.weight"), MM_DTYPE_BF16, HD, 0);
        add(LAYER("self_attn.k_norm.weight"), MM_DTYPE_BF16, HD, 0);
        add(LAYER("self_attn.index_q_norm.weight"), MM_DTYPE_BF16, HD, 0);
        add(LAYER("self_attn.index_k_norm.weight"), MM_DTYPE_BF16, HD, 0);
        for (int j = 0; j < 3; j++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.%s", i,
                     i == 0 ? "mlp" : "block_sparse_moe.shared_experts", mlp[j]);
            const int64_t width = i == 0 ? DENSE : F;
            add_linear(name, j < 2 ? width : D, j < 2 ? D : width, format);
        }
        if (i == 0)
            continue;
        add(LAYER("block_sparse_moe.gate.weight"), MM_DTYPE_F32, E, D);
        add(LAYER("block_sparse_moe.e_score_correction_bias"), MM_DTYPE_F32, E, 0);
        for (int e = 0; e < E; e++)
            for (int w = 1; w <= 3; w++) {
                snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.w%d", i, e,
                         w);
                add_linear(name, w == 2 ? D : F, w == 2 ? F : D, format);
            }
#undef LAYER
    }
    ck.prefix = "";
    add("vision_tower.vision_model.pre_layrnorm.weight", MM_DTYPE_BF16, 8, 0);
    add("model.mtp.layers.0.norm.weight", MM_DTYPE_BF16, 8, 0);
    add("language_model.model.dspark.fc.weight", MM_DTYPE_BF16, 8, 8);
    fill_bytes();
    snprintf(ck.path, sizeof ck.path, "/tmp/test_weights.%d.bin", (int)getpid());
    ck.paths[0] = ck.path;
}

static void write_file(int64_t n)
{
    FILE *f = fopen(ck.path, "wb");
    if (f == NULL || fwrite(ck.byte, 1, (size_t)n, f) != (size_t)n || fclose(f) != 0)
        abort();
    ck.table = (mm_tensor_table){.entry = ck.entry, .n_entry = ck.n, .path = ck.paths, .n_file = 1};
}

static mm_comm *self_comm(void)
{
    static mm_comm c = {.rank = 0, .world = 1};
    return &c;
}

static mm_engine_options options_for(mm_load load)
{
    mm_engine_options o = {
        .config = &ck.config, .load = load, .weights = &ck.table, .dtype = MM_DTYPE_BF16};
    o.kv_format = o.index_format = MM_CACHE_NVFP4;
    o.max_model_len = 256;
    o.max_num_seqs = 2;
    o.max_batched_tokens = 128;
    return o;
}

static mm_status open_shard(mm_model **out, mm_backend *b, const mm_engine_options *o, int32_t rank,
                            int32_t world)
{
    const mm_model_options mo = {.engine = o,
                                 .backend = b,
                                 .comm = self_comm(),
                                 .shard_rank = rank,
                                 .shard_world = world,
                                 .n_page = 3,
                                 .max_logit_rows = 4};
    return mm_model_open(out, &mo);
}

static mm_status open_files(mm_model **out, mm_backend *b)
{
    const mm_engine_options o = options_for(MM_LOAD_FILES);
    write_file(ck.size);
    const mm_status st = open_shard(out, b, &o, 0, 1);
    unlink(ck.path);
    return st;
}

static bool same_matrix(const mm_weight *a, const mm_weight *b)
{
    if (a->format != b->format || a->n_out != b->n_out || a->n_in != b->n_in ||
        a->global_scale != b->global_scale)
        return false;
    const size_t row = (size_t)mm_weight_row_bytes(a->format, a->n_in),
                 scale = (size_t)mm_weight_row_scale_bytes(a->format, a->n_in);
    for (int64_t i = 0; i < a->n_out; i++) {
        if (memcmp((const uint8_t *)a->data + i * a->data_stride,
                   (const uint8_t *)b->data + i * b->data_stride, row) != 0)
            return false;
        if (scale > 0 &&
            memcmp(a->scale + i * a->scale_stride, b->scale + i * b->scale_stride, scale) != 0)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- good ones */

MM_TEST(test_bind_views_the_mapping)
{
    static const char *const prefix[2] = {"", "language_model."};
    for (int format = BF16; format <= MODELOPT; format++)
        for (int p = 0; p < 2; p++) {
            mm_backend b = mock_backend(true);
            mm_model *m;
            build(format, prefix[p]);
            MM_CHECK(open_files(&m, &b) == MM_OK, "%s", mm_error_message());
            const mm_layer *l = &m->layer[1];
            const mm_weight *q = &l->attn.q, *w1 = &l->expert.w1[2];
            const bool is_plain = format == BF16;
            MM_CHECK(q->format == (is_plain ? MM_WEIGHT_BF16 : MM_WEIGHT_MXFP8) &&
                         q->n_out == H * HD && q->n_in == D,
                     "");
            MM_CHECK(w1->format == (is_plain ? MM_WEIGHT_BF16 : MM_WEIGHT_NVFP4), "");
            MM_CHECK(memcmp(q->data, bytes_of("layers.1.self_attn.q_proj.weight"), 64) == 0, "");
            MM_CHECK(memcmp(w1->data,
                            bytes_of(format == QUANTIZED ? "experts.2.w1.weight_packed"
                                                         : "experts.2.w1.weight"),
                            64) == 0,
                     "");
            if (!is_plain) {
                MM_CHECK(memcmp(q->scale, bytes_of("layers.1.self_attn.q_proj.weight_scale"), 64) ==
                             0,
                         "");
                MM_CHECK(memcmp(w1->scale, bytes_of("experts.2.w1.weight_scale"), 32) == 0, "");
                float stored;
                memcpy(&stored,
                       bytes_of(format == QUANTIZED ? "experts.2.w1.weight_global_scale"
                                                    : "experts.2.w1.weight_scale_2"),
                       4);
                MM_CHECK(w1->global_scale == (format == QUANTIZED ? stored : 1.0f / stored), "%g",
                         (double)w1->global_scale);
            }
            uint16_t bits;
            memcpy(&bits, bytes_of("layers.0.input_layernorm.weight") + 6, 2);
            MM_CHECK(m->layer[0].input_norm[3] == mm_f32_from_bf16(bits), "");
            MM_CHECK(
                memcmp(m->layer[1].gate, bytes_of("block_sparse_moe.gate.weight"), E * D * 4) == 0,
                "");
            MM_CHECK(m->layer[0].gate == NULL && m->layer[0].mlp_down.n_in == DENSE, "");
            MM_CHECK(m->n_tensor_unused == 3, "%lld", (long long)m->n_tensor_unused);
            mm_model_close(m);
            MM_CHECK(mock_n_alloc == 0, "%d left", mock_n_alloc);
        }
}

MM_TEST(test_bind_uploads_what_the_host_would_read)
{
    for (int format = BF16; format <= MODELOPT; format++) {
        mm_backend host = mock_backend(true), device = mock_backend(false);
        mm_model *a, *b;
        build(format, "");
        MM_CHECK(open_files(&a, &host) == MM_OK, "%s", mm_error_message());
        MM_CHECK(open_files(&b, &device) == MM_OK, "%s", mm_error_message());
        MM_CHECK(same_matrix(&a->embed, &b->embed) && same_matrix(&a->head, &b->head), "");
        MM_CHECK(a->head.data != b->head.data, "");
        for (int i = 0; i < N_LAYER; i++) {
            const mm_layer *x = &a->layer[i], *y = &b->layer[i];
            MM_CHECK(
                same_matrix(&x->attn.q, &y->attn.q) && same_matrix(&x->attn.k, &y->attn.k) &&
                    same_matrix(&x->attn.v, &y->attn.v) && same_matrix(&x->attn.iq, &y->attn.iq) &&
                    same_matrix(&x->attn.ik, &y->attn.ik) && same_matrix(&x->attn.o, &y->attn.o),
                "layer %d", i);
            MM_CHECK(memcmp(x->input_norm, y->input_norm, D * 4) == 0 &&
                         memcmp(x->post_norm, y->post_norm, D * 4) == 0,
                     "");
        }
        MM_CHECK(same_matrix(&a->layer[0].mlp_down, &b->layer[0].mlp_down), "");
        for (int e = 0; e < E; e++)
            MM_CHECK(same_matrix(&a->layer[1].expert.w1[e], &b->layer[1].expert.w1[e]) &&
                         same_matrix(&a->layer[1].expert.w2[e], &b->layer[1].expert.w2[e]) &&
                         same_matrix(&a->layer[1].expert.w3[e], &b->layer[1].expert.w3[e]),
                     "expert %d", e);
        mm_model_close(a);
        mm_model_close(b);
        MM_CHECK(mock_n_alloc == 0, "%d left", mock_n_alloc);
    }
}

MM_TEST(test_bind_packs_for_a_backend_with_its_own_order)
{
    mm_backend host = mock_backend(true), device = mock_backend(false);
    device.ops = &packing_ops;
    mm_model *a, *b;
    build(QUANTIZED, "");
    MM_CHECK(open_files(&a, &host) == MM_OK, "%s", mm_error_message());
    MM_CHECK(open_files(&b, &device) == MM_OK, "%s", mm_error_message());
    const mm_attn_weights *x = &a->layer[1].attn, *y = &b->layer[1].attn;
    MM_CHECK(y->qkv.n_out == H * HD + 2 * G * HD + G * HD + HD && y->q.data == NULL, "%lld",
             (long long)y->qkv.n_out);
    MM_CHECK(memcmp(y->qkv.data, x->q.data, H * HD * D) == 0, "");
    MM_CHECK(memcmp((const uint8_t *)y->qkv.data + H * HD * D, x->k.data, G * HD * D) == 0, "");
    const mm_expert_weights *ex = &a->layer[1].expert, *ey = &b->layer[1].expert;
    MM_CHECK(ey->packed_w13.n_out == 2 * E * F && ey->packed_w2.n_out == E * D &&
                 ey->w1[0].data == NULL,
             "");
    MM_CHECK(memcmp((const uint8_t *)ey->packed_w13.data + F * D / 2, ex->w3[0].data, F * D / 2) ==
                 0,
             "w1[0] then w3[0]");
    MM_CHECK(b->layer[0].mlp_gate_up.n_out == 2 * DENSE && b->head.layout == MM_LAYOUT_BACKEND, "");
    mm_model_close(a);
    mm_model_close(b);
    MM_CHECK(mock_n_alloc == 0, "%d left", mock_n_alloc);
}

/* Shards put together are the whole, in files and in dummy weights alike. */
static void check_shards(mm_load load, int format)
{
    mm_backend host = mock_backend(true);
    mm_engine_options o = options_for(load);
    o.dummy_seed = 7;
    o.dummy_quantized = format != BF16;
    mm_model *whole, *part;
    MM_CHECK(open_shard(&whole, &host, &o, 0, 1) == MM_OK, "%s", mm_error_message());
    for (int r = 0; r < 2; r++) {
        MM_CHECK(open_shard(&part, &host, &o, r, 2) == MM_OK, "%s", mm_error_message());
        const mm_layer *x = &whole->layer[1], *y = &part->layer[1];
        const mm_weight q = mm_weight_rows(&x->attn.q, r * H * HD / 2, H * HD / 2),
                        k = mm_weight_rows(&x->attn.k, r * HD, HD),
                        iq = mm_weight_rows(&x->attn.iq, r * HD, HD),
                        out = mm_weight_cols(&x->attn.o, r * H * HD / 2, H * HD / 2),
                        w3 = mm_weight_rows(&x->expert.w3[1], r * F / 2, F / 2),
                        w2 = mm_weight_cols(&x->expert.w2[3], r * F / 2, F / 2),
                        head = mm_weight_rows(&whole->head, r * V / 2, V / 2),
                        down = mm_weight_cols(&whole->layer[0].mlp_down, r * DENSE / 2, DENSE / 2);
        MM_CHECK(same_matrix(&q, &y->attn.q) && same_matrix(&k, &y->attn.k) &&
                     same_matrix(&iq, &y->attn.iq),
                 "rank %d", r);
        MM_CHECK(same_matrix(&out, &y->attn.o) && same_matrix(&w3, &y->expert.w3[1]) &&
                     same_matrix(&w2, &y->expert.w2[3]),
                 "rank %d", r);
        MM_CHECK(same_matrix(&head, &part->head) && same_matrix(&down, &part->layer[0].mlp_down),
                 "rank %d", r);
        MM_CHECK(same_matrix(&x->attn.ik, &y->attn.ik) && same_matrix(&whole->embed, &part->embed),
                 "rank %d", r);
        MM_CHECK(memcmp(x->gate, y->gate, E * D * 4) == 0 && memcmp(x->bias, y->bias, E * 4) == 0,
                 "rank %d", r);
        mm_model_close(part);
    }
    mm_model_close(whole);
}

MM_TEST(test_shards_are_slices_of_the_whole)
{
    for (int format = BF16; format <= MODELOPT; format++) {
        build(format, "");
        write_file(ck.size);
        check_shards(MM_LOAD_FILES, format);
        unlink(ck.path);
    }
    for (int format = BF16; format <= QUANTIZED; format++)
        check_shards(MM_LOAD_DUMMY, format);
}

MM_TEST(test_too_many_ranks_are_refused)
{
    mm_backend host = mock_backend(true);
    build(BF16, "");
    write_file(ck.size);
    ck.config.n_head = H;
    const mm_engine_options o = options_for(MM_LOAD_FILES);
    mm_model *whole, *part = NULL;
    MM_CHECK(open_shard(&whole, &host, &o, 0, 1) == MM_OK, "%s", mm_error_message());
    /* 4 ranks of 32 columns: widths cannot be cut so finely, and the message says which */
    MM_CHECK(open_shard(&part, &host, &o, 3, 4) == MM_E_CONFIG && part == NULL, "");
    MM_CHECK(strstr(mm_error_message(), "head_dim") != NULL &&
                 strstr(mm_error_message(), "intermediate_size") != NULL,
             "%s", mm_error_message());
    mm_model_close(whole);
    unlink(ck.path);
}

MM_TEST(test_misaligned_tensors_are_copied)
{
    mm_backend host = mock_backend(true);
    mm_model *m;
    build(BF16, "");
    for (int i = 0; i < ck.n; i++)
        ck.entry[i].offset++;
    ck.size++;
    memmove(ck.byte + 1, ck.byte, (size_t)ck.size - 1);
    MM_CHECK(open_files(&m, &host) == MM_OK, "%s", mm_error_message());
    MM_CHECK((uintptr_t)m->layer[0].attn.q.data % 2 == 0, "");
    MM_CHECK(memcmp(m->layer[0].attn.q.data, bytes_of("layers.0.self_attn.q_proj.weight"), 64) == 0,
             "");
    mm_model_close(m);
}

/* ---------------------------------------------------------------- bad ones */

/* Opening fails with that status, and the message holds all the words. */
static bool fails_on(bool is_host, int64_t n_file, mm_status want, const char *a, const char *b,
                     const char *c)
{
    mm_backend host = mock_backend(is_host);
    const mm_engine_options o = options_for(MM_LOAD_FILES);
    mm_model *m = NULL;
    write_file(n_file);
    const mm_status st = open_shard(&m, &host, &o, 0, 1);
    unlink(ck.path);
    const char *text = mm_error_message();
    if (st == want && m == NULL && strstr(text, a) && strstr(text, b) && strstr(text, c) &&
        mock_n_alloc == 0)
        return true;
    printf("  status %s: %s (wanted %s: %s, %s, %s)\n", mm_status_name(st), text,
           mm_status_name(want), a, b, c);
    mm_model_close(m);
    return false;
}

static bool fails(const char *a, const char *b, const char *c)
{
    return fails_on(true, ck.size, MM_E_FORMAT, a, b, c) &&
           fails_on(false, ck.size, MM_E_FORMAT, a, b, c);
}

MM_TEST(test_missing_tensor)
{
    build(QUANTIZED, "");
    snprintf(ck.name[entry("experts.2.w3.weight_packed") - ck.entry], 96, "vision_tower.renamed");
    MM_CHECK(fails("model.layers.1.block_sparse_moe.experts.2.w3.weight", "missing", "[128, 64]"),
             "");
    build(QUANTIZED, "");
    snprintf(ck.name[entry("experts.2.w3.weight_scale") - ck.entry], 96, "vision_tower.renamed");
    MM_CHECK(
        fails("model.layers.1.block_sparse_moe.experts.2.w3.weight_scale", "missing", "[128, 4]"),
        "");
    build(QUANTIZED, "");
    snprintf(ck.name[entry("layers.0.self_attn.o_proj.weight_scale_inv") - ck.entry], 96,
             "vision_tower.renamed");
    MM_CHECK(fails("model.layers.0.self_attn.o_proj.weight_scale_inv", "missing", "U8"), "");
    build(BF16, "");
    snprintf(ck.name[entry("layers.1.post_attention_layernorm") - ck.entry], 96,
             "vision_tower.renamed");
    MM_CHECK(fails("model.layers.1.post_attention_layernorm.weight", "missing", "[64]"), "");
}

MM_TEST(test_unknown_tensor)
{
    build(BF16, "");
    ck.prefix = "language_model.";
    add("model.layers.0.self_attn.q_proj.bias", MM_DTYPE_BF16, H * HD, 0);
    fill_bytes();
    MM_CHECK(fails("language_model.model.layers.0.self_attn.q_proj.bias", "unknown", ck.path), "");
}

MM_TEST(test_tensor_there_twice)
{
    build(QUANTIZED, "");
    ck.prefix = "language_model.";
    add("lm_head.weight", MM_DTYPE_BF16, V, D);
    fill_bytes();
    MM_CHECK(fails("lm_head.weight", "twice", "language_model."), "");
    build(QUANTIZED, "");
    add("model.layers.1.block_sparse_moe.experts.0.w1.weight", MM_DTYPE_BF16, F, D);
    fill_bytes();
    MM_CHECK(fails("experts.0.w1", ".weight_packed", "both"), "");
    build(QUANTIZED, "");
    add("model.layers.0.self_attn.q_proj.weight_scale", MM_DTYPE_U8, H * HD, D / 32);
    fill_bytes();
    MM_CHECK(fails("layers.0.self_attn.q_proj", ".weight_scale_inv", "both"), "");
}

MM_TEST(test_wrong_shape)
{
    build(QUANTIZED, "");
    mm_tensor_entry *e = entry("experts.1.w1.weight_packed");
    e->dim[0] = F / 2;
    e->dim[1] = D;
    MM_CHECK(fails("experts.1.w1.weight_packed", "[64, 64]", "[128, 32]"), "");
    build(BF16, "");
    e = entry("layers.0.self_attn.q_norm");
    e->rank = 2;
    e->dim[0] = 1;
    e->dim[1] = HD;
    MM_CHECK(fails("layers.0.self_attn.q_norm", "[1, 32]", "[32]"), "");
    build(BF16, "");
    entry("lm_head")->dim[0] = V + 1;
    MM_CHECK(fails("lm_head", "6272", "6144"), "");
    build(BF16, "");
    entry("lm_head")->dim[0] = (int64_t)1 << 62;
    MM_CHECK(fails("lm_head", "impossible", ck.path), "");
    build(BF16, "");
    entry("lm_head")->dim[1] = -D;
    MM_CHECK(fails("lm_head", "impossible", ck.path), "");
}

MM_TEST(test_wrong_dtype)
{
    build(BF16, "");
    entry("layers.0.self_attn.q_proj")->dtype = MM_DTYPE_F16;
    MM_CHECK(fails("layers.0.self_attn.q_proj.weight", "F16", "BF16"), "");
    build(QUANTIZED, "");
    entry("experts.0.w2.weight_scale")->dtype = MM_DTYPE_U8;
    MM_CHECK(fails("experts.0.w2.weight_scale", "U8", "F8_E4M3"), "");
    build(QUANTIZED, "");
    entry("layers.0.self_attn.q_proj.weight_scale_inv")->dtype = MM_DTYPE_F8_E4M3;
    MM_CHECK(fails("layers.0.self_attn.q_proj.weight_scale_inv", "F8_E4M3", "U8"), "");
    build(BF16, "");
    entry("lm_head")->dtype = (mm_dtype)77;
    MM_CHECK(fails("lm_head", "impossible", "dtype"), "");
    build(QUANTIZED, "");
    entry("embed_tokens")->dtype = MM_DTYPE_F8_E4M3;
    entry("embed_tokens")->n_bytes = V * D;
    add("model.embed_tokens.weight_scale_inv", MM_DTYPE_U8, V, D / 32);
    fill_bytes();
    MM_CHECK(fails("model.embed_tokens", "quantised", "BF16"), "");
}

MM_TEST(test_truncated_file)
{
    build(QUANTIZED, "");
    MM_CHECK(fails_on(true, ck.size - 1, MM_E_FORMAT, "truncated", ck.path, "dspark"), "");
    MM_CHECK(fails_on(true, 100, MM_E_FORMAT, "truncated", ck.path, "more"), "");
    MM_CHECK(fails_on(true, 0, MM_E_FORMAT, "empty", ck.path, ""), "");
    entry("lm_head")->offset = INT64_MAX - 10;
    MM_CHECK(fails("truncated", "lm_head", ck.path), "");
    build(QUANTIZED, "");
    entry("lm_head")->offset = -8;
    MM_CHECK(fails("truncated", "lm_head", ck.path), "");
}

MM_TEST(test_missing_file)
{
    mm_backend host = mock_backend(true);
    const mm_engine_options o = options_for(MM_LOAD_FILES);
    mm_model *m = NULL;
    build(BF16, "");
    write_file(ck.size);
    unlink(ck.path);
    MM_CHECK(open_shard(&m, &host, &o, 0, 1) == MM_E_IO &&
                 strstr(mm_error_message(), ck.path) != NULL,
             "%s", mm_error_message());
    ck.paths[0] = "/tmp";
    MM_CHECK(open_shard(&m, &host, &o, 0, 1) == MM_E_IO &&
                 strstr(mm_error_message(), "regular") != NULL,
             "%s", mm_error_message());
}

MM_TEST(test_overlapping_tensors)
{
    build(QUANTIZED, "");
    entry("layers.1.self_attn.k_proj.weight")->offset -= 1;
    MM_CHECK(fails("share bytes", "k_proj", "q_proj"), "");
}

MM_TEST(test_bad_scales)
{
    static const uint8_t bad[3] = {0x7F, 0xFF, 0x81};
    build(QUANTIZED, "");
    bytes_of("layers.0.mlp.up_proj.weight_scale_inv")[17] = 0xFF;
    MM_CHECK(fails("model.layers.0.mlp.up_proj", "0xFF", "NaN"), "");
    for (int i = 0; i < 3; i++) {
        build(i == 1 ? MODELOPT : QUANTIZED, "");
        bytes_of("experts.3.w2.weight_scale")[11] = bad[i];
        MM_CHECK(fails("experts.3.w2", "row 1 ", i == 2 ? "negative" : "NaN"), "");
    }
    build(QUANTIZED, "");
    bytes_of("layers.0.mlp.up_proj.weight_scale_inv")[17] = 0xFE; /* 2^127: allowed */
    mm_backend host = mock_backend(true);
    mm_model *m;
    MM_CHECK(open_files(&m, &host) == MM_OK, "%s", mm_error_message());
    mm_model_close(m);
}

MM_TEST(test_bad_global_scales)
{
    const float bad[5] = {0.0f, -1.0f, NAN, INFINITY, 1e-42f};
    for (int format = QUANTIZED; format <= MODELOPT; format++)
        for (int i = 0; i < 5; i++) {
            if (format == QUANTIZED && i == 4)
                continue; /* tiny is a strange encode scale, but a possible one; its reciprocal is
                             not */
            const char *name = format == QUANTIZED ? "experts.1.w3.weight_global_scale"
                                                   : "experts.1.w3.weight_scale_2";
            build(format, "");
            memcpy(bytes_of(name), &bad[i], 4);
            MM_CHECK(fails(name, "finite", ck.path), "%d", i);
        }
}

MM_TEST(test_all_problems_in_one_message)
{
    build(QUANTIZED, "");
    snprintf(ck.name[entry("layers.1.self_attn.q_norm") - ck.entry], 96, "vision_tower.renamed");
    bytes_of("layers.0.mlp.up_proj.weight_scale_inv")[0] = 0xFF;
    MM_CHECK(fails("q_norm", "up_proj", "; "), "");
    ck.config.d_model = 128; /* everything is misshapen: as many as fit, and a count */
    MM_CHECK(fails("embed_tokens", "more)", ""), "");
}

MM_TEST(test_changed_file_is_refused)
{
    mm_backend host = mock_backend(true);
    const mm_engine_options o = options_for(MM_LOAD_FILES);
    mm_model *m;
    build(BF16, "");
    write_file(ck.size);
    MM_CHECK(open_shard(&m, &host, &o, 0, 1) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_weights_verify(m->weights) == MM_OK, "%s", mm_error_message());
    FILE *f = fopen(ck.path, "ab");
    fputc(1, f);
    fclose(f);
    MM_CHECK(mm_weights_verify(m->weights) == MM_E_IO &&
                 strstr(mm_error_message(), "changed") != NULL,
             "%s", mm_error_message());
    char other[80];
    snprintf(other, sizeof other, "%s.new", ck.path);
    f = fopen(other, "wb");
    fwrite(ck.byte, 1, (size_t)ck.size, f);
    fclose(f);
    MM_CHECK(rename(other, ck.path) == 0, "");
    MM_CHECK(mm_weights_verify(m->weights) == MM_E_IO &&
                 strstr(mm_error_message(), "another file") != NULL,
             "%s", mm_error_message());
    unlink(ck.path);
    MM_CHECK(mm_weights_verify(m->weights) == MM_E_IO && strstr(mm_error_message(), "gone") != NULL,
             "%s", mm_error_message());
    mm_model_close(m);
}

static int cancel(void *ctx, int64_t done, int64_t total)
{
    (*(int *)ctx)++;
    return done > total ? 2 : 1;
}

MM_TEST(test_poll_cancels)
{
    mm_backend host = mock_backend(true);
    mm_engine_options o = options_for(MM_LOAD_DUMMY);
    int n = 0;
    mm_model *m = NULL;
    build(BF16, "");
    o.poll = cancel;
    o.poll_ctx = &n;
    MM_CHECK(open_shard(&m, &host, &o, 0, 1) == MM_E_CANCELLED && m == NULL && n == 1, "%s",
             mm_error_message());
    MM_CHECK(mock_n_alloc == 0, "%d left", mock_n_alloc);
}

/* ---------------------------------------------------------------- dummy */

static double std_of(const mm_weight *m)
{
    double square = 0.0;
    for (int64_t r = 0; r < m->n_out; r++)
        for (int64_t c = 0; c < m->n_in; c++) {
            const uint8_t *row = (const uint8_t *)m->data + r * m->data_stride;
            double v;
            if (m->format == MM_WEIGHT_BF16)
                v = (double)mm_f32_from_bf16(((const uint16_t *)(const void *)row)[c]);
            else if (m->format == MM_WEIGHT_MXFP8)
                v = (double)mm_f32_from_e4m3(row[c]) *
                    (double)mm_f32_from_e8m0(m->scale[r * m->scale_stride + c / 32]);
            else
                v = (double)mm_f32_from_e2m1(mm_e2m1_at(row, c)) *
                    (double)mm_f32_from_e4m3(m->scale[r * m->scale_stride + c / 16]) /
                    (double)m->global_scale;
            square += v * v;
        }
    return sqrt(square / (double)(m->n_out * m->n_in));
}

MM_TEST(test_dummy_magnitudes_and_seeds)
{
    for (int quantized = 0; quantized < 2; quantized++) {
        mm_backend host = mock_backend(true);
        mm_engine_options o = options_for(MM_LOAD_DUMMY);
        mm_model *a, *b;
        build(BF16, "");
        o.dummy_quantized = quantized;
        MM_CHECK(open_shard(&a, &host, &o, 0, 1) == MM_OK, "%s", mm_error_message());
        const mm_weight *list[] = {&a->layer[1].attn.q, &a->layer[1].expert.w1[0],
                                   &a->layer[1].expert.w2[3], &a->layer[0].mlp_down, &a->head};
        for (size_t i = 0; i < MM_ARRAY_LEN(list); i++) {
            const double ratio = std_of(list[i]) * sqrt((double)list[i]->n_in);
            MM_CHECK(ratio > 0.9 && ratio < 1.1, "matrix %zu: %g", i, ratio);
        }
        MM_CHECK(!same_matrix(&a->layer[1].expert.w1[0], &a->layer[1].expert.w1[1]),
                 "experts differ");
        MM_CHECK(!same_matrix(&a->layer[0].attn.q, &a->layer[1].attn.q), "layers differ");
        o.dummy_seed = 1;
        MM_CHECK(open_shard(&b, &host, &o, 0, 1) == MM_OK, "%s", mm_error_message());
        MM_CHECK(!same_matrix(&a->layer[1].attn.q, &b->layer[1].attn.q), "seeds differ");
        MM_CHECK(a->n_tensor_unused == 0, "");
        mm_model_close(b);
        mm_backend device = mock_backend(false);
        o.dummy_seed = 0;
        MM_CHECK(open_shard(&b, &device, &o, 0, 1) == MM_OK, "%s", mm_error_message());
        MM_CHECK(same_matrix(&a->layer[1].expert.w2[3], &b->layer[1].expert.w2[3]), "device");
        MM_CHECK(memcmp(a->layer[1].post_norm, b->layer[1].post_norm, D * 4) == 0, "device");
        mm_model_close(a);
        mm_model_close(b);
    }
    MM_CHECK(mock_n_alloc == 0, "%d left", mock_n_alloc);
}

/* ---------------------------------------------------------------- what a model holds */

MM_TEST(test_model_pages_and_rope)
{
    mm_backend host = mock_backend(true);
    mm_model *m;
    build(BF16, "");
    MM_CHECK(open_files(&m, &host) == MM_OK, "%s", mm_error_message());
    int64_t pages = 0;
    for (int32_t i = 0; i < m->n_memory; i++)
        if (strstr(m->memory[i].what, "pages") != NULL)
            pages += m->memory[i].n_bytes;
    MM_CHECK(pages == 3 * mm_model_page_bytes(&ck.config, MM_CACHE_NVFP4, MM_CACHE_NVFP4, 0, 1),
             "%lld", (long long)pages);
    for (int p = 0; p < 256; p += 51)
        for (int j = 0; j < 8; j++) {
            const double angle = p * pow(5e6, -2.0 * j / 16.0);
            MM_CHECK(m->ctx.rope[p * 16 + j] == (float)cos(angle) &&
                         m->ctx.rope[p * 16 + 8 + j] == (float)sin(angle),
                     "");
        }
    mm_model_close(m);
}
