/* emu_copy.cpp: cp.async, whose data lands when it is waited for, or with EMU_SEED at a random
 * moment before; mbarriers. */
#include "emu_copy.h"

#include <string.h>

static void land(const emu_copy &c)
{
    if (c.src != nullptr)
        memcpy(c.dst, c.src, 16);
    else
        memset(c.dst, 0, 16);
}

void emu_copy_start(void *dst, const void *src, bool valid)
{
    emu_thread *t = emu_self;
    emu_check_aligned(dst, 16, "cp.async to");
    if (valid)
        emu_check_aligned(src, 16, "cp.async from");
    const emu_copy c = {dst, valid ? src : nullptr, t->open_group};
    if (emu_lands_early())
        land(c);
    else
        t->copy.push_back(c);
}

void emu_copy_commit()
{
    emu_self->open_group++;
}

void emu_copy_wait(uint32_t n_group)
{
    emu_thread *t = emu_self;
    size_t n = 0;
    while (n < t->copy.size() && t->copy[n].group + n_group < t->open_group)
        land(t->copy[n++]);
    t->copy.erase(t->copy.begin(), t->copy.begin() + (ptrdiff_t)n);
}

static emu_mbar *find_mbar(uint64_t *at, const char *what)
{
    for (emu_mbar &b : *emu_block_mbars()) {
        if (b.at == at)
            return &b;
    }
    emu_die("%s: no mbarrier was initialised at %p", what, (void *)at);
}

void emu_mbar_init(uint64_t *at, uint32_t n_arrive)
{
    emu_check_aligned(at, 8, "mbarrier");
    const emu_mbar fresh = {at, n_arrive, n_arrive, 0};
    for (emu_mbar &b : *emu_block_mbars()) {
        if (b.at == at) {
            b = fresh;
            return;
        }
    }
    emu_block_mbars()->push_back(fresh);
}

void emu_mbar_arrive(uint64_t *at)
{
    emu_mbar *b = find_mbar(at, "mbarrier arrive");
    if (--b->pending == 0) {
        b->phase ^= 1;
        b->pending = b->n_arrive;
    }
}

struct mbar_wait {
    uint64_t *at;
    uint32_t parity;
};

static bool phase_ended(void *arg)
{
    const mbar_wait *w = (const mbar_wait *)arg;
    return find_mbar(w->at, "mbarrier wait")->phase != (w->parity & 1);
}

void emu_mbar_wait(uint64_t *at, uint32_t parity)
{
    mbar_wait w = {at, parity};
    emu_wait(phase_ended, &w, "mbarrier");
}
