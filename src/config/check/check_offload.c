/* Lower tiers: what is moved there, at which rates, and whether the device has them. */
#include "src/config/check/check.h"

#include "src/config/rates.h"
#include "src/config/read/place.h"

static sh_rc check_rates(struct sh_config_state *state)
{
    struct sh_config_rates rates;
    const char *bad;
    if (sh_config_rates(state->cfg.offload.rates, &rates, &bad))
        return SH_OK;
    return sh_config_refuse(
        state, "offload.rates",
        "'%.40s' is not a rate; give file=READ/WRITE and perhaps mixed=BOTH, or host=READ/WRITE, in bytes per "
        "second, as `sherd bench tier` prints them",
        bad);
}

/* offload.mode=memory_budget: its choices must not be given by other keys as well. It needs a limit and, on CPUs, a
 * folder for the files. */
static sh_rc check_offload_budget(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key;
        int where;
    } chosen[] = {{"offload.optimizer", c->offload.optimizer},
                  {"offload.gradients", c->offload.gradients},
                  {"offload.parameters", c->offload.parameters},
                  {"offload.activations", c->offload.activations}};
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++)
        if (chosen[i].where != SH_OFFLOAD_NONE)
            return sh_config_refuse(state, chosen[i].key,
                                    "offload.mode=memory_budget chooses it; leave out one of them");
    if (c->memory.limit_bytes == 0)
        return sh_config_refuse(state, "offload.mode",
                                "memory_budget fits memory.limit_bytes; give that too, such as 60GiB");
    /* With device=auto there may be a GPU, which moves tensors to its host instead; request.c checks again. */
    if (!c->offload.nvme_path[0] && c->training.device == SH_DEVICE_CPU)
        return sh_config_refuse(state, "offload.mode",
                                "memory_budget: offload.nvme_path is missing; give a folder on a local disk");
    return SH_OK;
}

/* Tiers that the device does not have, if the configuration names the device. */
static sh_rc check_tiers(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key;
        bool asked;
        int device;
        const char *text;
    } rows[] = {
        {"offload.optimizer", c->offload.optimizer == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.gradients", c->offload.gradients == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.activations", c->offload.activations == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.optimizer", c->offload.optimizer == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the states are in the CPU's memory already; nvme puts them into a "
         "file"},
        {"offload.gradients", c->offload.gradients == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the gradients are in the CPU's memory already; nvme puts them into "
         "a file"},
        {"offload.parameters", c->offload.parameters == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the parameters are in the CPU's memory already; leave it out"},
        {"offload.activations", c->offload.activations == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu activations are in the CPU's memory already; nvme puts them into a "
         "file"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].asked && c->training.device == rows[i].device)
            return sh_config_refuse(state, rows[i].key, "%s", rows[i].text);
    return SH_OK;
}

/* Checks that need the machine are made when a run opens its file. */
sh_rc sh_config_check_offload(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key, *ratio;
        int where;
        double share;
    } rows[] = {
        {"offload.optimizer", "offload.optimizer_ratio", c->offload.optimizer, c->offload.optimizer_ratio},
        {"offload.gradients", NULL, c->offload.gradients, 1},
        {"offload.activations", "offload.activation_ratio", c->offload.activations, c->offload.activation_ratio},
    };

    SH_TRY(check_rates(state));
    SH_TRY(check_tiers(state));
    if (c->offload.mode == SH_OFFLOAD_BUDGET)
        return check_offload_budget(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].where == SH_OFFLOAD_NONE)
            continue;
        if (rows[i].share <= 0)
            return sh_config_refuse(state, rows[i].ratio, "0 moves nothing; leave out %s", rows[i].key);
        if (rows[i].where == SH_OFFLOAD_NVME && !c->offload.nvme_path[0])
            return sh_config_refuse(state, rows[i].key,
                                    "nvme: offload.nvme_path is missing; give a folder on a local disk");
    }
    return SH_OK;
}
