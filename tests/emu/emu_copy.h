/* emu_copy.h: the barriers and bulk copies of a block, for emu.cpp (who sees to it that none is
 * left) and emu_copy.cpp. */
#ifndef MM_EMU_EMU_COPY_H
#define MM_EMU_EMU_COPY_H
#include "emu.h"

struct emu_mbar {
    uint64_t *at;
    uint32_t n_arrive, pending, phase;
    int64_t n_bytes;
};
struct emu_bulk {
    void *dst;
    const void *src;
    uint32_t n_bytes;
    uint64_t *bar;
};
struct emu_copies {
    std::vector<emu_mbar> mbars;
    std::vector<emu_bulk> bulks;
};

emu_copies *emu_block_copies(); /* of the running block */

#endif
