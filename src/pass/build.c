#include "src/pass/build.h"

static struct sh_program *forward(const struct sh_build *b, enum sh_model_output out)
{
    struct sh_program *micro = sh_program_create(b->act);
    struct sh_model_batch batch = b->batch;

    batch.out = out;
    sh_model_emit(&b->model, &batch, micro);
    return micro;
}

/* Micro-steps with the same place in the tree of sums share a section: of 2^k there are (k + 1)(k + 2) / 2 at most. */
static void add_tree(const struct sh_build *b, const struct sh_program *micro, struct sh_program *p)
{
    int last = b->options.micro_steps - 1;

    for (int m = 0; m <= last; m++) {
        enum sh_section_kind kind = m == 0 ? SH_SECTION_FIRST : m < last ? SH_SECTION_MIDDLE : SH_SECTION_LAST;
        int same = sh_program_micro_step(p, m);

        if (same == SH_NONE)
            sh_pass_shard_section(micro, &b->options, kind, m, 1, p);
        else
            p->sections[same].repeat++;
    }
}

static void add_micro_steps(const struct sh_build *b, const struct sh_program *micro, struct sh_program *p)
{
    int n = b->options.micro_steps;

    if (n == 1) {
        sh_pass_shard_section(micro, &b->options, SH_SECTION_ONLY, 0, 1, p);
    } else if (p->tree_sums) {
        add_tree(b, micro, p);
    } else {
        sh_pass_shard_section(micro, &b->options, SH_SECTION_FIRST, 0, 1, p);
        if (n > 2)
            sh_pass_shard_section(micro, &b->options, SH_SECTION_MIDDLE, 1, n - 2, p);
        sh_pass_shard_section(micro, &b->options, SH_SECTION_LAST, n - 1, 1, p);
    }
}

static sh_rc add_training(const struct sh_build *b, struct sh_program *p)
{
    struct sh_program *micro = forward(b, SH_MODEL_LOSS);
    sh_rc rc = sh_pass_grad(micro);

    if (rc == SH_OK) {
        sh_pass_recompute(micro, &b->recompute);
        add_micro_steps(b, micro, p);
        sh_pass_shard_norm(&b->options, p);
        sh_pass_shard_update(&b->options, p);
    }
    sh_program_destroy(micro);
    return rc;
}

sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out)
{
    struct sh_program *p = sh_program_create(b->act);
    struct sh_program *micro = forward(b, b->logits ? SH_MODEL_LOGITS : SH_MODEL_LOSS);
    sh_rc rc = SH_OK;

    p->tree_sums = b->options.reproducible;
    p->snapshot_on_host = b->snapshot_on_host;
    sh_pass_shard_state(micro, &b->options, p);
    sh_pass_shard_init(micro, &b->options, p);
    if (b->options.training)
        SH_TRY_OUT(add_training(b, p));
    if (b->evaluate)
        sh_pass_shard_section(micro, &b->options, SH_SECTION_EVAL, 0, 0, p);
    if (b->logits)
        sh_pass_shard_section(micro, &b->options, SH_SECTION_LOGITS, 0, 0, p);
    else
        sh_pass_shard_loss(&b->options, p);
    sh_pass_schedule(&b->options, p);
    rc = sh_pass_place(p, b->kernels, b->threads, b->limit_bytes);
    if (rc == SH_OK)
        rc = sh_pass_check(p);
    if (rc != SH_OK && rc != SH_E_MEMORY)
        goto out;
    *out = p;
    p = NULL;
out:
    sh_program_destroy(p);
    sh_program_destroy(micro);
    return rc;
}
