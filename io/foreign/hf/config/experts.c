#include "io/foreign/hf/config/experts.h"

#include "io/foreign/hf/config/plain.h"
#include "io/json/json.h"
#include "src/base/log.h"
#include "src/base/mem.h"

#include <stdlib.h>

#define ONLY "mlp_only_layers"
#define STEP "decoder_sparse_step"

/* ---- which blocks have experts ---- */

/* with [blocks]: blocks whose number, counted from 1, is a multiple of the step, except those of the list. */
static sh_rc find_blocks(const struct sh_hf_reader *r, long long blocks, bool *with)
{
    json_t *list = sh_hf_find(r->root, ONLY), *value;
    long long step = sh_hf_whole(r, SH_HF_MOE_EVERY);
    size_t i;
    if (step < 1)
        return sh_fail(SH_E_USAGE, "%s: " STEP " must be a whole number from 1 on", r->place);
    for (long long b = 0; b < blocks; b++)
        with[b] = (b + 1) % step == 0;
    if (list && !json_is_array(list))
        return sh_fail(SH_E_USAGE, "%s: " ONLY " is %s, but must be a list of blocks", r->place, sh_json_is(list));
    json_array_foreach(list, i, value)
    {
        if (!json_is_integer(value))
            return sh_fail(SH_E_USAGE, "%s: " ONLY "[%zu] is %s, but must be the number of a block", r->place, i,
                           sh_json_is(value));
        if (json_integer_value(value) >= 0 && json_integer_value(value) < blocks)
            with[json_integer_value(value)] = false;
    }
    return SH_OK;
}

/* The first block from `at` on that has experts; `blocks`: there is none. */
static long long next_of(const bool *with, long long at, long long blocks)
{
    while (at < blocks && !with[at])
        at++;
    return at;
}

/* model.moe_every and first_dense_layers say that blocks have experts from the first one on, at equal distances, and
 * that their numbers, counted from 1, are multiples of that distance. */
static sh_rc give_blocks(struct sh_hf_reader *r, long long blocks, const bool *with)
{
    long long one = next_of(with, 0, blocks), two = next_of(with, one + 1, blocks);
    long long every = two < blocks ? two - one : one + 1, first = one + 1 > every ? one : 0;
    bool follows = one < blocks && (one + 1) % every == 0;
    for (long long b = 0; follows && b < blocks; b++)
        follows = with[b] == (b >= first && (b + 1) % every == 0);
    if (one >= blocks)
        return sh_fail(SH_E_USAGE, "%s: " ONLY " and " STEP " leave no block with experts", r->place);
    if (!follows)
        return sh_fail(SH_E_USAGE,
                       "%s: " ONLY " and " STEP ": blocks with experts are not all, or each n-th, from one on, as "
                       "model.moe_every and model.first_dense_layers say; that is not computed here",
                       r->place);
    snprintf(r->value[SH_HF_MOE_EVERY], sizeof r->value[0], "%lld", every == 1 ? 0 : every);
    snprintf(r->value[SH_HF_FIRST_DENSE], sizeof r->value[0], "%lld", first);
    return SH_OK;
}

/* With more blocks than a model may have, model.n_layers is refused, and so is their number here if it is 0. */
static sh_rc read_blocks(struct sh_hf_reader *r)
{
    enum { MOST = 10000 };
    long long blocks = sh_hf_whole(r, SH_HF_LAYERS);
    blocks = blocks < MOST ? blocks : MOST;
    if (blocks < 1)
        return SH_OK;
    bool *with = sh_calloc((size_t)blocks + 1, sizeof *with);
    sh_rc rc = find_blocks(r, blocks, with);
    if (rc == SH_OK)
        rc = give_blocks(r, blocks, with);
    free(with);
    return rc;
}

/* ---- the rest ---- */

/* Without the list, versions of transformers put the window into different blocks. */
static sh_rc check_window(const struct sh_hf_reader *r)
{
    if (!r->f->layer_types || !json_is_true(sh_hf_find(r->root, "use_sliding_window")) ||
        sh_hf_find(r->root, "layer_types") || sh_hf_is_named("sliding_window", r->so_far->hf.ignore))
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s: use_sliding_window without layer_types: versions of transformers differ in which blocks have "
                   "the window; give layer_types, or leave the window out by model.hf_ignore=sliding_window",
                   r->place);
}

sh_rc sh_hf_experts_read(struct sh_hf_reader *r)
{
    if (!r->f->key[SH_HF_EXPERTS][0])
        return SH_OK;
    if (json_is_true(sh_hf_find(r->root, "output_router_logits")))
        sh_log_info("%s: router_aux_loss_coef is ignored: training balances experts by moe.aux_loss_coeff here",
                    r->place);
    SH_TRY(check_window(r));
    return r->f->key[SH_HF_MOE_EVERY][0] ? read_blocks(r) : SH_OK;
}
