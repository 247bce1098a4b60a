/* Checkpoints in files and in memory, and the guard, which goes back to them. */
#include "src/config/check/check.h"

#include "src/config/read/place.h"

/* A normal distribution has 2 % of its values above two deviations; with a lower bound the guard would skip ordinary
 * steps. */
sh_rc sh_config_check_guard(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->guard.z_score > 0 && c->guard.z_score < 2)
        return sh_config_refuse(state, "guard.z_score", "%g would skip many good steps; give 0 (off) or at least 2",
                                c->guard.z_score);
    if (c->guard.action == SH_GUARD_ROLLBACK && !c->checkpoint.enable)
        return sh_config_refuse(state, "guard.action", "rollback needs checkpoints, but checkpoint.enable=false");
    return SH_OK;
}

/* The state must be in memory, and what is lost with the memory must be in a file. */
const char *sh_config_no_near(const struct sh_config *c)
{
    if (!c->checkpoint.enable)
        return "near checkpoints go on from the files of checkpoint.enable=true, but it is false";
    if (c->offload.optimizer == SH_OFFLOAD_NVME)
        return "each copy would read all states back from their file (offload.optimizer=nvme)";
    return NULL;
}

sh_rc sh_config_check_near(struct sh_config_state *state)
{
    const char *why = state->cfg.checkpoint.near_interval ? sh_config_no_near(&state->cfg) : NULL;

    return why ? sh_config_refuse(state, "checkpoint.near_interval", "%s", why) : SH_OK;
}

/* I/O methods and their options: an option that the method would silently ignore is refused. */
sh_rc sh_config_check_checkpoint(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->checkpoint.keep_every_n > 0 && c->checkpoint.keep_latest_k == 0)
        return sh_config_refuse(state, "checkpoint.keep_every_n",
                                "has no effect when checkpoint.keep_latest_k=0 keeps all; give that as well");
    if (c->checkpoint.initial_load_model_only && !c->checkpoint.initial_load_path[0])
        return sh_config_refuse(state, "checkpoint.initial_load_model_only",
                                "from which file? give checkpoint.initial_load_path");
    if (c->checkpoint.async_mode == SH_ASYNC_ASYNC && (c->checkpoint.io == SH_IO_MPIIO || c->checkpoint.hints[0]))
        return sh_config_refuse(state, "checkpoint.async_mode", "writes without MPI-IO; leave out checkpoint.%s",
                                c->checkpoint.hints[0] ? "hints" : "io=mpiio");
    /* An asynchronous save always uses plain writes, whatever the method. */
    if (c->checkpoint.writers_per_node != SH_WRITERS_AUTO && c->checkpoint.io != SH_IO_DIRECT &&
        c->checkpoint.async_mode != SH_ASYNC_ASYNC)
        return sh_config_refuse(state, "checkpoint.writers_per_node",
                                "is for plain writes; give checkpoint.io=direct as well");
    if (c->checkpoint.hints[0] && c->checkpoint.io == SH_IO_DIRECT)
        return sh_config_refuse(state, "checkpoint.hints", "are for MPI-IO, which checkpoint.io=direct does not use");
    return SH_OK;
}
