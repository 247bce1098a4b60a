/* Types of numbers, and bits that must be equal. */
#include "src/config/check/check.h"

#include "src/base/number/size.h"
#include "src/config/read/place.h"

#include <inttypes.h>

/* training.reproducible=mesh promises the same bits on every mesh. These keys let the mesh or a clock change a
 * rounding, so each is refused with the reason. */
sh_rc sh_config_check_reproducible(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->parallelism.gradient_sync == SH_GRAD_SYNC_EVERY)
        return sh_config_refuse(state, "parallelism.gradient_sync",
                                "every_micro_step sums over the ranks before the micro-steps, but"
                                " training.reproducible=mesh sums over the micro-steps first; leave it out");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->training.mixed_precision_reduce != SH_PRECISION_FLOAT32)
        return sh_config_refuse(state, "training.mixed_precision_reduce",
                                "bfloat16 rounds what is sent, and what is sent depends on the mesh; leave it out with"
                                " training.reproducible=mesh");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && !c->training.deterministic)
        return sh_config_refuse(
            state, "training.deterministic",
            "false gives different bits in each run, but training.reproducible=mesh gives the same bits on every"
            " mesh; leave one of them out");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->training.measure_products)
        return sh_config_refuse(
            state, "training.measure_products",
            "measured times may choose other kernels on another mesh, but training.reproducible=mesh gives the same"
            " bits on every mesh; leave one of them out");
    return SH_OK;
}

/* Only powers of two scale gradients, and scale them back, without rounding. */
static sh_rc check_scale(struct sh_config_state *state, const char *key, int64_t scale)
{
    if (sh_size_is_power_of_two(scale))
        return SH_OK;
    return sh_config_refuse(
        state, key, "%" PRId64 " is not a power of two; only these scale without rounding, such as 65536", scale);
}

/* Conflicts of float16 with a machine are checked by src/plan/request.c. */
sh_rc sh_config_check_float16(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.loss_scale != SH_LOSS_SCALE_DYNAMIC)
        SH_TRY(check_scale(state, "training.loss_scale", c->training.loss_scale));
    SH_TRY(check_scale(state, "training.loss_scale_init", c->training.loss_scale_init));
    if (c->training.mixed_precision_param == SH_PRECISION_FLOAT16 &&
        c->training.mixed_precision_reduce != SH_PRECISION_FLOAT32)
        return sh_config_refuse(state, "training.mixed_precision_reduce",
                                "bfloat16 keeps 8 of float16's 11 bits; leave it out with"
                                " training.mixed_precision_param=float16");
    return SH_OK;
}

/* A packed base is gathered in four bits, and the adapters beside it are small. */
sh_rc sh_config_check_gathers(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (c->parallelism.gather_dtype != SH_GATHER_INT8)
        return SH_OK;
    if (c->lora.quantize_base == SH_QUANTIZE_NF4)
        return sh_config_refuse(state, "parallelism.gather_dtype",
                                "lora.quantize_base=nf4 keeps and gathers the base in fewer bits already; leave one of "
                                "them out");
    return SH_OK;
}
