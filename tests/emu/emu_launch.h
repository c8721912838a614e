/* emu_launch.h: mm_launch for the emulator: the arguments are copied, and the kernel runs now, or
 * whenever the graph that is being captured is launched. */
#ifndef MM_EMU_LAUNCH_H
#define MM_EMU_LAUNCH_H
#include <memory>
#include <tuple>
#include <type_traits>

template <typename... Params, typename... Args>
static mm_status mm_launch_cluster(const mm_op_context *c, const char *name,
                                   void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                                   int32_t n_cluster, Args &&...args)
{
    const mm_cuda *b = mm_cuda_of(c);
    /* older code holds neither the wait for the kernel before nor cluster barriers */
    if (emu_code_arch() < 90 && (b->has_pdl || n_cluster > 1))
        emu_die("%s: a programmatic or cluster launch on sm_%d of code that is sm_%d's", name,
                (int)b->cc, emu_code_arch());
    const auto params =
        std::make_shared<std::tuple<std::decay_t<Params>...>>(std::forward<Args>(args)...);
    emu_kernel k = {name,
                    grid,
                    block,
                    (uint32_t)n_cluster,
                    smem,
                    [kernel, params] { std::apply(kernel, *params); },
                    c->stream->counter,
                    MM_CUDA_COUNTERS};
    return mm_cuda_launched(c, emu_launch(c->stream->s, k), name);
}

template <typename... Params, typename... Args>
static mm_status mm_launch(const mm_op_context *c, const char *name, void (*kernel)(Params...),
                           dim3 grid, dim3 block, size_t smem, Args &&...args)
{
    return mm_launch_cluster(c, name, kernel, grid, block, smem, 1, std::forward<Args>(args)...);
}

#endif
