/* emu_ptx.h: the functions of kernels/cuda/ptx.h on the emulated machine. */
#ifndef MM_EMU_PTX_H
#define MM_EMU_PTX_H
#include <cuda_runtime.h>

#include "csrc/base/half.h"

#define MM_DEV_FN static inline __attribute__((unused))

MM_DEV_FN uint8_t *mm_smem()
{
    return emu_smem;
}

/* ---------------------------------------------------------------- formats */

MM_DEV_FN float mm_f32_bits(uint32_t u)
{
    return __uint_as_float(u);
}
MM_DEV_FN float mm_bf16_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
MM_DEV_FN float mm_bf16_lo(uint32_t h2)
{
    return __uint_as_float(h2 << 16);
}
MM_DEV_FN float mm_bf16_hi(uint32_t h2)
{
    return __uint_as_float(h2 & 0xFFFF0000u);
}
MM_DEV_FN uint16_t mm_f32_bf16(float x)
{
    return mm_bf16_from_f32(x);
}
MM_DEV_FN uint32_t mm_f32x2_bf16x2(float lo, float hi)
{
    return (uint32_t)mm_f32_bf16(lo) | (uint32_t)mm_f32_bf16(hi) << 16;
}
MM_DEV_FN uint32_t mm_f32x2_f16x2(float lo, float hi)
{
    const auto half = [](float x) {
        const uint32_t u = __float_as_uint(x), a = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000u;
        if (a > 0x7F800000u)
            return 0x7FFFu;
        if (a >= 0x477FF000u) /* rounds to more than 65504 */
            return sign | 0x7C00u;
        if (a < 0x38800000u) /* below 2^-14: a multiple of 2^-24 */
            return sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3F000000u);
        return sign | (((a + 0xFFFu + (a >> 13 & 1u)) >> 13) - (112u << 10));
    };
    return half(lo) | half(hi) << 16;
}
MM_DEV_FN float mm_round_bf16(float x)
{
    return mm_bf16_f32(mm_f32_bf16(x));
}
MM_DEV_FN float mm_max_nan(float a, float b)
{
    return a != a || b != b ? NAN : fmaxf(a, b);
}
MM_DEV_FN float mm_exp2(float x)
{
    return exp2f(x);
}
MM_DEV_FN uint32_t mm_mul_bf16x2(uint32_t a, uint32_t b)
{
    return mm_f32x2_bf16x2(mm_bf16_lo(a) * mm_bf16_lo(b), mm_bf16_hi(a) * mm_bf16_hi(b));
}
template <int HALF> MM_DEV_FN uint32_t mm_mul_bf16x2_half(uint32_t a, uint32_t b)
{
    const uint32_t h = HALF == 0 ? b & 0xFFFFu : b >> 16;
    return mm_mul_bf16x2(a, h | h << 16);
}
MM_DEV_FN uint32_t mm_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    const uint64_t v = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = sel >> 4 * i & 15, byte = (uint32_t)(v >> 8 * (s & 7) & 0xFF);
        d |= (s & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
    }
    return d;
}
MM_DEV_FN float mm_e4m3_f32(uint32_t c)
{
    return mm_f32_from_e4m3((uint8_t)c);
}
MM_DEV_FN uint32_t mm_f32_e4m3(float x)
{
    return mm_e4m3_from_f32(x);
}
MM_DEV_FN uint32_t mm_f32x2_e4m3x2(float lo, float hi)
{
    return mm_f32_e4m3(lo) | mm_f32_e4m3(hi) << 8;
}
MM_DEV_FN void mm_e4m3x4_bf16x4(uint32_t c, uint32_t out[2])
{
    uint16_t h[4];
    for (int i = 0; i < 4; i++) { /* a NaN code becomes 480, as on the device */
        const uint32_t e = c >> 8 * i & 0xFF;
        const float x = (e & 0x7F) == 0x7F ? 480.0f : mm_f32_from_e4m3((uint8_t)(e & 0x7F));
        h[i] = (uint16_t)(mm_bf16_from_f32(x) | (e & 0x80) << 8);
    }
    out[0] = (uint32_t)h[0] | (uint32_t)h[1] << 16;
    out[1] = (uint32_t)h[2] | (uint32_t)h[3] << 16;
}
MM_DEV_FN void mm_e4m3x4_f16x4(uint32_t c, uint32_t out[2])
{
    uint16_t h[4];
    for (int i = 0; i < 4; i++) {
        const uint32_t u = __float_as_uint(mm_f32_from_e4m3((uint8_t)(c >> 8 * i)));
        const uint32_t a = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000u;
        h[i] = (uint16_t)(a == 0            ? sign
                          : a > 0x7F800000u ? 0x7FFFu
                                            : sign | ((a >> 13) - (112u << 10)));
    }
    out[0] = (uint32_t)h[0] | (uint32_t)h[1] << 16;
    out[1] = (uint32_t)h[2] | (uint32_t)h[3] << 16;
}
MM_DEV_FN float emu_f16_f32(uint32_t h)
{
    const uint32_t a = h & 0x7FFFu, sign = (h & 0x8000u) << 16;
    return __uint_as_float(a < 0x400u    ? sign | __float_as_uint((float)a * 0x1p-24f)
                           : a == 0x7C00 ? sign | 0x7F800000u
                           : a > 0x7C00  ? sign | 0x7FC00000u
                                         : sign | ((a << 13) + (112u << 23)));
}

/* ---------------------------------------------------------------- memory */

MM_DEV_FN uint32_t mm_atomic_add_acq_rel(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}
MM_DEV_FN uint4 mm_ld_stream(const void *p)
{
    emu_check_aligned(p, 16, "mm_ld_stream");
    return *(const uint4 *)p;
}
MM_DEV_FN void mm_cp_async16(void *smem, const void *gmem, bool valid)
{
    emu_copy_start(smem, gmem, valid);
}
MM_DEV_FN void mm_prefetch_l2(const void *p)
{
    (void)*(const volatile uint8_t *)p; /* must be memory of ours */
}
MM_DEV_FN void mm_cp_async16_if(bool is_wanted, void *smem, const void *gmem)
{
    if (is_wanted)
        emu_copy_start(smem, gmem, true);
}
MM_DEV_FN void mm_cp_async_commit()
{
    emu_copy_commit();
}
template <int N> MM_DEV_FN void mm_cp_async_wait()
{
    emu_copy_wait(N);
}

struct emu_ldmatrix_arg {
    uint32_t *r;
    const uint16_t *row;
};
template <bool IS_TRANS> MM_DEV_FN void emu_ldmatrix_op(void *const *arg, uint32_t lanes)
{
    if (lanes != 0xFFFFFFFFu)
        emu_die("ldmatrix by lanes %08x: all 32 must call it", lanes);
    for (int m = 0; m < 4; m++) {
        uint16_t a[8][8];
        for (int i = 0; i < 8; i++)
            memcpy(a[i], ((const emu_ldmatrix_arg *)arg[8 * m + i])->row, 16);
        for (int l = 0; l < 32; l++) {
            const int g = l / 4, t = 2 * (l % 4);
            const uint16_t lo = IS_TRANS ? a[t][g] : a[g][t],
                           hi = IS_TRANS ? a[t + 1][g] : a[g][t + 1];
            ((emu_ldmatrix_arg *)arg[l])->r[m] = (uint32_t)lo | (uint32_t)hi << 16;
        }
    }
}
template <bool IS_TRANS> MM_DEV_FN void emu_ldmatrix(uint32_t *r, const void *smem)
{
    emu_check_aligned(smem, 16, "ldmatrix");
    emu_ldmatrix_arg a = {r, (const uint16_t *)smem};
    emu_collective(0xFFFFFFFFu, emu_ldmatrix_op<IS_TRANS>, "ldmatrix", &a);
}
MM_DEV_FN void mm_ldmatrix_x4(uint32_t r[4], const void *smem)
{
    emu_ldmatrix<false>(r, smem);
}
MM_DEV_FN void mm_ldmatrix_x4_trans(uint32_t r[4], const void *smem)
{
    emu_ldmatrix<true>(r, smem);
}

/* ---------------------------------------------------------------- matrix units */

struct emu_mma_arg {
    float *d;
    const uint32_t *a, *b;
};
/* Products are exact; their sum is f32, k ascending (the device's order is its own). */
template <bool IS_F16> MM_DEV_FN void emu_mma_op(void *const *arg, uint32_t lanes)
{
    if (lanes != 0xFFFFFFFFu)
        emu_die("mma by lanes %08x: all 32 must call it", lanes);
    float a[16][16], b[16][8], d[16][8];
    const auto lo = [](uint32_t h2) { return IS_F16 ? emu_f16_f32(h2 & 0xFFFFu) : mm_bf16_lo(h2); };
    const auto hi = [](uint32_t h2) { return IS_F16 ? emu_f16_f32(h2 >> 16) : mm_bf16_hi(h2); };
    for (int l = 0; l < 32; l++) {
        const emu_mma_arg *x = (const emu_mma_arg *)arg[l];
        const int g = l / 4, t = 2 * (l % 4);
        for (int i = 0; i < 4; i++) {
            const int row = g + 8 * (i & 1), col = t + 8 * (i >> 1);
            a[row][col] = lo(x->a[i]);
            a[row][col + 1] = hi(x->a[i]);
            d[g + 8 * (i >> 1)][t + (i & 1)] = x->d[i];
        }
        for (int i = 0; i < 2; i++) {
            b[t + 8 * i][g] = lo(x->b[i]);
            b[t + 8 * i + 1][g] = hi(x->b[i]);
        }
    }
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) {
            for (int j = 0; j < 8; j++)
                d[i][j] += a[i][k] * b[k][j];
        }
    }
    for (int l = 0; l < 32; l++) {
        float *out = ((const emu_mma_arg *)arg[l])->d;
        const int g = l / 4, t = 2 * (l % 4);
        for (int i = 0; i < 4; i++)
            out[i] = d[g + 8 * (i >> 1)][t + (i & 1)];
    }
}
MM_DEV_FN void mm_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_arg x = {d, a, b};
    emu_collective(0xFFFFFFFFu, emu_mma_op<false>, "mma", &x);
}
MM_DEV_FN void mm_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_arg x = {d, a, b};
    emu_collective(0xFFFFFFFFu, emu_mma_op<true>, "mma", &x);
}

/* ---------------------------------------------------------------- barriers */

MM_DEV_FN void mm_bar_sync(int id, int n_thread)
{
    emu_barrier(id, (uint32_t)n_thread, true, false);
}

/* ---------------------------------------------------------------- clusters */

MM_DEV_FN void mm_cluster_sync()
{
    emu_cluster_sync();
}
MM_DEV_FN void mm_cluster_leave()
{
    emu_cluster_sync();
}
MM_DEV_FN float4 mm_cluster_ld16(const void *smem, int rank)
{
    emu_check_aligned(smem, 16, "mm_cluster_ld16");
    return *(const float4 *)emu_cluster_address(smem, (uint32_t)rank);
}

/* ---------------------------------------------------------------- order of launches */

MM_DEV_FN void mm_pdl_wait()
{
    emu_pdl_wait();
}
MM_DEV_FN void mm_pdl_trigger()
{
}

/* ---------------------------------------------------------------- mbarriers */

MM_DEV_FN void mm_mbar_init(uint64_t *bar, uint32_t n_arrive)
{
    emu_mbar_init(bar, n_arrive);
}
MM_DEV_FN void mm_mbar_arrive(uint64_t *bar)
{
    emu_mbar_arrive(bar);
}
MM_DEV_FN void mm_mbar_wait(uint64_t *bar, uint32_t parity)
{
    emu_mbar_wait(bar, parity);
}

#endif
