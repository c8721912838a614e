/* emu.cpp: fibers and their scheduler. One warp runs until all its lanes wait, then the next one;
 * when nobody can go on the block is stuck, which is reported with what every warp waits for. */
#include "emu_copy.h"

#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#else
#define EMU_ASAN 0
#endif

enum { MAX_THREAD = 1024, MAX_WARP = 32, MAX_CLUSTER = 8, N_BAR = 16, GUARD = 4096 };
static const size_t stack_bytes = EMU_ASAN ? 512 * 1024 : 128 * 1024;

struct group { /* lanes that wait for each other */
    emu_op op;
    uint32_t mask, arrived;
    const char *what;
};
struct emu_warp {
    emu_thread *thread[32];
    void *arg[32];
    group wait[32];
    int n_wait;
    uint32_t alive, ready, poll;
    uint32_t in_bar[N_BAR];
};
struct barrier {
    uint32_t need, arrived, n_true, result;
};
emu_thread *emu_self;
uint3 emu_block_idx;
dim3 emu_block_dim, emu_grid_dim;
uint8_t *emu_smem;

/* A block on the machine; more than one where they form a cluster. */
struct block_state {
    emu_thread thread_of[MAX_THREAD];
    emu_warp warp_of[MAX_WARP];
    barrier bar_of[N_BAR];
    std::vector<emu_mbar> mbars;
    struct {
        void (*op)(void *const *);
        const char *what;
        uint32_t arrived;
        void *arg[128];
    } warpgroup[MAX_WARP / 4];
    uint32_t n_alive;
    uint3 idx;
    uint8_t *smem;
    std::vector<uint8_t> tls; /* static shared memory while another block runs */
};
static block_state block_of[MAX_CLUSTER], *block = block_of; /* block: that runs */
static uint32_t n_cluster, cluster_arrived, cluster_phase;
static uint32_t n_thread, n_warp;
static const emu_kernel *kernel;
static bool has_pdl_wait, is_shuffled;
static uint64_t random_state;
static uint8_t *stacks;
static void *scheduler_sp;
static std::mutex machine; /* ranks are threads; kernels run one at a time */

std::vector<emu_mbar> *emu_block_mbars()
{
    return &block->mbars;
}

/* ---------------------------------------------------------------- messages, randomness */

void emu_die(const char *fmt, ...)
{
    va_list args;
    fprintf(stderr, "emulator: ");
    if (kernel != nullptr)
        fprintf(stderr, "kernel %s, block (%u, %u, %u) of (%u, %u, %u)", kernel->name,
                emu_block_idx.x, emu_block_idx.y, emu_block_idx.z, emu_grid_dim.x, emu_grid_dim.y,
                emu_grid_dim.z);
    if (emu_self != nullptr)
        fprintf(stderr, ", thread (%u, %u, %u) of (%u, %u, %u)", emu_self->tid.x, emu_self->tid.y,
                emu_self->tid.z, emu_block_dim.x, emu_block_dim.y, emu_block_dim.z);
    fprintf(stderr, ": ");
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    fflush(stderr);
    abort();
}

static uint32_t draw(uint32_t n) /* 0 .. n - 1 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) % n);
}

bool emu_lands_early()
{
    return is_shuffled && draw(2) == 0;
}

/* ---------------------------------------------------------------- fibers */

#if defined(__x86_64__)
extern "C" void emu_switch(void **save, void *to);
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emu_switch,.-emu_switch\n");
#else
#error "the emulator switches stacks on x86-64 only"
#endif

#if EMU_ASAN /* it must know every stack */
static void *scheduler_fake;
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif

static uint8_t *stack_of(uint32_t i)
{
    return stacks + (size_t)i * (stack_bytes + GUARD) + GUARD;
}

/* Number of the stack of a thread of the running block. */
static uint32_t stack_index(const emu_thread *t)
{
    return (uint32_t)(block - block_of) * MAX_THREAD + t->index;
}

static void to_scheduler(bool ends)
{
    emu_thread *t = emu_self;
    (void)ends;
#if EMU_ASAN
    __sanitizer_start_switch_fiber(ends ? nullptr : &t->fake_stack, scheduler_bottom,
                                   scheduler_size);
#endif
    emu_switch(&t->sp, scheduler_sp);
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(t->fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

static void to_thread(emu_thread *t)
{
    emu_self = t;
#if EMU_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake, stack_of(stack_index(t)), stack_bytes);
#endif
    emu_switch(&scheduler_sp, t->sp);
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
    emu_self = nullptr;
}

static void thread_ended();

extern "C" __attribute__((used)) void emu_entry()
{
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
    kernel->body();
    thread_ended();
    to_scheduler(true);
    __builtin_unreachable();
}

/* Stacks of as many blocks as a cluster of this kernel has. */
static void open_stacks()
{
    static uint32_t n_open;
    if (stacks == nullptr) {
        const size_t n = (size_t)MAX_CLUSTER * MAX_THREAD * (stack_bytes + GUARD);
        void *p = mmap(nullptr, n, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            emu_die("no memory for %zu bytes of stacks", n);
        stacks = (uint8_t *)p;
    }
    for (; n_open < n_cluster * MAX_THREAD; n_open++)
        mprotect(stacks + (size_t)n_open * (stack_bytes + GUARD), GUARD, PROT_NONE);
}

static void start_thread(emu_thread *t)
{
    void **top = (void **)(stack_of(stack_index(t)) + stack_bytes);
#if EMU_ASAN
    __asan_unpoison_memory_region(stack_of(stack_index(t)), stack_bytes);
#endif
    *--top = nullptr; /* keeps the stack of emu_entry at 16 n + 8, as after a call */
    *--top = (void *)emu_entry;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    t->sp = top;
}

/* ---------------------------------------------------------------- meeting points */

static void complete_group(emu_warp *w, int i)
{
    const group g = w->wait[i];
    w->wait[i] = w->wait[--w->n_wait];
    if (g.op != nullptr)
        g.op(w->arg, g.arrived);
    w->ready |= g.arrived;
}

void emu_collective(uint32_t mask, emu_op op, const char *what, void *arg)
{
    emu_thread *t = emu_self;
    emu_warp *w = t->warp;
    const uint32_t bit = 1u << t->lane;
    if ((mask & bit) == 0)
        emu_die("%s: lane %u is not in its own mask 0x%08x", what, t->lane, mask);
    int i = 0;
    while (i < w->n_wait && (w->wait[i].op != op || w->wait[i].mask != mask))
        i++;
    if (i == w->n_wait)
        w->wait[w->n_wait++] = group{op, mask, 0, what};
    w->arg[t->lane] = arg;
    w->wait[i].arrived |= bit;
    w->ready &= ~bit;
    t->what = what;
    if (w->wait[i].arrived == (mask & w->alive)) {
        complete_group(w, i);
        if (!is_shuffled || draw(4) != 0) { /* goes on at once */
            return;
        }
    }
    to_scheduler(false);
}

void emu_warpgroup(void (*op)(void *const *), const char *what, void *arg)
{
    emu_thread *t = emu_self;
    const uint32_t g = t->index / 128, i = t->index % 128;
    auto &wg = block->warpgroup[g];
    if (n_thread < 128 * (g + 1))
        emu_die("%s: the block's %u threads have no whole warp group %u", what, n_thread, g);
    if (wg.arrived != 0 && wg.op != op)
        emu_die("%s: others of the warp group wait at %s", what, wg.what);
    wg.op = op;
    wg.what = t->what = what;
    wg.arg[i] = arg;
    t->warp->ready &= ~(1u << t->lane);
    if (++wg.arrived < 128) {
        to_scheduler(false);
        return;
    }
    wg.arrived = 0;
    op(wg.arg);
    for (uint32_t w = 4 * g; w < 4 * g + 4; w++)
        block->warp_of[w].ready = ~0u;
}

static void complete_barrier(int id)
{
    barrier *b = &block->bar_of[id];
    b->result = b->n_true;
    b->arrived = b->n_true = b->need = 0;
    for (uint32_t w = 0; w < n_warp; w++) {
        block->warp_of[w].ready |= block->warp_of[w].in_bar[id];
        block->warp_of[w].in_bar[id] = 0;
    }
}

static bool is_complete(const barrier *b)
{
    return b->arrived > 0 && b->arrived >= (b->need != 0 ? b->need : block->n_alive);
}

int emu_barrier(int id, uint32_t n, bool wait, bool pred)
{
    emu_thread *t = emu_self;
    barrier *b = &block->bar_of[id];
    if (id < 0 || id >= N_BAR || n % 32 != 0)
        emu_die("barrier %d of %u threads: ids are 0..15, counts multiples of 32", id, n);
    if (b->arrived > 0 && b->need != n)
        emu_die("barrier %d: %u threads here, %u elsewhere", id, n, b->need);
    b->need = n;
    b->arrived++;
    b->n_true += pred;
    if (wait) {
        t->warp->in_bar[id] |= 1u << t->lane;
        t->warp->ready &= ~(1u << t->lane);
        t->what = "barrier";
    }
    if (is_complete(b)) {
        complete_barrier(id);
        return (int)b->result;
    }
    if (wait)
        to_scheduler(false);
    return (int)b->result;
}

void emu_wait(bool (*until)(void *), void *arg, const char *what)
{
    emu_thread *t = emu_self;
    while (!until(arg)) {
        t->until = until;
        t->until_arg = arg;
        t->what = what;
        t->warp->ready &= ~(1u << t->lane);
        t->warp->poll |= 1u << t->lane;
        to_scheduler(false);
    }
}

static void thread_ended()
{
    emu_thread *t = emu_self;
    emu_warp *w = t->warp;
    const uint32_t bit = 1u << t->lane;
    t->copy.clear();
    w->alive &= ~bit;
    w->ready &= ~bit;
    block->n_alive--;
    for (int i = w->n_wait - 1; i >= 0; i--) {
        if (w->wait[i].arrived == (w->wait[i].mask & w->alive))
            complete_group(w, i);
    }
    for (int id = 0; id < N_BAR; id++) {
        if (is_complete(&block->bar_of[id]))
            complete_barrier(id);
    }
}

/* ---------------------------------------------------------------- blocks */

void emu_pdl_wait()
{
    has_pdl_wait = true;
}

[[noreturn]] static void stuck()
{
    fprintf(stderr, "emulator: kernel %s, block (%u, %u, %u): no thread can go on\n", kernel->name,
            emu_block_idx.x, emu_block_idx.y, emu_block_idx.z);
    for (uint32_t i = 0; i < n_warp; i++) {
        const emu_warp *w = &block->warp_of[i];
        fprintf(stderr, "  warp %2u: running lanes %08x", i, w->alive);
        for (int j = 0; j < w->n_wait; j++)
            fprintf(stderr, ", %s of mask %08x: %08x arrived", w->wait[j].what, w->wait[j].mask,
                    w->wait[j].arrived);
        for (int id = 0; id < N_BAR; id++) {
            if (w->in_bar[id] != 0)
                fprintf(stderr, ", barrier %d: %08x", id, w->in_bar[id]);
        }
        if (w->poll != 0)
            fprintf(stderr, ", %s: %08x", w->thread[__builtin_ctz(w->poll)]->what, w->poll);
        if (block->warpgroup[i / 4].arrived != 0)
            fprintf(stderr, ", %s of the warp group: %u threads", block->warpgroup[i / 4].what,
                    block->warpgroup[i / 4].arrived);
        fprintf(stderr, "\n");
    }
    emu_die("stuck");
}

static uint32_t nth_bit(uint32_t bits, uint32_t n)
{
    while (n-- > 0)
        bits &= bits - 1;
    return (uint32_t)__builtin_ctz(bits);
}

static bool run_warp(emu_warp *w)
{
    bool moved = false;
    while (w->ready != 0) {
        const uint32_t n = is_shuffled ? draw((uint32_t)__builtin_popcount(w->ready)) : 0;
        to_thread(w->thread[nth_bit(w->ready, n)]);
        moved = true;
        if (is_shuffled && draw(64) == 0)
            break; /* another warp's turn */
    }
    for (uint32_t bits = w->poll; bits != 0; bits &= bits - 1) {
        emu_thread *t = w->thread[__builtin_ctz(bits)];
        if (t->until(t->until_arg)) {
            w->poll &= ~(1u << t->lane);
            w->ready |= 1u << t->lane;
            moved = true;
        }
    }
    return moved;
}

/* The thread-local variables of this library: static __shared__ of all kernels, and a few of the
 * host's, which are put back when the kernel has ended. */
static uint8_t *tls_begin;
static size_t tls_bytes;
static thread_local uint8_t tls_mark; /* makes the block exist */

static int find_tls(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size, (void)arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &p = info->dlpi_phdr[i];
        uint8_t *begin = (uint8_t *)info->dlpi_tls_data;
        if (p.p_type != PT_TLS || begin == nullptr || &tls_mark < begin ||
            &tls_mark >= begin + p.p_memsz)
            continue;
        tls_begin = begin;
        tls_bytes = p.p_memsz;
        return 1;
    }
    return 0;
}

/* Makes b the running block. */
static void enter(block_state *b)
{
    if (block == b)
        return;
    if (tls_begin != nullptr) {
        block->tls.assign(tls_begin, tls_begin + tls_bytes);
        if (b->tls.size() == tls_bytes)
            memcpy(tls_begin, b->tls.data(), tls_bytes);
    }
    block = b;
    emu_block_idx = b->idx;
    emu_smem = b->smem;
}

/* Block number i of the grid becomes the running one, with all its threads at their start. */
static void start_block(uint64_t i)
{
    const dim3 g = emu_grid_dim;
    emu_block_idx = block->idx = uint3{(unsigned)(i % g.x), (unsigned)(i / g.x % g.y),
                                       (unsigned)(i / ((uint64_t)g.x * g.y))};
    emu_smem = block->smem;
    memset(emu_smem, 0xFF, kernel->smem); /* NaN in every float format */
    if (tls_begin != nullptr)
        memset(tls_begin, 0xFF, tls_bytes);
    memset(block->bar_of, 0, sizeof block->bar_of);
    block->mbars.clear();
    block->n_alive = n_thread;
    for (uint32_t i = 0; i < n_warp; i++) {
        emu_warp *w = &block->warp_of[i];
        const uint32_t left = n_thread - 32 * i;
        w->n_wait = 0;
        w->poll = 0;
        w->alive = w->ready = left >= 32 ? ~0u : (1u << left) - 1;
        memset(w->in_bar, 0, sizeof w->in_bar);
    }
    for (auto &wg : block->warpgroup)
        wg.arrived = 0;
    for (uint32_t i = 0; i < n_thread; i++) {
        emu_thread *t = &block->thread_of[i];
        t->index = i;
        t->lane = i % 32;
        t->warp = &block->warp_of[i / 32];
        t->warp->thread[i % 32] = t;
        t->tid = uint3{i % emu_block_dim.x, i / emu_block_dim.x % emu_block_dim.y,
                       i / (emu_block_dim.x * emu_block_dim.y)};
        t->open_group = 0;
        t->copy.clear();
        start_thread(t);
    }
}

/* Each warp of the running block in turn; whether any could go on. */
static bool run_block()
{
    bool moved = false;
    const uint32_t first = is_shuffled ? draw(n_warp) : 0;
    for (uint32_t i = 0; i < n_warp; i++)
        moved |= run_warp(&block->warp_of[(first + i) % n_warp]);
    return moved;
}

/* A cluster of blocks, or a single one. */
static void run_cluster(uint64_t c)
{
    cluster_arrived = 0;
    for (uint32_t i = 0; i < n_cluster; i++) {
        enter(&block_of[i]);
        start_block(c * n_cluster + i);
    }
    for (bool is_alive = true; is_alive;) {
        bool moved = false;
        block_state *waits = nullptr;
        const uint32_t first = is_shuffled && n_cluster > 1 ? draw(n_cluster) : 0;
        for (uint32_t i = 0; i < n_cluster; i++) {
            block_state *b = &block_of[(first + i) % n_cluster];
            if (b->n_alive == 0)
                continue;
            enter(b);
            moved |= run_block();
            if (b->n_alive > 0)
                waits = b;
        }
        is_alive = waits != nullptr;
        if (is_alive && !moved) {
            enter(waits);
            stuck();
        }
    }
}

static bool cluster_turned(void *arg)
{
    return cluster_phase != *(const uint32_t *)arg;
}

void emu_cluster_sync()
{
    uint32_t phase = cluster_phase;
    if (++cluster_arrived == n_cluster * n_thread) {
        cluster_arrived = 0;
        cluster_phase++;
    } else {
        emu_wait(cluster_turned, &phase, "barrier of the cluster");
    }
}

const void *emu_cluster_address(const void *p, uint32_t rank)
{
    const size_t at = (size_t)((const uint8_t *)p - emu_smem);
    if ((const uint8_t *)p < emu_smem || at >= kernel->smem)
        emu_die("cluster: address %p is not in dynamic shared memory", p);
    if (rank >= n_cluster)
        emu_die("cluster: block %u of %u", rank, n_cluster);
    if (block_of[rank].n_alive == 0)
        emu_die("cluster: block %u, whose shared memory is read, has ended", rank);
    return block_of[rank].smem + at;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    signal(sig, SIG_DFL);
    emu_die("%s at address %p (out of bounds, misaligned, or the stack of a thread is full)",
            sig == SIGSEGV ? "segmentation fault" : "bus error", info->si_addr);
}

struct fault_handlers {
    struct sigaction segv, bus;
    stack_t old_stack;
    fault_handlers()
    {
#if !EMU_ASAN
        static uint8_t stack[64 * 1024];
        const stack_t alt = {stack, 0, sizeof stack};
        struct sigaction sa = {};
        sa.sa_sigaction = on_fault;
        sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaltstack(&alt, &old_stack);
        sigaction(SIGSEGV, &sa, &segv);
        sigaction(SIGBUS, &sa, &bus);
#endif
    }
    ~fault_handlers()
    {
#if !EMU_ASAN
        sigaction(SIGSEGV, &segv, nullptr);
        sigaction(SIGBUS, &bus, nullptr);
        sigaltstack(&old_stack, nullptr);
#endif
    }
};

void emu_run(const emu_kernel &k)
{
    const std::lock_guard<std::mutex> lock(machine);
    const fault_handlers handlers;
    const char *seed = getenv("EMU_SEED");
    is_shuffled = seed != nullptr && seed[0] != '\0';
    if (is_shuffled && random_state == 0)
        random_state = strtoull(seed, nullptr, 10) * 0x9E3779B97F4A7C15ull | 1;
    kernel = &k;
    emu_grid_dim = k.grid;
    emu_block_dim = k.block;
    n_thread = k.block.x * k.block.y * k.block.z;
    n_warp = (n_thread + 31) / 32;
    has_pdl_wait = false;
    n_cluster = k.n_cluster;
    if (n_cluster < 1 || n_cluster > MAX_CLUSTER || k.grid.x % n_cluster != 0)
        emu_die("clusters of %u blocks in a grid of %u: 1..%d that divide it", n_cluster, k.grid.x,
                (int)MAX_CLUSTER);
    open_stacks();
    block = block_of;
    for (uint32_t i = 0; i < n_cluster; i++) {
        void *smem = nullptr;
        if (posix_memalign(&smem, 1024, k.smem > 0 ? k.smem : 1) != 0)
            emu_die("no memory for %zu bytes of shared memory", k.smem);
        block_of[i].smem = (uint8_t *)smem;
    }
    tls_mark = 0;
    tls_begin = nullptr;
    tls_bytes = 0;
    if (!EMU_ASAN && dl_iterate_phdr(find_tls, nullptr) == 0)
        emu_die("the thread-local block of the library was not found");
    std::vector<uint8_t> tls(tls_bytes);
    if (tls_begin != nullptr)
        memcpy(tls.data(), tls_begin, tls_bytes);
    const uint64_t n = (uint64_t)k.grid.x * k.grid.y * k.grid.z / n_cluster;
    std::vector<uint32_t> order;
    if (is_shuffled) {
        for (uint64_t i = 0; i < n; i++)
            order.push_back((uint32_t)i);
        for (uint64_t i = n; i > 1; i--)
            std::swap(order[i - 1], order[draw((uint32_t)i)]);
    }
    for (uint64_t j = 0; j < n; j++)
        run_cluster(is_shuffled ? order[j] : j);
    if (tls_begin != nullptr)
        memcpy(tls_begin, tls.data(), tls_bytes);
    for (uint32_t i = 0; i < n_cluster; i++)
        free(block_of[i].smem);
    emu_smem = nullptr;
    if (!has_pdl_wait)
        emu_die("no thread called mm_pdl_wait()");
    for (size_t i = 0; i < k.n_counter; i++) {
        if (k.counter[i] != 0)
            emu_die("counter %zu is %u after the kernel, it must be 0 again", i, k.counter[i]);
    }
    kernel = nullptr;
}
