/* weights_fixture.h: a checkpoint made by hand, and a mock backend (plain memory, or memory that
 * calls itself a device) to open it on: no op runs here. Included once per test_<module>.c, after
 * mm_test.h. */
#ifndef MM_WEIGHTS_FIXTURE_H
#define MM_WEIGHTS_FIXTURE_H
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/half.h"
#include "csrc/model/config.h"
#include "csrc/model/dummy.h"
#include "csrc/model/weights.h"

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

static mm_status mock_check_shape(const mm_backend *b, const mm_op_shape *s)
{
    (void)b;
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
#endif
