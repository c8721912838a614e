/* emu_copy.h: the mbarriers of a block, for emu.cpp (who keeps them) and emu_copy.cpp. */
#ifndef MM_EMU_EMU_COPY_H
#define MM_EMU_EMU_COPY_H
#include "emu.h"

struct emu_mbar {
    uint64_t *at;
    uint32_t n_arrive, pending, phase;
};

std::vector<emu_mbar> *emu_block_mbars(); /* of the running block */

#endif
