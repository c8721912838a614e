/* memory.h: whether an engine fits its device, decided before anything is loaded, and how many KV
 * pages it gets. */
#ifndef MM_MEMORY_H
#define MM_MEMORY_H
#include "kernels/backend.h"

/* Left to the driver on a device: modules loaded on first use, local memory of kernels. */
#define MM_DEVICE_RESERVE ((int64_t)256 << 20)

typedef struct mm_memory_need {
    const mm_memory_line *line; /* [n_line] all that is not pages */
    int32_t n_line;
    int64_t page_bytes;
    int64_t most_pages; /* more serve nobody */
    int64_t row_bytes;  /* activations of one row of max_num_batched_tokens, for a forecast */
    /* Device bytes of all that grows with the rows of a step, for advice. */
    int64_t (*step_bytes)(const void *rank, const void *model, int32_t rows);
    const void *rank, *model; /* its arguments */
} mm_memory_need;

/* Pages, page 0 included. MM_E_NOMEM with the table and the setting that would fit. */
mm_status mm_memory_plan(const mm_engine_options *o, const mm_backend_props *p,
                         const mm_memory_need *need, int64_t *out_n_page);
#endif
