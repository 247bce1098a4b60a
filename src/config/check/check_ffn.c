/* A feed-forward part in words: model.ffn. */
#include "src/config/check/check.h"

#include "src/config/read/ffn.h"
#include "src/config/read/place.h"

/* Factors of widths are right only for widths that grow with the model. */
static bool has_fixed_width(const struct sh_ffn *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->step[i].kind == SH_FFN_LINEAR && !f->step[i].unit)
            return true;
    return false;
}

static sh_rc check_others(struct sh_config_state *state, const struct sh_ffn *f)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        bool on;
        const char *why;
    } rows[] = {
        {c->model.ffn_op[0],
         "model.ffn_op is an operation for the part that this replaces; name it in a statement, and "
         "leave model.ffn_op out"},
        {c->model.n_experts > 0,
         "experts have the feed-forward parts of their family; leave it out, or model.n_experts"},
        {c->parallelism.tensor_parallel_degree > 1,
         "with parallelism.tensor_parallel_degree a rank has a part of the columns, and a statement may need all; shard "
         "over ranks instead"},
        {c->lora.rank > 0, "PEFT has no names for its matrices, so they have no adapters; leave it out, or lora.rank"},
        {c->optimizer.mup && has_fixed_width(f),
         "mup.enable needs widths that grow with the model; write multiples of C or F instead of numbers"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].on)
            return sh_config_refuse(state, "model.ffn", "%s", rows[i].why);
    return SH_OK;
}

sh_rc sh_config_check_ffn(struct sh_config_state *state)
{
    char prefix[SH_CONFIG_PATH_MAX];
    struct sh_ffn f;
    sh_rc rc = sh_config_ffn(state->cfg.model.ffn, &f);

    if (rc != SH_OK)
        return sh_fail_prefix(rc,
                              "%smodel.ffn: ", sh_config_place_prefix(sh_config_place_of(state, "model.ffn"), prefix));
    if (!f.n && state->cfg.model.ffn[0])
        return sh_config_refuse(state, "model.ffn", "has no statement; leave it out");
    return f.n ? check_others(state, &f) : SH_OK;
}
