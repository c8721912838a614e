/* selftest.cu: kernels that use everything the emulator offers and compare with plain loops. With
 * an argument it does one thing wrong on purpose (wrong_kernel). */
#include <assert.h>
#include <stdio.h>

#include "kernels/cuda/ptx.h"

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            emu_die("selftest line %d: %s", __LINE__, #cond);                                      \
    } while (0)

static uint32_t counter[4];

static void launch(const char *name, dim3 grid, dim3 block, size_t smem, std::function<void()> body,
                   uint32_t n_cluster = 1)
{
    const emu_kernel k = {name, grid, block, n_cluster, smem, std::move(body), counter, 4};
    CHECK(emu_launch(nullptr, k) == cudaSuccess);
}

__global__ void warp_kernel(int *out)
{
    mm_pdl_wait();
    const int l = (int)threadIdx.x % 32, w = (int)threadIdx.x / 32;
    int s = l;
    for (int d = 16; d > 0; d /= 2)
        s += __shfl_xor_sync(0xFFFFFFFFu, s, d);
    CHECK(s == 496);
    CHECK(__shfl_sync(0xFFFFFFFFu, l + 1, 5) == 6);
    CHECK(__shfl_sync(0xFFFFFFFFu, l, 1, 4) == (l & ~3) + 1);
    CHECK(__shfl_up_sync(0xFFFFFFFFu, l, 1) == (l > 0 ? l - 1 : 0));
    CHECK(__shfl_down_sync(0xFFFFFFFFu, l, 3, 8) == (l % 8 < 5 ? l + 3 : l));
    CHECK(__ballot_sync(0xFFFFFFFFu, l % 3 == 0) == 0x49249249u);
    CHECK(__any_sync(0xFFFFFFFFu, l == 7) && !__all_sync(0xFFFFFFFFu, l == 7));
    CHECK(__match_any_sync(0xFFFFFFFFu, l / 8) == 0xFFu << (l & ~7));
    CHECK(__reduce_max_sync(0xFFFFFFFFu, l - 40) == -9);
    CHECK(__reduce_add_sync(0xFFFFFFFFu, 1u) == 32);
    if (l < 16) /* a part of the warp alone */
        CHECK(__shfl_sync(0x0000FFFFu, l, 3) == 3);
    __syncwarp();
    CHECK(__syncthreads_count(l == 0) == (int)blockDim.x / 32);
    CHECK(__syncthreads_or(w == 1 && l == 1) && !__syncthreads_and(l != 9));
    if (w == 0)
        return; /* who has ended is not waited for */
    __syncthreads();
    atomicAdd(out, 1);
}

__global__ void shared_kernel(int *out, int n)
{
    __shared__ int part[64];
    mm_pdl_wait();
#if !defined(__SANITIZE_ADDRESS__)
    CHECK(part[threadIdx.x] == -1); /* poison, also after another block */
#endif
    part[threadIdx.x] = (int)(blockIdx.x * 100 + threadIdx.x);
    __syncthreads();
    out[blockIdx.x * (unsigned)n + threadIdx.x] = part[63 - threadIdx.x];
}

__global__ void mma_kernel(const uint16_t *a, const uint16_t *b, float *d)
{
    uint16_t *sa = (uint16_t *)mm_smem(), *sb = sa + 256; /* a [16, 16]; b [16 k, 8 n] */
    mm_pdl_wait();
    const int l = (int)threadIdx.x;
    mm_cp_async16(sa + 8 * l, a + 8 * l, true);
    mm_cp_async_commit();
    mm_cp_async16(sb + 8 * l, b + 8 * l, l < 16);
    mm_cp_async_commit();
    mm_cp_async_wait<1>();
    __syncwarp();
    uint32_t fa[4], fb[4];
    mm_ldmatrix_x4(fa, sa + 16 * (l % 16) + 8 * (l / 16));
    mm_cp_async_wait<0>();
    __syncwarp();
    mm_ldmatrix_x4_trans(fb, sb + 8 * (l % 16)); /* b twice; the product takes two registers */
    float acc[4] = {0, 0, 0, 0};
    mm_mma_bf16(acc, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2] = acc[i];
}

/* Warp 0 fills two stages, warp 1 reads them, as loader and consumers of a ring do. */
__global__ void ring_kernel(const uint32_t *in, uint32_t *out)
{
    __shared__ uint64_t full[2], empty[2];
    uint32_t *stage = (uint32_t *)mm_smem(); /* [2][32] */
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) {
            mm_mbar_init(&full[s], 32);
            mm_mbar_init(&empty[s], 32);
        }
    }
    __syncthreads();
    mm_pdl_wait();
    for (uint32_t i = 0; i < 12; i++) {
        const uint32_t s = i % 2, round = i / 2;
        if (threadIdx.x < 32) {
            if (round > 0)
                mm_mbar_wait(&empty[s], (round - 1) & 1);
            stage[32 * s + lane] = in[32 * i + lane];
            mm_mbar_arrive(&full[s]);
        } else {
            mm_mbar_wait(&full[s], round & 1);
            out[32 * i + lane] = stage[32 * s + 31 - lane] + 1;
            mm_mbar_arrive(&empty[s]);
        }
    }
}

/* Blocks of a cluster read each other's shared memory; their static one stays their own. */
__global__ void cluster_kernel(int *out)
{
    __shared__ int mine;
    float *s = (float *)mm_smem(); /* [64, 4] */
    const int block = (int)blockIdx.x, i = (int)threadIdx.x;
    mm_pdl_wait();
    if (i == 0)
        mine = block;
    s[4 * i] = (float)(64 * block + i);
    s[4 * i + 3] = -1.0f;
    __syncthreads();
    mm_cluster_sync();
    const float4 v = mm_cluster_ld16(s + 4 * i, (block + 1) % 4);
    CHECK(v.w == -1.0f && mine == block);
    out[64 * block + i] = (int)v.x;
    mm_cluster_sync();
    CHECK(mine == block);
}

__global__ void wrong_kernel(const char *how, const uint32_t *in, uint32_t *out)
{
    uint32_t *s = (uint32_t *)mm_smem(); /* [32] */
    if (strcmp(how, "no_pdl") != 0)
        mm_pdl_wait();
    if (strcmp(how, "stuck") == 0) {
        if (threadIdx.x == 40)
            __shfl_sync(0xFFFFFFFFu, 1, 0);
        else
            __syncthreads();
    }
    if (strcmp(how, "bounds") == 0)
        out[64 + threadIdx.x] = 1;
    if (strcmp(how, "counter") == 0)
        counter[2] = 1;
    if (strcmp(how, "early") == 0 && threadIdx.x < 8) { /* reads before the copy was waited for */
        mm_cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
        mm_cp_async_commit();
        CHECK(s[4 * threadIdx.x] == in[4 * threadIdx.x]);
    }
    if (strcmp(how, "mbarrier") == 0 && threadIdx.x == 0)
        mm_mbar_arrive((uint64_t *)s);
    if (strcmp(how, "lanes") == 0 && threadIdx.x < 16) {
        const uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
        float d[4] = {0, 0, 0, 0};
        mm_mma_bf16(d, a, b); /* the other lanes have ended */
    }
    if (strcmp(how, "cluster") == 0 && blockIdx.x == 0)
        mm_cluster_sync(); /* block 1 has ended */
    if (strcmp(how, "align") == 0)
        (void)mm_ld_stream(in + threadIdx.x);
}

static uint32_t *device_words(size_t n)
{
    void *p;
    CHECK(cudaMalloc(&p, 4 * n) == cudaSuccess);
    memset(p, 0, 4 * n);
    return (uint32_t *)p;
}

static void right()
{
    int *count = (int *)device_words(1), *rows = (int *)device_words(300);
    launch("warp", dim3(3), dim3(96), 0, [=] { warp_kernel(count); });
    CHECK(*count == 3 * 64);
    launch("shared", dim3(3), dim3(64), 0, [=] { shared_kernel(rows, 100); });
    CHECK(rows[0] == 63 && rows[200] == 263);
    uint16_t *a = (uint16_t *)device_words(128), *b = (uint16_t *)device_words(64);
    float *d = (float *)device_words(128);
    for (int i = 0; i < 256; i++)
        a[i] = mm_f32_bf16((float)(i % 7 - 3));
    for (int i = 0; i < 128; i++)
        b[i] = mm_f32_bf16((float)(i % 5 - 2));
    launch("mma", dim3(1), dim3(32), 1024, [=] { mma_kernel(a, b, d); });
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += mm_bf16_f32(a[16 * i + k]) * mm_bf16_f32(b[8 * k + j]);
            CHECK(d[8 * i + j] == sum);
        }
    }
    uint32_t *in = device_words(384), *out = device_words(384);
    for (uint32_t i = 0; i < 384; i++)
        in[i] = 3 * i;
    launch("ring", dim3(1), dim3(64), 256, [=] { ring_kernel(in, out); });
    for (uint32_t i = 0; i < 384; i++)
        CHECK(out[i] == 3 * (i / 32 * 32 + 31 - i % 32) + 1);
    int *from = (int *)device_words(512);
    launch("cluster", dim3(8), dim3(64), 1024, [=] { cluster_kernel(from); }, 4);
    for (int i = 0; i < 512; i++)
        CHECK(from[i] == i / 256 * 256 + (i + 64) % 256);
    for (int c = 0; c < 256; c++) { /* formats as on the device */
        uint32_t h[2];
        mm_e4m3x4_bf16x4((uint32_t)c * 0x01010101u, h);
        CHECK((c & 0x7F) == 0x7F || mm_bf16_hi(h[1]) == mm_e4m3_f32((uint32_t)c));
    }
    CHECK(mm_prmt(0x80FF0102u, 0x11223344u, 0x4B30) == 0x44FF8002u);
}

int main(int n, char **arg)
{
    if (n == 1) {
        right();
        puts("ok");
        return 0;
    }
    const char *how = arg[1];
    uint32_t *in = device_words(64), *out = device_words(64);
    const uint32_t n_block = strcmp(how, "cluster") == 0 ? 2 : 1;
    launch("wrong", dim3(n_block), dim3(64), 128, [=] { wrong_kernel(how, in, out); }, n_block);
    return 0;
}
