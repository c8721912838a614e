/* test_weights.c: binding a checkpoint: formats, spellings, shards, uploads, dummy weights. */
#include "tests/c/mm_test.h"
#include "tests/c/weights_fixture.h"

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
