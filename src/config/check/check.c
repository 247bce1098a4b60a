/* Checks that need more than one key. Each function returns the first problem of its subject, and sh_config_check()
 * collects them, so that a user sees the problems of all subjects at once. Checks that need the number of ranks or the
 * machine come later, once those are known. Here are the subjects without a file of their own. */
#include "src/config/check/check.h"

#include "src/base/string/str.h"
#include "src/config/read/place.h"

#include <inttypes.h>

/* A separator outside the vocabulary would never be found, and the mask would have no effect. */
sh_rc sh_config_check_documents(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->data.document_separator >= c->model.vocab_size)
        return sh_config_refuse(state, "data.document_separator", "%d is outside the vocabulary of %d tokens",
                                c->data.document_separator, c->model.vocab_size);
    if (c->data.mix[0] && c->training.dataset_path[0])
        return sh_config_refuse(state, "data.mix", "training.dataset_path is given as well; leave one of them out");
    /* Without it documents cannot be told apart. */
    if (c->data.document_mask && c->data.document_separator < 0)
        return sh_config_refuse(state, "data.document_mask",
                                "needs data.document_separator, the token that ends a document");
    return SH_OK;
}

/* Only strategies that drop parameters after the forward can keep a part of them instead. */
sh_rc sh_config_check_parallelism(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int strategy = c->parallelism.sharding_strategy;
    bool reshards = strategy == SH_FULL_SHARD || strategy == SH_HYBRID_SHARD;
    if (c->parallelism.reshard_after_forward > 1 && !reshards)
        return sh_config_refuse(state, "parallelism.reshard_after_forward",
                                "%d needs sharding_strategy full_shard or hybrid_shard;"
                                " the others do not reshard",
                                c->parallelism.reshard_after_forward);
    return SH_OK;
}

sh_rc sh_config_check_tiles(struct sh_config_state *state)
{
    int64_t rows = state->cfg.training.tile_rows, tile = rows == SH_TILE_ROWS_AUTO ? SH_TILE_ROWS : rows;
    int64_t leaves = state->cfg.training.row_leaves, leaf = state->cfg.training.seq_len / leaves;

    if (rows > 0 && rows % 64)
        return sh_config_refuse(state, "training.tile_rows",
                                "%" PRId64 " is not a multiple of 64; nearest that is: %" PRId64, rows,
                                (rows + 63) / 64 * 64);
    if (leaves > 1 && rows && leaf % tile && tile % leaf)
        return sh_config_refuse(state, "training.tile_rows",
                                "%" PRId64 " is neither a divisor nor a multiple of the %" PRId64
                                " tokens of a leaf (training.seq_len / training.row_leaves)",
                                tile, leaf);
    return SH_OK;
}

/* device=auto is not checked here: its outcome is known only on the node. */
sh_rc sh_config_check_device(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.device == SH_DEVICE_CUDA && c->training.kernels == SH_KERNELS_REF)
        return sh_config_refuse(state, "training.kernels",
                                "ref kernels run on the CPU; leave out training.device=cuda");
    if (c->training.device == SH_DEVICE_CPU && c->comm.backend == SH_COMM_NCCL)
        return sh_config_refuse(state, "comm.backend", "nccl is for GPUs; leave it out with training.device=cpu");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->comm.backend == SH_COMM_NCCL)
        return sh_config_refuse(state, "comm.backend",
                                "nccl sums in its own order, not in the tree of training.reproducible=mesh; give"
                                " mpi, or leave it out");
    return SH_OK;
}

/* Otherwise the mode would be accepted and have no effect. */
sh_rc sh_config_check_recompute(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    bool every_k = c->activation_checkpoint.mode == SH_RECOMPUTE_EVERY_K;
    if (every_k && c->activation_checkpoint.every_k > c->model.n_layers)
        return sh_config_refuse(state, "activation_checkpoint.every_k",
                                "%d is more than model.n_layers %d; no block would be"
                                " recomputed",
                                c->activation_checkpoint.every_k, c->model.n_layers);
    if (c->activation_checkpoint.mode == SH_RECOMPUTE_MEMORY_BUDGET && c->memory.limit_bytes == 0)
        return sh_config_refuse(state, "activation_checkpoint.mode",
                                "memory_budget fits memory.limit_bytes; give that too, such as 60GiB");
    return SH_OK;
}

sh_rc sh_config_check_fingerprint(struct sh_config_state *state)
{
    const char *steps = state->cfg.debug.fingerprint_steps;

    if (sh_str_lists(steps, 1) < 0)
        return sh_config_refuse(state, "debug.fingerprint_steps",
                                "\"%s\" is no list of steps; write numbers and ranges from 1 on: 1,2,100-102", steps);
    if (state->cfg.debug.fingerprint_leaves && !state->cfg.debug.fingerprint[0])
        return sh_config_refuse(state, "debug.fingerprint_leaves", "it has an effect only with debug.fingerprint");
    return SH_OK;
}

sh_rc sh_config_check(struct sh_config_state *state)
{
#define SH_CONFIG_CHECK_ROW(subject) sh_config_check_##subject,
    static sh_config_checks *const checks[] = {SH_CONFIG_CHECK_LIST(SH_CONFIG_CHECK_ROW)};
#undef SH_CONFIG_CHECK_ROW

    /* One message per check: a second problem of the same subject is often a consequence of the first. */
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        SH_TRY(sh_problems_note(&state->problems, checks[i](state)));
    return sh_problems_fail(&state->problems);
}
