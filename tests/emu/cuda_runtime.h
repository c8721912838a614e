/* cuda_runtime.h: stands in for CUDA's header when kernels are built for the emulator: the words of
 * the language, the functions that device code calls, and (emu_host.h) the runtime. */
#ifndef MM_EMU_CUDA_RUNTIME_H
#define MM_EMU_CUDA_RUNTIME_H
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* the C++ library before __noinline__ is defined, which it uses as an attribute's name */
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emu.h"
#include "emu_host.h"

#define __global__
#define __device__
#define __host__
#define __constant__
/* Thread-local, because then all of it lies together and emu.cpp can poison it before each block.
 * AddressSanitizer puts red zones around plain statics. */
#if defined(__SANITIZE_ADDRESS__)
#define __shared__ static
#else
#define __shared__ static thread_local
#endif
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(x) ((void)0)
#define __restrict __restrict__

#define threadIdx (emu_self->tid)
#define blockIdx emu_block_idx
#define blockDim emu_block_dim
#define gridDim emu_grid_dim
enum { warpSize = 32 };
#define EMU_FN static inline __attribute__((unused))

/* ---------------------------------------------------------------- bits, arithmetic */

template <typename To, typename From> EMU_FN To emu_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
EMU_FN float __uint_as_float(unsigned u)
{
    return emu_bits<float>(u);
}
EMU_FN float __int_as_float(int u)
{
    return emu_bits<float>(u);
}
EMU_FN unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}
EMU_FN int __float_as_int(float x)
{
    return emu_bits<int>(x);
}
EMU_FN double __longlong_as_double(long long u)
{
    return emu_bits<double>(u);
}
EMU_FN long long __double_as_longlong(double x)
{
    return emu_bits<long long>(x);
}
EMU_FN int __float2int_rn(float x)
{
    return (int)rintf(x);
}
EMU_FN int __float2int_rz(float x)
{
    return (int)x;
}
EMU_FN int __float2int_rd(float x)
{
    return (int)floorf(x);
}
EMU_FN int __float2int_ru(float x)
{
    return (int)ceilf(x);
}
EMU_FN unsigned __float2uint_rn(float x)
{
    return (unsigned)rintf(x);
}
EMU_FN unsigned __float2uint_rz(float x)
{
    return (unsigned)x;
}
EMU_FN float __int2float_rn(int x)
{
    return (float)x;
}
EMU_FN float __uint2float_rn(unsigned x)
{
    return (float)x;
}
EMU_FN float __ull2float_rn(unsigned long long x)
{
    return (float)x;
}
EMU_FN float __double2float_rn(double x)
{
    return (float)x;
}
EMU_FN int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
EMU_FN int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
EMU_FN int __ffs(int x)
{
    return __builtin_ffs(x);
}
EMU_FN int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
EMU_FN int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
EMU_FN int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
EMU_FN unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1u) << (31 - i);
    return y;
}
EMU_FN unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
EMU_FN int __mulhi(int a, int b)
{
    return (int)((long long)a * b >> 32);
}
EMU_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
EMU_FN unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
EMU_FN unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
EMU_FN unsigned __byte_perm(unsigned a, unsigned b, unsigned sel)
{
    const unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned d = 0;
    for (int i = 0; i < 4; i++)
        d |= (unsigned)(v >> (8 * (sel >> 4 * i & 7)) & 0xFF) << 8 * i;
    return d;
}
EMU_FN float __fadd_rn(float a, float b)
{
    return a + b;
}
EMU_FN float __fsub_rn(float a, float b)
{
    return a - b;
}
EMU_FN float __fmul_rn(float a, float b)
{
    return a * b;
}
EMU_FN float __fdiv_rn(float a, float b)
{
    return a / b;
}
EMU_FN float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
EMU_FN float __frcp_rn(float a)
{
    return 1.0f / a;
}
EMU_FN float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
EMU_FN float __frsqrt_rn(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
EMU_FN float __fdividef(float a, float b)
{
    return a / b;
}
EMU_FN float __saturatef(float a)
{
    return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f;
}
EMU_FN double __dadd_rn(double a, double b)
{
    return a + b;
}
EMU_FN double __dmul_rn(double a, double b)
{
    return a * b;
}
EMU_FN float rsqrtf(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
/* glibc declares these names for itself */
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, (x))
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

#define EMU_MIN_MAX(A, B, R)                                                                       \
    EMU_FN R min(A a, B b)                                                                         \
    {                                                                                              \
        return (R)a < (R)b ? (R)a : (R)b;                                                          \
    }                                                                                              \
    EMU_FN R max(A a, B b)                                                                         \
    {                                                                                              \
        return (R)a > (R)b ? (R)a : (R)b;                                                          \
    }
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned)
EMU_MIN_MAX(int, unsigned, unsigned)
EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(long, long, long)
EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMU_MIN_MAX(long, unsigned long, unsigned long)
EMU_MIN_MAX(unsigned long, long, unsigned long)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
EMU_FN float min(float a, float b)
{
    return fminf(a, b);
}
EMU_FN float max(float a, float b)
{
    return fmaxf(a, b);
}
EMU_FN double min(double a, double b)
{
    return fmin(a, b);
}
EMU_FN double max(double a, double b)
{
    return fmax(a, b);
}

/* ---------------------------------------------------------------- memory */

template <typename T> EMU_FN T __ldg(const T *p)
{
    return *p;
}
template <typename T> EMU_FN T __ldcg(const T *p)
{
    return *p;
}
template <typename T> EMU_FN T __ldca(const T *p)
{
    return *p;
}
template <typename T> EMU_FN T __ldcs(const T *p)
{
    return *p;
}
template <typename T> EMU_FN T __ldcv(const T *p)
{
    return *p;
}
template <typename T> EMU_FN T __ldlu(const T *p)
{
    return *p;
}
template <typename T> EMU_FN void __stcg(T *p, T v)
{
    *p = v;
}
template <typename T> EMU_FN void __stcs(T *p, T v)
{
    *p = v;
}
template <typename T> EMU_FN void __stwt(T *p, T v)
{
    *p = v;
}
template <typename T> EMU_FN void __stwb(T *p, T v)
{
    *p = v;
}
EMU_FN void __threadfence()
{
}
EMU_FN void __threadfence_block()
{
}
EMU_FN void __threadfence_system()
{
}

/* One fiber runs at a time and none is interrupted: plain code is atomic. */
template <typename T> struct emu_same {
    typedef T type;
};
#define EMU_ATOMIC(name, expr)                                                                     \
    template <typename T> EMU_FN T name(T *p, typename emu_same<T>::type v)                        \
    {                                                                                              \
        const T old = *p;                                                                          \
        *p = (T)(expr);                                                                            \
        return old;                                                                                \
    }                                                                                              \
    template <typename T> EMU_FN T name##_block(T *p, typename emu_same<T>::type v)                \
    {                                                                                              \
        return name(p, v);                                                                         \
    }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicAnd, old &v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
template <typename T>
EMU_FN T atomicCAS(T *p, typename emu_same<T>::type expected, typename emu_same<T>::type v)
{
    const T old = *p;
    if (old == expected)
        *p = v;
    return old;
}

/* ---------------------------------------------------------------- barriers */

EMU_FN void __syncthreads()
{
    emu_barrier(0, 0, true, false);
}
EMU_FN int __syncthreads_count(int pred)
{
    return emu_barrier(0, 0, true, pred != 0);
}
EMU_FN int __syncthreads_or(int pred)
{
    return emu_barrier(0, 0, true, pred != 0) > 0;
}
EMU_FN int __syncthreads_and(int pred)
{
    return emu_barrier(0, 0, true, pred == 0) == 0;
}
EMU_FN void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    emu_collective(mask, nullptr, "__syncwarp", nullptr);
}
EMU_FN bool emu_true(void *)
{
    return true;
}
EMU_FN void __nanosleep(unsigned)
{
    emu_self->what = "__nanosleep";
}
EMU_FN void __trap()
{
    emu_die("__trap");
}

/* ---------------------------------------------------------------- warp collectives */

template <typename T> struct emu_shfl_arg {
    T in, out;
    uint32_t from;
};
template <typename T> EMU_FN void emu_shfl_op(void *const *arg, uint32_t lanes)
{
    for (uint32_t l = 0; l < 32; l++) {
        if ((lanes >> l & 1) == 0)
            continue;
        emu_shfl_arg<T> *a = (emu_shfl_arg<T> *)arg[l];
        if (lanes >> a->from & 1)
            a->out = ((const emu_shfl_arg<T> *)arg[a->from])->in;
        else /* undefined on a device */
            memset((void *)&a->out, 0xFF, sizeof a->out);
    }
}
template <typename T> EMU_FN T emu_shfl(unsigned mask, T v, uint32_t from, const char *what)
{
    emu_shfl_arg<T> a = {v, v, from};
    emu_collective(mask, emu_shfl_op<T>, what, &a);
    return a.out;
}
template <typename T> EMU_FN T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    const uint32_t l = emu_self->lane, base = l & ~(uint32_t)(width - 1);
    return emu_shfl(mask, v, base + ((uint32_t)from & (uint32_t)(width - 1)), "__shfl_sync");
}
template <typename T> EMU_FN T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    const uint32_t l = emu_self->lane, to = l ^ (uint32_t)bits;
    const bool inside = to < ((l & ~(uint32_t)(width - 1)) + (uint32_t)width);
    return emu_shfl(mask, v, inside ? to : l, "__shfl_xor_sync");
}
template <typename T> EMU_FN T __shfl_down_sync(unsigned mask, T v, unsigned n, int width = 32)
{
    const uint32_t l = emu_self->lane, at = l & (uint32_t)(width - 1);
    return emu_shfl(mask, v, at + n < (uint32_t)width ? l + n : l, "__shfl_down_sync");
}
template <typename T> EMU_FN T __shfl_up_sync(unsigned mask, T v, unsigned n, int width = 32)
{
    const uint32_t l = emu_self->lane, at = l & (uint32_t)(width - 1);
    return emu_shfl(mask, v, at >= n ? l - n : l, "__shfl_up_sync");
}

struct emu_vote_arg {
    bool pred;
    uint32_t out;
};
EMU_FN void emu_vote_op(void *const *arg, uint32_t lanes)
{
    uint32_t bits = 0;
    for (uint32_t l = 0; l < 32; l++) {
        if (lanes >> l & 1)
            bits |= (uint32_t)((const emu_vote_arg *)arg[l])->pred << l;
    }
    for (uint32_t l = 0; l < 32; l++) {
        if (lanes >> l & 1)
            ((emu_vote_arg *)arg[l])->out = bits;
    }
}
EMU_FN unsigned __ballot_sync(unsigned mask, int pred)
{
    emu_vote_arg a = {pred != 0, 0};
    emu_collective(mask, emu_vote_op, "vote", &a);
    return a.out;
}
EMU_FN int __any_sync(unsigned mask, int pred)
{
    return __ballot_sync(mask, pred) != 0;
}
EMU_FN int __all_sync(unsigned mask, int pred)
{
    return __ballot_sync(mask, pred == 0) == 0;
}

template <typename T> struct emu_match_arg {
    T v;
    uint32_t any, who;
};
template <typename T> EMU_FN void emu_match_op(void *const *arg, uint32_t lanes)
{
    for (uint32_t l = 0; l < 32; l++) {
        if ((lanes >> l & 1) == 0)
            continue;
        emu_match_arg<T> *a = (emu_match_arg<T> *)arg[l];
        a->who = lanes;
        a->any = 0;
        for (uint32_t m = 0; m < 32; m++) {
            if (lanes >> m & 1)
                a->any |= (uint32_t)(memcmp(&((const emu_match_arg<T> *)arg[m])->v, &a->v,
                                            sizeof(T)) == 0)
                          << m;
        }
    }
}
template <typename T> EMU_FN unsigned __match_any_sync(unsigned mask, T v)
{
    emu_match_arg<T> a = {v, 0, 0};
    emu_collective(mask, emu_match_op<T>, "__match_any_sync", &a);
    return a.any;
}
template <typename T> EMU_FN unsigned __match_all_sync(unsigned mask, T v, int *pred)
{
    emu_match_arg<T> a = {v, 0, 0};
    emu_collective(mask, emu_match_op<T>, "__match_all_sync", &a);
    *pred = a.any == a.who;
    return *pred ? mask : 0;
}

template <typename T> struct emu_reduce_arg {
    T v;
};
#define EMU_REDUCE(name, T, expr)                                                                  \
    EMU_FN void emu_##name(T *const *arg, uint32_t lanes)                                          \
    {                                                                                              \
        T a = *arg[__builtin_ctz(lanes)];                                                          \
        for (uint32_t bits = lanes & (lanes - 1); bits != 0; bits &= bits - 1) {                   \
            const T b = *arg[__builtin_ctz(bits)];                                                 \
            a = (T)(expr);                                                                         \
        }                                                                                          \
        for (uint32_t bits = lanes; bits != 0; bits &= bits - 1)                                   \
            *arg[__builtin_ctz(bits)] = a;                                                         \
    }                                                                                              \
    EMU_FN void emu_op_##name(void *const *arg, uint32_t lanes)                                    \
    {                                                                                              \
        emu_##name((T *const *)arg, lanes);                                                        \
    }
EMU_REDUCE(reduce_addu, unsigned, a + b)
EMU_REDUCE(reduce_minu, unsigned, a < b ? a : b)
EMU_REDUCE(reduce_maxu, unsigned, a > b ? a : b)
EMU_REDUCE(reduce_mini, int, a < b ? a : b)
EMU_REDUCE(reduce_maxi, int, a > b ? a : b)
EMU_REDUCE(reduce_and, unsigned, a &b)
EMU_REDUCE(reduce_or, unsigned, a | b)
EMU_REDUCE(reduce_xor, unsigned, a ^ b)
#define EMU_REDUCE_FN(name, T, op)                                                                 \
    EMU_FN T name(unsigned mask, T v)                                                              \
    {                                                                                              \
        emu_collective(mask, emu_op_##op, #name, &v);                                              \
        return v;                                                                                  \
    }
EMU_REDUCE_FN(__reduce_add_sync, unsigned, reduce_addu)
EMU_REDUCE_FN(__reduce_add_sync, int, reduce_addu)
EMU_REDUCE_FN(__reduce_min_sync, unsigned, reduce_minu)
EMU_REDUCE_FN(__reduce_min_sync, int, reduce_mini)
EMU_REDUCE_FN(__reduce_max_sync, unsigned, reduce_maxu)
EMU_REDUCE_FN(__reduce_max_sync, int, reduce_maxi)
EMU_REDUCE_FN(__reduce_and_sync, unsigned, reduce_and)
EMU_REDUCE_FN(__reduce_or_sync, unsigned, reduce_or)
EMU_REDUCE_FN(__reduce_xor_sync, unsigned, reduce_xor)

#endif
