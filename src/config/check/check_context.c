/* Sequences cut over ranks: which degrees the heads and lengths allow, by which method, and for the same bits. */
#include "src/config/check/check.h"

#include "src/base/number/size.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

#include <stdio.h>
#include <string.h>

static const char key[] = "parallelism.context_parallel_degree";

static bool has_sinks(const struct sh_config *c)
{
    return sh_family_of(c->model.family)->sinks != NULL;
}

/* Each rank has as many query heads as the others, of those that one of `parts` of the matrices makes; a key-value head
 * is on one rank, or on as many as the others. Sinks are a vector of all heads. */
static bool shares_heads(const struct sh_config *c, int degree, int parts)
{
    int heads = c->model.n_heads / parts, kv = c->model.n_kv_heads / parts;

    return (degree == 1 || !has_sinks(c)) && heads % degree == 0 && (kv % degree == 0 || degree % kv == 0);
}

bool sh_config_gathers(const struct sh_config *c)
{
    int degree = c->parallelism.context_parallel_degree, method = c->parallelism.context_parallel_method;
    int tensor = c->parallelism.tensor_parallel_degree, parts = c->model.n_kv_heads % tensor ? 1 : tensor;

    return degree > 1 &&
           (method == SH_CONTEXT_GATHER || (method == SH_CONTEXT_AUTO && !shares_heads(c, degree, parts)));
}

/* And as many rows. */
static bool shares_sequences(const struct sh_config *c, int degree)
{
    return shares_heads(c, degree, 1) && c->training.seq_len % degree == 0;
}

/* Blocks that need whole sequences are refused in check_delta.c. */
bool sh_config_cuts_sequences(const struct sh_config *c, int degree)
{
    return degree == 1 || (shares_sequences(c, degree) && !sh_layers_any(&c->model, SH_LAYER_LINEAR));
}

/* The most leaves of a sequence. */
static int most_leaves(const struct sh_config *c)
{
    int most = 1;

    while (c->training.seq_len % (2 * most) == 0 && c->training.seq_len / (2 * most) >= SH_ROW_LEAF_LEAST)
        most *= 2;
    return most;
}

/* What row_leaves does not go with; NULL: nothing. To advise it would lead from one refusal to the next. */
static const char *without_leaves(const struct sh_config *c)
{
    return c->model.n_experts                            ? "experts"
           : c->parallelism.tensor_parallel_degree > 1   ? "parallelism.tensor_parallel_degree"
           : c->parallelism.pipeline_parallel_degree > 1 ? "parallelism.pipeline_parallel_degree"
                                                         : NULL;
}

/* Whether so many ranks, each with whole leaves, can have the same bits as one. */
static bool keeps_bits(const struct sh_config *c, int degree)
{
    return !without_leaves(c) && c->parallelism.context_parallel_method != SH_CONTEXT_GATHER &&
           sh_size_is_power_of_two(degree) && degree <= most_leaves(c) && c->model.n_kv_heads % degree == 0 &&
           sh_config_cuts_sequences(c, degree);
}

/* What a degree needs for training.reproducible=mesh, or what to give instead of both. */
static const char *cure_of_mesh(const struct sh_config *c, char text[160])
{
    int degree = c->parallelism.context_parallel_degree, leaves = c->training.row_leaves, fits = degree;

    while (fits > 1 && !keeps_bits(c, fits))
        fits--;
    leaves = leaves % fits ? fits : leaves;
    if (fits == 1)
        snprintf(text, 160, "leave out training.reproducible=mesh or %s", key);
    else if (fits == degree)
        snprintf(text, 160, "give training.row_leaves=%d", leaves);
    else
        snprintf(text, 160, "leave out training.reproducible=mesh, or give %s=%d and training.row_leaves=%d", key, fits,
                 leaves);
    return text;
}

/* Ranks have a piece of each half of a sequence. */
static sh_rc check_gather(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int degree = c->parallelism.context_parallel_degree, fits = degree;
    char cure[160];

    if (c->training.reproducible == SH_REPRODUCIBLE_MESH)
        return sh_config_refuse(state, key,
                                "%d ranks that gather keys and values sum over pieces that do not lie side by side; %s",
                                degree, cure_of_mesh(c, cure));
    while (c->training.seq_len % (2 * fits) && fits > 1)
        fits--;
    snprintf(cure, sizeof cure, fits > 1 ? "give %d" : "leave it out", fits);
    if (fits < degree)
        return sh_config_refuse(
            state, key,
            "%d ranks that gather keys and values have two pieces of each sequence, and %d does not "
            "divide training.seq_len %d; %s",
            degree, 2 * degree, c->training.seq_len, cure);
    return SH_OK;
}

/* Also the choices that there are: all are at most the number of heads. */
sh_rc sh_config_check_context(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int degree = c->parallelism.context_parallel_degree, at = 0;
    char fits[80] = "";

    if (sh_config_gathers(c))
        return check_gather(state);
    if (degree > 1 && has_sinks(c))
        return sh_config_refuse(state, "parallelism.context_parallel_method",
                                "ulysses cuts heads over ranks, but the attention of %s has a vector of sinks of all "
                                "heads; give gather",
                                sh_family_of(c->model.family)->name);
    if (shares_sequences(c, degree))
        return SH_OK;
    for (int d = 1; d <= c->model.n_heads && at < (int)sizeof fits - 12; d++)
        if (shares_sequences(c, d))
            at += snprintf(fits + at, sizeof fits - (size_t)at, "%s%d", at ? ", " : "", d);
    return sh_config_refuse(state, key,
                            "%d ranks cannot share model.n_heads %d, model.n_kv_heads %d and training.seq_len %d "
                            "equally; %s%s",
                            degree, c->model.n_heads, c->model.n_kv_heads, c->training.seq_len,
                            strcmp(fits, "1") ? "give one of " : "leave it out", strcmp(fits, "1") ? fits : "");
}

/* A leaf has whole rows of one sequence; its sums must not depend on who has it. */
sh_rc sh_config_check_leaves(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int leaves = c->training.row_leaves, most = most_leaves(c);

    if (leaves == 1)
        return SH_OK;
    if (c->model.n_experts)
        return sh_config_refuse(state, "training.row_leaves",
                                "%d cuts sums over the rows of a sequence, but rows of experts are sorted over all "
                                "sequences; leave it out with model.n_experts=%d",
                                leaves, c->model.n_experts);
    if (!sh_size_is_power_of_two(leaves) || leaves > most)
        return sh_config_refuse(state, "training.row_leaves",
                                "%d does not cut training.seq_len=%d into a power of two of equal parts of at least %d "
                                "tokens; give at most %d",
                                leaves, c->training.seq_len, SH_ROW_LEAF_LEAST, most);
    return SH_OK;
}

/* Ranks with parts of sequences have whole leaves, and no copies of a key-value head: the gradients of copies are summed
 * in another order than those of one head. */
sh_rc sh_config_check_leaves_of_ranks(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int degree = c->parallelism.context_parallel_degree, leaves = c->training.row_leaves;
    char cure[160];

    if (degree == 1 || c->training.reproducible != SH_REPRODUCIBLE_MESH || sh_config_gathers(c))
        return SH_OK;
    if (leaves % degree && without_leaves(c))
        return sh_config_refuse(state, key,
                                "%d sums gradients over parts of sequences, whose leaves (training.row_leaves) do not "
                                "go with %s; %s",
                                degree, without_leaves(c), cure_of_mesh(c, cure));
    if (leaves % degree)
        return sh_config_refuse(
            state, key, "%d sums gradients over parts of sequences, each of whole leaves (training.row_leaves); %s",
            degree, cure_of_mesh(c, cure));
    if (c->model.n_kv_heads % degree)
        return sh_config_refuse(
            state, key,
            "%d ranks have copies of the %d heads of model.n_kv_heads, whose gradients are summed in an order of their "
            "own; %s",
            degree, c->model.n_kv_heads, cure_of_mesh(c, cure));
    return SH_OK;
}
