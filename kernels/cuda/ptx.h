/* ptx.h: the instructions that CUDA C++ has no name for, and the number formats of half.h on the
 * device. The only file with inline assembly. bf16 is uint16_t bits, two of them a uint32_t (the
 * even element low). Warp-wide functions are called by all 32 lanes.
 *
 * Built without nvcc (MM_EMU) the same functions come from the emulator of the tests: kernels then
 * run on a CPU, thread by thread. So kernels use shared memory through mm_smem(), launch through
 * mm_launch() (cuda.h), and never wait for another block of their launch. */
#ifndef MM_CUDA_PTX_H
#define MM_CUDA_PTX_H
#include <stdint.h>

#ifdef MM_EMU
#include "emu_ptx.h"
#else

#define MM_DEV_FN static __device__ __forceinline__

/* Dynamic shared memory of the block, 1024-byte aligned. */
MM_DEV_FN uint8_t *mm_smem()
{
    extern __shared__ __align__(1024) uint8_t mm_smem_bytes[];
    return mm_smem_bytes;
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
/* Nearest, ties to even; NaN is 0x7FFF. */
MM_DEV_FN uint16_t mm_f32_bf16(float x)
{
    uint32_t d; /* of a pair: a single conversion is a slow instruction on sm_90 */
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(0.0f), "f"(x));
    return (uint16_t)d;
}
MM_DEV_FN uint32_t mm_f32x2_bf16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
/* Two f16, nearest, ties to even; NaN stays NaN. */
MM_DEV_FN uint32_t mm_f32x2_f16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
MM_DEV_FN float mm_round_bf16(float x)
{
    return mm_bf16_f32(mm_f32_bf16(x));
}
/* The larger; NaN when one is. */
MM_DEV_FN float mm_max_nan(float a, float b)
{
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}
/* 2^x to 2^-22 relative; a result below 2^-126 is 0. */
MM_DEV_FN float mm_exp2(float x)
{
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}
/* a * b of two bf16 pairs, each rounded once (a product that is exact in bf16 stays exact). */
MM_DEV_FN uint32_t mm_mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    const uint32_t zero = 0x80008000u; /* -0: x * y + -0 keeps the sign of a zero product */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(zero));
#endif
    return d;
}
/* a[i] * b[HALF] of bf16 pairs: one element of b for both. */
template <int HALF> MM_DEV_FN uint32_t mm_mul_bf16x2_half(uint32_t a, uint32_t b)
{
    uint32_t both; /* part of the multiplication in the machine's code */
    if (HALF == 0)
        asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n mov.b32 %0, {l, l};\n}"
            : "=r"(both)
            : "r"(b));
    else
        asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n mov.b32 %0, {h, h};\n}"
            : "=r"(both)
            : "r"(b));
    return mm_mul_bf16x2(a, both);
}
/* Byte i of the result is byte (sel >> 4 i & 7) of {b, a}; bit 3 of the selector: its sign bit
 * repeated. */
MM_DEV_FN uint32_t mm_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sel));
    return d;
}
MM_DEV_FN float mm_e4m3_f32(uint32_t c)
{
    const uint32_t sign = (c & 0x80u) << 24, a = c & 0x7Fu;
    if (a == 0x7Fu)
        return __uint_as_float(sign | 0x7FC00000u);
    if (a < 8u)
        return __uint_as_float(__float_as_uint((float)a * 0x1p-9f) | sign);
    return __uint_as_float(sign | ((a << 20) + (120u << 23)));
}
/* Two codes, lo in the low byte: saturates at 448; NaN is 0x7F. */
MM_DEV_FN uint32_t mm_f32x2_e4m3x2(float lo, float hi);
/* One code. */
MM_DEV_FN uint32_t mm_f32_e4m3(float x)
{
#if __CUDA_ARCH__ >= 890
    return mm_f32x2_e4m3x2(x, 0.0f);
#else
    const uint32_t u = __float_as_uint(x), a = u & 0x7FFFFFFFu, sign = (u >> 24) & 0x80u;
    if (a > 0x7F800000u)
        return 0x7Fu;
    if (a >= 0x43E00000u)
        return sign | 0x7Eu;
    if (a < 0x3C800000u)
        return sign | (__float_as_uint(__fadd_rn(__uint_as_float(a), 16384.0f)) - 0x46800000u);
    return sign | (((a + 0x7FFFFu + ((a >> 20) & 1u)) >> 20) - 960u);
#endif
}
MM_DEV_FN uint32_t mm_f32x2_e4m3x2(float lo, float hi)
{
#if __CUDA_ARCH__ >= 890
    uint16_t d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
#else
    return mm_f32_e4m3(lo) | mm_f32_e4m3(hi) << 8;
#endif
}
/* Four codes (byte i = element i) to two bf16 pairs, exact; a NaN code is not preserved. */
MM_DEV_FN void mm_e4m3x4_bf16x4(uint32_t c, uint32_t out[2])
{
    /* s eeee mmm in the low exponent bits of a bf16 is the value times 2^-120 */
    const uint32_t scale = 0x7B807B80u;                                    /* 2^120 */
    const uint32_t lo = mm_prmt(c, 0, 0x1404), hi = mm_prmt(c, 0, 0x3424); /* bytes 0,_,1 ; 2,_,3 */
    const uint32_t a = (lo & 0x80008000u) | ((lo >> 4) & 0x07F007F0u);
    const uint32_t b = (hi & 0x80008000u) | ((hi >> 4) & 0x07F007F0u);
    out[0] = mm_mul_bf16x2(a, scale);
    out[1] = mm_mul_bf16x2(b, scale);
}
/* Four codes to two f16 pairs, exact; NaN stays NaN. */
MM_DEV_FN void mm_e4m3x4_f16x4(uint32_t c, uint32_t out[2])
{
#if __CUDA_ARCH__ >= 890
    asm("{\n .reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n"
        " cvt.rn.f16x2.e4m3x2 %0, lo;\n cvt.rn.f16x2.e4m3x2 %1, hi;\n}"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(c));
#else
    const uint32_t gain = 0x5C005C00u, zero = 0x80008000u; /* 2^8, -0 */
    for (int i = 0; i < 2; i++) {
        const uint32_t x = mm_prmt(c, 0, i == 0 ? 0x1404 : 0x3424); /* codes in the high bytes */
        const uint32_t bits = (x & 0x80008000u) | ((x >> 1) & 0x3F803F80u);
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out[i]) : "r"(bits), "r"(gain), "r"(zero));
        if ((x & 0x7F00u) == 0x7F00u)
            out[i] |= 0x7FFFu;
        if ((x & 0x7F000000u) == 0x7F000000u)
            out[i] |= 0x7FFF0000u;
    }
#endif
}

/* ---------------------------------------------------------------- memory */

MM_DEV_FN uint32_t mm_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* 16 bytes that this kernel reads once: weights, pages. Never of memory that the kernel writes. */
MM_DEV_FN uint4 mm_ld_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
/* 16 bytes to shared memory; zeros where valid is false (src is then not read). */
MM_DEV_FN void mm_cp_async16(void *smem, const void *gmem, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(mm_smem_addr(smem)),
                 "l"(gmem), "r"(valid ? 16 : 0));
}
/* Asks for the 128 bytes around p to come to the L2 cache. */
MM_DEV_FN void mm_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/* 16 bytes to shared memory, or nothing: a lane's place is left as it is. */
MM_DEV_FN void mm_cp_async16_if(bool is_wanted, void *smem, const void *gmem)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n"
                 " @p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(mm_smem_addr(smem)),
                 "l"(gmem), "r"((uint32_t)is_wanted));
}
MM_DEV_FN void mm_cp_async_commit()
{
    asm volatile("cp.async.commit_group;");
}
/* Until at most N groups of this thread are on their way. */
template <int N> MM_DEV_FN void mm_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}
/* Four 8x8 matrices of 16-bit elements; lane l gives the 16-byte row l % 8 of matrix l / 8. r[i]:
 * elements (row lane/4, columns 2 (lane%4), +1) of matrix i. */
MM_DEV_FN void mm_ldmatrix_x4(uint32_t r[4], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mm_smem_addr(smem)));
}
MM_DEV_FN void mm_ldmatrix_x4_trans(uint32_t r[4], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mm_smem_addr(smem)));
}

/* *p += v; the value before. What the block wrote before a barrier that came before this is visible
 * to a block whose later addition sees this one, behind its next barrier. */
MM_DEV_FN uint32_t mm_atomic_add_acq_rel(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
}

/* ---------------------------------------------------------------- matrix units */

/* d += a b. a 16x16: a[0] (row g, k 2t..), a[1] (row g+8, k 2t..), a[2] (row g, k 2t+8..), a[3]
 * (row g+8, k 2t+8..); b 16x8: b[0] (k 2t.., col g), b[1] (k 2t+8.., col g); d 16x8: d[0], d[1]
 * (row g, cols 2t, 2t+1), d[2], d[3] (row g+8). g = lane / 4, t = lane % 4. */
MM_DEV_FN void mm_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The same with f16 operands. */
MM_DEV_FN void mm_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---------------------------------------------------------------- barriers */

/* Barrier id (1..15; 0 is __syncthreads) of n_thread threads, whole warps of the block. */
MM_DEV_FN void mm_bar_sync(int id, int n_thread)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_thread) : "memory");
}

/* ---------------------------------------------------------------- clusters (sm_90 and newer) */

/* Barrier of all threads of the cluster: what they wrote to shared memory before it can be read. */
MM_DEV_FN void mm_cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#endif
}
/* The same for the end of a kernel: no block ends while another may still read its shared memory.
 * What a thread reads of another block must have been used before, and nothing that it wrote is
 * read behind it. */
MM_DEV_FN void mm_cluster_leave()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::
                     : "memory");
#endif
}
/* 16 bytes at this place of the dynamic shared memory of block `rank` of the cluster. */
MM_DEV_FN float4 mm_cluster_ld16(const void *smem, int rank)
{
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .u32 at;\n mapa.shared::cluster.u32 at, %4, %5;\n"
                 " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(mm_smem_addr(smem)), "r"(rank)
                 : "memory");
#endif
    return v;
}

/* ---------------------------------------------------------------- order of launches */

/* Programmatic dependent launch: everything that the kernel before wrote is visible after wait;
 * before it only weights may be read, and what a kernel wrote that was waited for by one which
 * triggers behind its own wait (embed: all that expand wrote). trigger lets the next kernel start.
 * No-ops elsewhere. */
MM_DEV_FN void mm_pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
MM_DEV_FN void mm_pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* ---------------------------------------------------------------- mbarriers (sm_90 and newer) */

MM_DEV_FN void mm_mbar_init(uint64_t *bar, uint32_t n_arrive)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mm_smem_addr(bar)), "r"(n_arrive)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
MM_DEV_FN void mm_mbar_arrive(uint64_t *bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mm_smem_addr(bar)) : "memory");
#endif
}
/* Waits for the end of the phase of this parity. */
MM_DEV_FN void mm_mbar_wait(uint64_t *bar, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .pred p;\n MM_WAIT_%=:\n"
                 " mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 " @!p bra MM_WAIT_%=;\n}" ::"r"(mm_smem_addr(bar)),
                 "r"(parity)
                 : "memory");
#endif
}

#endif /* MM_EMU */
#endif
