#include "src/pass/build.h"

#include "src/base/str.h"

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
        sh_pass_fuse(micro, b->kernels);
        add_micro_steps(b, micro, p);
        sh_pass_shard_norm(&b->options, p);
        sh_pass_shard_update(&b->options, p);
    }
    sh_program_destroy(micro);
    return rc;
}

static const char *what_takes_it(const struct sh_program *p, char *text, size_t size)
{
    int64_t bytes[SH_MEM_KINDS];
    char one[SH_STR_SHORT];
    size_t n = 0;

    text[0] = '\0';
    sh_pass_memory(p, bytes);
    for (int i = 0; i < SH_MEM_KINDS; i++)
        if (bytes[i] * 100 >= p->arena_bytes)
            n += (size_t)snprintf(text + n, size - n, "%s%s %s", n ? ", " : "", sh_mem_name(i),
                                  sh_str_bytes(bytes[i], one));
    return text;
}

static sh_rc within_limit(const struct sh_build *b, const struct sh_program *p)
{
    char text[768], cures[SH_CURES_TEXT], need[SH_STR_SHORT], limit[SH_STR_SHORT];

    if (!b->limit_bytes || p->arena_bytes <= b->limit_bytes)
        return SH_OK;
    return sh_fail(SH_E_MEMORY,
                   "the plan needs %s (%lld bytes) a rank%s, more than memory.limit_bytes = %s (%s)%s",
                   sh_str_bytes(p->arena_bytes, need), (long long)p->arena_bytes,
                   b->fit ? " at least, whatever is recomputed" : "",
                   sh_str_bytes(b->limit_bytes, limit), what_takes_it(p, text, sizeof text),
                   sh_pass_cures(b, p->arena_bytes, cures));
}

sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out)
{
    struct sh_program *p = sh_program_create(b->act);
    struct sh_program *micro = forward(b, b->logits ? SH_MODEL_LOGITS : SH_MODEL_LOSS);
    sh_rc rc = SH_OK;

    sh_pass_fuse(micro, b->kernels);
    p->tree_sums = b->options.reproducible;
    if (b->snapshot_on_host)
        sh_program_add_tier(p, "host", SH_TIER_HOST);
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
    sh_pass_groups(&b->options, p);
    sh_pass_schedule(&b->options, p);
    SH_TRY_OUT(sh_pass_place(p, b->kernels, b->threads));
    SH_TRY_OUT(sh_pass_check(p));
    rc = within_limit(b, p);
    *out = p;
    p = NULL;
out:
    sh_program_destroy(p);
    sh_program_destroy(micro);
    return rc;
}
