#include "src/pass/build.h"

#include "src/base/str.h"

#include <string.h>

/* A row of the list of passes. `training`: it is left out of micro-steps that are only evaluated. */
struct row {
    const char *name;
    sh_pass *run;
    bool training;
};

#define ROW(name, training) {#name, sh_pass_##name, training},
static const struct row passes[] = {SH_PASS_LIST(ROW)};
enum { PASSES = sizeof passes / sizeof *passes };

static int find(const char *name)
{
    for (int i = 0; i < PASSES; i++)
        if (!strcmp(passes[i].name, name))
            return i;
    return SH_NONE;
}

/* Passes [first, last] in their order. */
static sh_rc run(const struct sh_build *b, int first, int last, bool training, struct sh_program *p)
{
    for (int i = first; i <= last; i++)
        if (training || !passes[i].training)
            SH_TRY(passes[i].run(b, p));
    return SH_OK;
}

/* The first pass: the model's forward on logical tensors, which know no ranks. */
sh_rc sh_pass_model(const struct sh_build *b, struct sh_program *micro)
{
    struct sh_model_batch batch = b->batch;

    batch.out = b->score ? SH_MODEL_SCORE : b->logits ? SH_MODEL_LOGITS : SH_MODEL_LOSS;
    sh_model_emit(&b->model, &batch, micro);
    return SH_OK;
}

/* The passes before shard, on a program of its own. shard calls this twice: for the forward, which is evaluated, and
 * for the training step. */
sh_rc sh_pass_micro_step(const struct sh_build *b, bool training, struct sh_program **out)
{
    *out = sh_program_create(b->act);
    return run(b, 0, find("shard") - 1, training, *out);
}

/* Kinds of memory that take 1 % of the arena or more: smaller ones would not help a user who has to save. */
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

/* Only a whole plan knows its arena, so the limit is compared at the end. The error names what takes the memory, and
 * what would help. */
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

/* For `sherd plan --after PASS`. Passes before shard work on the micro-step alone, so their result is shown as such;
 * later ones need all before. */
sh_rc sh_pass_build_until(const struct sh_build *b, const char *after, struct sh_program **out)
{
    int last = find(after), shard = find("shard");
    sh_rc rc;

#define NAME(name, training) " " #name
    if (last == SH_NONE)
        return sh_fail(SH_E_USAGE, "there is no pass %s; they are, in this order:%s", after, SH_PASS_LIST(NAME));
    *out = sh_program_create(b->act);
    if (last < shard)
        rc = run(b, 0, last, b->options.training, *out);
    else
        rc = run(b, shard, last, true, *out);
    if (rc != SH_OK) {
        sh_program_destroy(*out);
        *out = NULL;
    }
    return rc;
}

sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out)
{
    SH_TRY(sh_pass_build_until(b, passes[PASSES - 1].name, out));
    return within_limit(b, *out);
}
