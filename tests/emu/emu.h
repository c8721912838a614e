/* emu.h: the machine that runs kernels on a CPU. A thread of a block is a fiber with a stack of its
 * own; fibers change only where CUDA threads can wait for each other (warp collectives, barriers,
 * mbarriers), so between two such points a thread runs alone, and code that relies on lanes moving
 * in step goes wrong here, as it should. Blocks run one after the other, those
 * of a cluster together.
 *
 * Environment: EMU_SEED=n shuffles the order of blocks, warps and lanes and the moment at which
 * asynchronous copies land (default: in order, as late as allowed). */
#ifndef MM_EMU_EMU_H
#define MM_EMU_EMU_H
#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <vector>

#include "emu_vector.h"

struct emu_warp;

struct emu_copy { /* a cp.async on its way */
    void *dst;
    const void *src; /* NULL: zeros */
    uint32_t group;
};

struct emu_thread {
    uint3 tid;
    uint32_t lane, index; /* index in the block */
    emu_warp *warp;
    void *sp;         /* of the fiber while it does not run */
    const char *what; /* what it waits for */
    bool (*until)(void *);
    void *until_arg;
    std::vector<emu_copy> copy;
    uint32_t open_group; /* of cp.async */
    void *fake_stack;    /* AddressSanitizer's */
};

/* Executed once, by the last lane to arrive, for all lanes of the bit set. */
typedef void (*emu_op)(void *const *arg, uint32_t lanes);

extern emu_thread *emu_self; /* the running thread */
extern uint3 emu_block_idx;
extern dim3 emu_block_dim, emu_grid_dim;
extern uint8_t *emu_smem; /* dynamic shared memory of the running block */

/* All lanes of mask that have not ended meet here. */
void emu_collective(uint32_t mask, emu_op op, const char *what, void *arg);
/* The four warps of an aligned group meet; op gets arg[128]. */
void emu_warpgroup(void (*op)(void *const *arg), const char *what, void *arg);
/* Barrier id of n_thread threads (0: all of the block that have not ended); wait false: only
 * arrives. Returns the number of threads that came with pred. */
int emu_barrier(int id, uint32_t n_thread, bool wait, bool pred);
/* Lets others run until the condition holds. */
void emu_wait(bool (*until)(void *), void *arg, const char *what);
/* True at random with EMU_SEED, else false: "does this copy land at once?" */
bool emu_lands_early();

/* cp.async, mbarriers. */
void emu_copy_start(void *dst, const void *src, bool valid);
void emu_copy_commit();
void emu_copy_wait(uint32_t n_group);
void emu_mbar_init(uint64_t *bar, uint32_t n_arrive);
void emu_mbar_arrive(uint64_t *bar);
void emu_mbar_wait(uint64_t *bar, uint32_t parity);
void emu_pdl_wait();

/* Barrier of all threads of the cluster; the same place in the shared memory of block `rank`. */
void emu_cluster_sync();
const void *emu_cluster_address(const void *p, uint32_t rank);

/* Says what is wrong, in which kernel, block and thread, and aborts. */
[[noreturn]] void emu_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline void emu_check_aligned(const void *p, uint32_t n, const char *what)
{
    if ((uintptr_t)p % n != 0)
        emu_die("%s: address %p is not a multiple of %u", what, p, n);
}

struct emu_kernel {
    const char *name;
    dim3 grid, block;
    uint32_t n_cluster; /* blocks side by side in x that run together */
    size_t smem;
    std::function<void()> body; /* one thread */
    const uint32_t *counter;    /* [n_counter]: must be zero when the kernel has ended */
    size_t n_counter;
};
void emu_run(const emu_kernel &k);

#endif
