#include "kernels/cuda/attention/cudnn_promise.h"

#include <cudnn.h>

/* Versions before 9.8 lack some of the operations used. */
enum { OLDEST = 90800 };

static const struct {
    size_t version;
    const char *install;
} faulty[] = {
    {91000, "9.10.2"}, /* wrong results in both directions */
    {91001, "9.10.2"},
    {91300, "9.13.1"}, /* may access memory that is not its own */
};

#define KNOB(type_, value_)             \
    {                                   \
        CUDNN_KNOB_TYPE_##type_, value_ \
    }

/* On Hopper the graph in one order matches only kernels that have one. On Blackwell it also matches an Ampere kernel,
 * which is all that cuDNN offers, so the kernel is asked for by its number. 9.23 renamed its knobs. */
/* clang-format off */
static const struct {
    int from, to; /* compute capabilities */
    size_t since;
    struct sh_cudnn_engine engine;
} ordered[] = {
    {90, 90, OLDEST, {.index = -1}},
    {100, 103, 92300, {.index = 5, .linear = true, .n = 6,
                       .knob = {KNOB(TILE_M, 3), KNOB(TILE_N, 2), KNOB(KERNEL_CFG, 2), KNOB(STREAM_K, 0),
                                KNOB(TILE_CGA_M, 0), KNOB(STAGES, 2)}}},
    {100, 103, 91800, {.index = 5, .linear = true, .n = 2, .knob = {KNOB(KERNEL_CFG, 31), KNOB(STAGES, 2)}}},
};
/* clang-format on */

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

sh_rc sh_cudnn_check_version(size_t version)
{
    if (version < OLDEST)
        return sh_fail(SH_E_USAGE, "libcudnn.so.9 is version %zu; 9.8 or newer is needed", version);
    for (size_t i = 0; i < COUNT(faulty); i++)
        if (version == faulty[i].version)
            return sh_fail(SH_E_USAGE,
                           "libcudnn.so.9 is version %zu, whose attention has known faults; install %s or newer",
                           version, faulty[i].install);
    return SH_OK;
}

sh_rc sh_cudnn_ordered_backward(int capability, size_t version, const struct sh_cudnn_engine **engine)
{
    size_t since = 0;
    for (size_t i = 0; i < COUNT(ordered); i++)
        if (capability >= ordered[i].from && capability <= ordered[i].to) {
            since = ordered[i].since;
            if (version >= since) {
                *engine = &ordered[i].engine;
                return SH_OK;
            }
        }
    if (since)
        return sh_fail(SH_E_USAGE, "cuDNN has one order on this GPU since version %zu.%zu.%zu only", since / 10000,
                       since / 100 % 100, since % 100);
    return sh_fail(SH_E_USAGE,
                   "cuDNN promises no order on compute capability %d.%d; training.deterministic=false allows any",
                   capability / 10, capability % 10);
}

/* Older versions need a mask for a cut tile. */
int64_t sh_cudnn_tile(size_t version)
{
    enum { TILE = 128, ANY_LENGTH = 91600 };
    return version < ANY_LENGTH ? TILE : 1;
}
