/* Matrices cut over ranks: what each rank must have an equal part of, and what has no parts yet. */
#include "src/config/check/check.h"
#include "src/base/number/size.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

#include <stdio.h>
#include <string.h>

static const char key[] = "parallelism.tensor_parallel_degree";

/* Tokens of a micro-step on the ranks that share its rows. */
static int64_t rows_of(const struct sh_config *c)
{
    return (int64_t)c->training.local_batch_size * c->training.seq_len / c->parallelism.context_parallel_degree;
}

/* The heads of a rank are then cut as sequences are (check_context.c), unless it keeps them. */
static bool cuts_matrices(const struct sh_config *c, int degree)
{
    int context = sh_config_gathers(c) ? 1 : c->parallelism.context_parallel_degree, kv = c->model.n_kv_heads / degree;

    return c->model.n_heads % degree == 0 && c->model.n_kv_heads % degree == 0 && c->model.ffn_dim % degree == 0 &&
           rows_of(c) % degree == 0 && c->model.n_heads / degree % context == 0 &&
           (kv % context == 0 || context % kv == 0) &&
           (c->training.reproducible != SH_REPRODUCIBLE_MESH || sh_size_is_power_of_two(degree));
}

static sh_rc refuse_number(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int degree = c->parallelism.tensor_parallel_degree;
    bool mesh = c->training.reproducible == SH_REPRODUCIBLE_MESH;
    bool few = c->model.n_kv_heads < degree && c->model.n_heads % degree == 0 && !mesh &&
               !sh_layers_any(&c->model, SH_LAYER_LINEAR);
    char fits[80] = "", context[48] = "";
    int at = 0;

    for (int d = 1; d <= c->model.n_kv_heads && at < (int)sizeof fits - 12; d++)
        if (cuts_matrices(c, d))
            at += snprintf(fits + at, sizeof fits - (size_t)at, "%s%d", at ? ", " : "", d);
    if (!strcmp(fits, "1"))
        fits[0] = '\0';
    if (c->parallelism.context_parallel_degree > 1)
        snprintf(context, sizeof context, " beside context_parallel_degree %d", c->parallelism.context_parallel_degree);
    return sh_config_refuse(state, key,
                            "%d ranks cannot share model.n_heads %d, model.n_kv_heads %d, model.ffn_dim %d and %lld "
                            "tokens of a micro-step equally%s%s; %s%s%s",
                            degree, c->model.n_heads, c->model.n_kv_heads, c->model.ffn_dim, (long long)rows_of(c),
                            context, mesh ? ", in a power of two for training.reproducible=mesh" : "",
                            fits[0] ? "give one of " : "leave it out", fits,
                            few ? "; more ranks can share sequences (parallelism.context_parallel_degree)" : "");
}

/* What works instead is less of the one or the other; NULL: nothing is in the way. */
static const char *bar_of(const struct sh_config *c)
{
    const struct sh_family *f = sh_family_of(c->model.family);
    const struct {
        bool there;
        const char *what;
    } rows[] = {
        {f->kv_a,
         "cuts heads, whose keys and values have a latent vector in common here; leave it out, and give experts to "
         "ranks by parallelism.expert_parallel_degree"},
        {c->training.mixed_precision_param == SH_PRECISION_FLOAT16,
         "sums activations over ranks, in float32 or bfloat16; give training.mixed_precision_param=bfloat16"},
        {c->training.row_leaves > 1, "cuts rows flat, whatever leaf they are of; give training.row_leaves=1"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].there)
            return rows[i].what;
    return NULL;
}

/* Those of some parts are whole on each rank: check_delta.c and check_ffn.c say so. */
static bool has_whole_parts(const struct sh_config *c)
{
    return c->model.ffn[0] || sh_layers_any(&c->model, SH_LAYER_LINEAR);
}

bool sh_config_cuts_matrices(const struct sh_config *c)
{
    int degree = c->parallelism.tensor_parallel_degree;

    return degree == 1 || (cuts_matrices(c, degree) && !bar_of(c) && !has_whole_parts(c) &&
                           rows_of(c) % (degree * c->parallelism.tensor_parallel_tiles) == 0);
}

/* Each rank has a stripe of each tile. */
static sh_rc check_tiles(struct sh_config_state *state)
{
    static const char tiles[] = "parallelism.tensor_parallel_tiles";
    const struct sh_config *c = &state->cfg;
    int n = c->parallelism.tensor_parallel_tiles, degree = c->parallelism.tensor_parallel_degree;

    if (degree == 1 && sh_config_place_typed(sh_config_place_of(state, tiles)))
        return sh_config_refuse(state, tiles, "has no effect without %s above 1", key);
    if (degree > 1 && rows_of(c) % (degree * n))
        return sh_config_refuse(
            state, tiles,
            "%d tiles of %d ranks cannot have equal rows of %lld tokens of a micro-step; give fewer, or 1", n, degree,
            (long long)rows_of(c));
    return SH_OK;
}

sh_rc sh_config_check_tensor(struct sh_config_state *state)
{
    int degree = state->cfg.parallelism.tensor_parallel_degree;
    const char *bar = degree == 1 ? NULL : bar_of(&state->cfg);

    if (bar)
        return sh_config_refuse(state, key, "%d %s", degree, bar);
    if (degree > 1 && !cuts_matrices(&state->cfg, degree))
        return refuse_number(state);
    return check_tiles(state);
}
