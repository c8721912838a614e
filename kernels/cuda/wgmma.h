/* wgmma.h: Hopper's warpgroup products (sm_90a only), A in registers, B in shared memory.
 *
 * d [64, N] += a [64, 16] b [16, N] for the four warps of a warpgroup. Warp w holds 16 rows of a
 * and d, from row 16 w on, in the order of mma.sync (ptx.h: mm_mma_bf16): the four values from d[4
 * j] on are of the eight columns from 8 j on. B lies as [N, 64] bf16 rows of 128 bytes, whose
 * 16-byte chunk c of row n is stored at chunk c ^ (n % 8) (the 128-byte swizzle); `tile` is
 * 1024-byte aligned, `step` 0..3 picks the 16 columns. The products run asynchronously between
 * fence, commit and wait.
 */
#ifndef MM_CUDA_WGMMA_H
#define MM_CUDA_WGMMA_H
#include "kernels/cuda/ptx.h"

#ifdef MM_EMU
template <int N>
MM_DEV_FN void mm_wgmma_emulated(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    const int lane = (int)(threadIdx.x % 32);
    for (int j = 0; j < N / 8; j++) {
        const int n = 8 * j + lane / 4, t = lane % 4;
        const uint8_t *row = tile + 128 * n;
        uint32_t b[2];
        for (int i = 0; i < 2; i++) {
            const int chunk = (2 * step + i) ^ (n % 8);
            b[i] = *(const uint32_t *)(const void *)(row + 16 * chunk + 4 * t);
        }
        mm_mma_bf16(d + 4 * j, a, b);
    }
}
MM_DEV_FN void mm_wgmma_n128(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    mm_wgmma_emulated<128>(d, a, tile, step);
}
MM_DEV_FN void mm_wgmma_n64(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    mm_wgmma_emulated<64>(d, a, tile, step);
}
MM_DEV_FN void mm_wgmma_n32(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    mm_wgmma_emulated<32>(d, a, tile, step);
}
/* d [64, 128] += a b where b lies as 16 rows (of k) of 128 columns: the halves of 64 columns are
 * half_bytes apart, each a row of 128 bytes swizzled as above; the rows start at a multiple of 8.
 */
MM_DEV_FN void mm_wgmma_n128_rows(float *d, const uint32_t a[4], const uint8_t *rows,
                                  int half_bytes)
{
    const int lane = (int)(threadIdx.x % 32);
    for (int j = 0; j < 16; j++) {
        const int n = 8 * j + lane / 4, t = lane % 4;
        const uint8_t *half = rows + n / 64 * half_bytes;
        uint32_t b[2] = {0, 0};
        for (int i = 0; i < 4; i++) {
            const int k = 2 * t + i % 2 + 8 * (i / 2), chunk = n % 64 / 8 ^ k % 8;
            b[i / 2] |= (uint32_t)*(const uint16_t *)(const void *)(half + 128 * k + 16 * chunk +
                                                                    2 * (n % 8))
                        << 16 * (i % 2);
        }
        mm_mma_bf16(d + 4 * j, a, b);
    }
}
MM_DEV_FN void mm_wgmma_fence()
{
}
MM_DEV_FN void mm_wgmma_commit()
{
}
template <int N> MM_DEV_FN void mm_wgmma_wait()
{
}
MM_DEV_FN void mm_proxy_fence()
{
}
template <int N> MM_DEV_FN void mm_wgmma_hold(float *)
{
}
template <int N> MM_DEV_FN void mm_registers_less()
{
}
template <int N> MM_DEV_FN void mm_registers_more()
{
}
#else

/* Start address, rows of 8 are 1024 bytes apart, 128-byte swizzle. */
MM_DEV_FN uint64_t mm_wgmma_desc(const uint8_t *p)
{
    const uint64_t addr = (mm_smem_addr(p) & 0x3FFFFu) >> 4;
    return addr | ((uint64_t)1 << 16) | ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)1 << 62);
}
/* clang-format off */
MM_DEV_FN void mm_wgmma_n128(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    asm volatile("{\n wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(mm_wgmma_desc(tile + 32 * step)));
}
MM_DEV_FN void mm_wgmma_n64(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    asm volatile("{\n wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(mm_wgmma_desc(tile + 32 * step)));
}
MM_DEV_FN void mm_wgmma_n32(float *d, const uint32_t a[4], const uint8_t *tile, int step)
{
    asm volatile("{\n wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(mm_wgmma_desc(tile + 32 * step)));
}
/* See above. Rows of k (8 of them 1024 bytes) with the columns contiguous: b is transposed. */
MM_DEV_FN void mm_wgmma_n128_rows(float *d, const uint32_t a[4], const uint8_t *rows, int half_bytes)
{
    const uint64_t addr = (mm_smem_addr(rows) & 0x3FFFFu) >> 4;
    const uint64_t desc = addr | ((uint64_t)(half_bytes >> 4) << 16) |
                          ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)1 << 62);
    asm volatile("{\n wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
}
/* clang-format on */
MM_DEV_FN void mm_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
MM_DEV_FN void mm_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> MM_DEV_FN void mm_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Shared memory written by ordinary stores and cp.async becomes visible to wgmma (then a barrier).
 */
MM_DEV_FN void mm_proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* The accumulators change between issue and wait: the compiler may not move them across this. */
template <int N> MM_DEV_FN void mm_wgmma_hold(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* A warpgroup gives registers back to the block, or waits for and takes more: N a thread from here
 * on, a multiple of 8. */
template <int N> MM_DEV_FN void mm_registers_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> MM_DEV_FN void mm_registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
#endif
#endif
