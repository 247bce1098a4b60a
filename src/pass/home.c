/* States, gradients, parameters and activations may all leave the device: they share one tier and two streams. */
#include "src/pass/home.h"

#include <string.h>

int sh_pass_home_tier(const struct sh_build *b, struct sh_program *p)
{
    int tier = b->snapshot_on_host ? sh_program_host_tier(p) : sh_program_file_tier(p);

    SH_REQUIRE(tier != SH_NONE || !b->snapshot_on_host);
    return tier == SH_NONE ? sh_program_add_tier(p, "file", SH_TIER_FILE) : tier;
}

int sh_pass_moving_stream(struct sh_program *p, const char *name)
{
    for (int i = 0; i < p->n_streams; i++)
        if (p->streams[i].runs == SH_RUNS_MOVES && !strcmp(p->streams[i].name, name))
            return i;
    return sh_program_add_stream(p, name, SH_RUNS_MOVES);
}
