/* engine_info.c: statistics, memory and facts of an engine. */
#include "csrc/engine/engine.h"

void mm_engine_stats_init(mm_engine_stats *s)
{
    *s = (mm_engine_stats){.size = sizeof *s};
}

mm_status mm_engine_get_stats(mm_engine *e, mm_engine_stats *out)
{
    if (out == NULL || out->size != sizeof *out)
        return MM_FAIL(
            MM_E_INVALID,
            "mm_engine_stats has size %u, this library's is %zu: call mm_engine_stats_init first",
            out == NULL ? 0u : out->size, sizeof *out);
    MM_TRY(mm_engine_check_process(e));
    pthread_mutex_lock(&e->queue.lock);
    *out = e->queue.stats;
    out->n_waiting += e->queue.n_inbox;
    out->t_step_p50 = mm_step_times_quantile(&e->queue.times, 0.50);
    out->t_step_p99 = mm_step_times_quantile(&e->queue.times, 0.99);
    pthread_mutex_unlock(&e->queue.lock);
    return MM_OK;
}

const mm_memory_line *mm_engine_memory(const mm_engine *e, int32_t *out_n)
{
    *out_n = e->n_memory;
    return e->memory;
}

void mm_engine_get_info(const mm_engine *e, mm_engine_info *out)
{
    *out = e->info;
}
