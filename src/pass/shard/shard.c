/* The program of a rank, built from the micro-steps on logical tensors: state, then sections in their order. Only
 * micro-steps of a tree differ by their place; without a tree, those between first and last are one section that
 * repeats. */
#include "src/optim/groups.h"
#include "src/optim/mup.h"
#include "src/optim/update.h"
#include "src/pass/build.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"

/* Micro-steps with the same place in the tree of sums share a section: 2^k micro-steps need at most (k + 1)(k + 2) /
 * 2. */
static void add_tree(const struct sh_build *b, const struct sh_program *micro, struct sh_program *p)
{
    int last = b->options.micro_steps - 1;

    for (int m = 0; m <= last; m++) {
        enum sh_section_kind kind = m == 0 ? SH_SECTION_FIRST : m < last ? SH_SECTION_MIDDLE : SH_SECTION_LAST;
        int same = sh_program_micro_step(p, m);

        if (same == SH_NONE)
            sh_shard_section(micro, &b->options, kind, m, 1, p);
        else
            p->sections[same].repeat++;
    }
}

/* Truth table of sections by micro-steps n:
 *  n = 1, or all of them in one list   ONLY
 *  n = 2             FIRST, LAST
 *  n > 2             FIRST, MIDDLE x (n - 2), LAST
 *  tree of sums      FIRST, MIDDLE by place in the tree, LAST */
static void add_micro_steps(const struct sh_build *b, const struct sh_program *micro, struct sh_program *p)
{
    int n = b->options.micro_steps;

    if (n == micro->unrolled) {
        sh_shard_section(micro, &b->options, SH_SECTION_ONLY, 0, 1, p);
    } else if (p->tree_sums) {
        add_tree(b, micro, p);
    } else {
        sh_shard_section(micro, &b->options, SH_SECTION_FIRST, 0, 1, p);
        if (n > 2)
            sh_shard_section(micro, &b->options, SH_SECTION_MIDDLE, 1, n - 2, p);
        sh_shard_section(micro, &b->options, SH_SECTION_LAST, n - 1, 1, p);
    }
}

/* Steps with fewer micro-steps share all sections but that of their last one. */
static void add_fewer(const struct sh_build *b, const struct sh_program *micro, struct sh_program *p)
{
    for (int i = 0; i < b->options.n_fewer; i++) {
        int n = b->options.fewer[i];

        if (sh_program_micro_step_of(p, n - 1, n) == SH_NONE)
            sh_shard_section(micro, &b->options, n == 1 ? SH_SECTION_ONLY : SH_SECTION_LAST, n - 1, 0, p);
    }
}

/* The training step after the state: micro-steps, then norm, then update. `micro` is always freed, even when a pass
 * fails. */
static sh_rc add_training(const struct sh_build *b, struct sh_program *p)
{
    struct sh_program *micro;
    sh_rc rc = sh_pass_micro_step(b, true, &micro);

    if (rc == SH_OK) {
        add_micro_steps(b, micro, p);
        add_fewer(b, micro, p);
        sh_shard_norm(&b->options, p);
        sh_shard_update(b, p);
    }
    sh_program_destroy(micro);
    return rc;
}

/* The sections that continue sequences: first of several tokens each, then of one. */
static sh_rc add_cached(const struct sh_build *b, const struct sh_program *prefill, struct sh_program *p)
{
    struct sh_build one = *b;
    struct sh_program *decode;
    sh_rc rc;

    sh_shard_section(prefill, &b->options, SH_SECTION_PREFILL, 0, 0, p);
    one.batch.seq = 1;
    rc = sh_pass_micro_step(&one, false, &decode);
    if (rc == SH_OK)
        sh_shard_section(decode, &b->options, SH_SECTION_DECODE, 0, 0, p);
    sh_program_destroy(decode);
    return rc;
}

/* Whole matrices come from gradients on the device; a row without a second step gathers them by messages. */
static sh_rc check_whole(const struct sh_build *b)
{
    const struct sh_offload *o = &b->offload;
    const struct sh_optim *optim = b->options.optim;
    bool away = o->gradients || o->parameters || (!optim->finish && (o->optimizer_16 || o->carry));

    if (!b->options.training || !optim->whole || !(away || (!optim->finish && b->options.segment_ranks)))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "optimizer.name: %s updates whole matrices, which %s does not allow; give %s",
                   optim->name, away ? "offload" : "comm.shared_memory",
                   !away           ? "comm.shared_memory=off"
                   : optim->finish ? "offload.gradients=none, offload.parameters=none"
                                   : "offload.optimizer=none, offload.gradients=none, offload.parameters=none");
}

/* Whether a matrix is whole: experts of a rank are. */
static bool is_whole(const struct sh_param *param)
{
    return param->n_bands == 0 || (param->ndim == 3 && param->cut == 0);
}

/* Check what the ranks hold of the saved tensors. */
static sh_rc check_params(const struct sh_build *b, const struct sh_program *micro)
{
    bool any = false;

    SH_TRY(sh_saved_check(micro));
    for (int i = 0; b->options.training && b->options.optim->whole && i < micro->n_params; i++) {
        const struct sh_param *param = &micro->params[i];

        /* Bands of a matrix are not the matrix. */
        SH_REQUIRE(is_whole(param) || !sh_optim_has(micro, SH_RUNS_MATRICES, param));
    }
    for (int i = 0; b->options.training && b->options.optim->whole && i < micro->n_saved; i++)
        any |= micro->saved[i].trainable && sh_optim_takes(micro, SH_RUNS_MATRICES, &micro->saved[i]);
    if (b->options.training && b->options.optim->whole && !any)
        return sh_fail(SH_E_USAGE,
                       "optimizer.name: %s updates the matrices of blocks, and none of them is trained by it; give "
                       "adamw",
                       b->options.optim->name);
    return SH_OK;
}

/* Units and constants are those of the forward: training micro-steps add none. */
sh_rc sh_pass_shard(const struct sh_build *b, struct sh_program *p)
{
    struct sh_pass_options options;
    struct sh_program *micro;
    sh_rc rc = SH_OK;

    SH_TRY(check_whole(b));
    SH_TRY_OUT(sh_pass_micro_step(b, false, &micro));
    if (b->options.training)
        SH_TRY_OUT(sh_groups_assign(micro, b->options.optim, b->options.groups));
    if (b->options.training && b->options.mup.width > 0)
        sh_mup_assign(micro, &b->options.mup, b->options.optim->whole);
    SH_TRY_OUT(check_params(b, micro));
    p->tree_sums = b->options.reproducible;
    p->unrolled = micro->unrolled;
    if (b->snapshot_on_host)
        sh_program_add_tier(p, "host", SH_TIER_HOST);
    options = b->options;
    options.states_away = b->offload.optimizer_16 > 0;
    sh_shard_state(micro, &options, p);
    if (b->options.training)
        sh_optim_add_moments(p, b->options.optim, &b->model);
    sh_shard_init(micro, &b->options, p);
    if (b->options.training)
        SH_TRY_OUT(add_training(b, p));
    if (b->evaluate)
        sh_shard_section(micro, &b->options, SH_SECTION_EVAL, 0, 0, p);
    if (b->score)
        sh_shard_section(micro, &b->options, SH_SECTION_SCORE, 0, 0, p);
    else if (b->logits && b->batch.cache)
        SH_TRY_OUT(add_cached(b, micro, p));
    else if (b->logits)
        sh_shard_section(micro, &b->options, SH_SECTION_LOGITS, 0, 0, p);
    else
        sh_shard_loss(&b->options, p);
out:
    sh_program_destroy(micro);
    return rc;
}
