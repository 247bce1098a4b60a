/* Rates of the lower tiers for a plan without a machine file: those of the configuration (offload.rates), else those of
 * a preset. */
#include "src/cost/rates.h"

#include "src/config/rates.h"
#include "src/cost/preset.h"

#include <string.h>

static void set(struct sh_machine *m, const char *name, double value)
{
    int key = sh_machine_key_find(name);

    *sh_machine_figure(m, key) = value;
    m->from[key] = SH_FROM_MEASUREMENT;
}

/* The preset is part of the program, so it is always found. For GPUs it is an older one: a choice depends on the ratio
 * of computation to the host link, and both are slower there than on newer GPUs. */
void sh_cost_assume_machine(const struct sh_config *cfg, bool gpu, struct sh_machine *m)
{
    const char *kind = gpu ? "a100-80" : "cpu";
    bool found = sh_preset_device(kind, strlen(kind), m);

    (void)found;
    sh_cost_take_rates(cfg, m);
}

void sh_cost_assume_network(bool gpu, int ranks_per_node, struct sh_machine *m)
{
    m->network.bytes_per_second = gpu ? 25e9 * ranks_per_node : 12.5e9;
}

void sh_cost_take_rates(const struct sh_config *cfg, struct sh_machine *m)
{
    struct sh_config_rates r;
    const char *bad;
    double share = 1;

    if (!sh_config_rates(cfg->offload.rates, &r, &bad))
        return;
    if (r.host_read) {
        set(m, "host.read", r.host_read);
        set(m, "host.write", r.host_write);
    }
    if (!r.file_read)
        return;
    /* One after the other, a byte each way takes 1/read + 1/write. */
    if (r.mixed)
        share = r.mixed * (1 / r.file_read + 1 / r.file_write) / 2;
    set(m, "scratch.read", r.file_read * share);
    set(m, "scratch.write", r.file_write * share);
}
