/* The optimizer: its keys, its groups, the learning rate, factors of widths, and the average of parameters. */
#include "src/config/check/check.h"

#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/read/groups.h"
#include "src/config/read/place.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The words of optimizer.name, and which of the keys that some optimizers do not read each of them reads. */
static const struct {
    const char *word, *reads;
} optimizers[] = {
#define OPTIM(id, word, means, reads, ...) [SH_OPTIM_##id] = {word, reads},
#include "src/config/optim.inc"
#undef OPTIM
};

/* Whether a list of words, separated by blanks, has this one. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; *list != '\0'; list += strcspn(list, " "), list += *list == ' ')
        if (strcspn(list, " ") == length && strncmp(list, word, length) == 0)
            return true;
    return false;
}

/* Like sh_config_check_idle(), for a key that only the optimizers in the message read. */
sh_rc sh_config_check_optimizer(struct sh_config_state *state)
{
    static const char section[] = "optimizer.";
    for (int i = 0; i < sh_config_n_keys; i++) {
        const char *name = sh_config_keys[i].name;
        char readers[64] = "";
        if (!sh_config_place_typed(&state->given[i]) || strncmp(name, section, sizeof section - 1) != 0)
            continue;
        const char *key = name + sizeof section - 1;
        for (int k = 0; k < SH_OPTIMS; k++)
            if (has_word(optimizers[k].reads, key))
                sh_str_add(readers, sizeof readers, " or ", optimizers[k].word);
        if (readers[0] != '\0' && !has_word(optimizers[state->cfg.optimizer.name].reads, key))
            return sh_config_refuse(state, name, "has no effect without optimizer.name=%s", readers);
    }
    return SH_OK;
}

/* Codes of eight bits have operations of their own. */
sh_rc sh_config_check_codes(struct sh_config_state *state)
{
    int name = state->cfg.optimizer.name;

    if (state->cfg.optimizer.state_dtype != SH_PRECISION_INT8 || has_word(optimizers[name].reads, "int8"))
        return SH_OK;
    return sh_config_refuse(state, "optimizer.state_dtype",
                            "int8 is for optimizer.name=adamw and lion; give bfloat16 for %s", optimizers[name].word);
}

/* A group's number that its optimizer does not read. Groups of muon may have tensors of AdamW, unless it is named. */
static sh_rc check_group_numbers(struct sh_config_state *state, const struct sh_config_group *g)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"beta1", g->beta1}, {"beta2", g->beta2}, {"eps", g->eps}};
    int by = g->optimizer < 0 ? state->cfg.optimizer.name : g->optimizer;
    bool none = g->optimizer >= 0 && sh_cfg_is_muon(by);

    for (int k = 0; k < 3; k++)
        if (!isnan(numbers[k].value) && (none || !has_word(optimizers[by].reads, numbers[k].key)))
            return sh_config_refuse(state, "optimizer.groups", "pattern '%s': %s has no effect on what %s updates",
                                    g->pattern, numbers[k].key, optimizers[by].word);
    return SH_OK;
}

/* One update moves all elements of a unit, and that of muon has AdamW in it. */
sh_rc sh_config_check_groups(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n;
    SH_TRY(sh_config_groups(c->optimizer.groups, groups, &n));
    for (int i = 0; i < n; i++) {
        int by = groups[i].optimizer;
        if (by >= 0 && by != c->optimizer.name && (by != SH_OPTIM_ADAMW || !sh_cfg_is_muon(c->optimizer.name)))
            return sh_config_refuse(state, "optimizer.groups",
                                    "pattern '%s': optimizer=%s does not go with optimizer.name=%s; adamw goes with "
                                    "muon, and with normuon, and no other two in one run",
                                    groups[i].pattern, optimizers[by].word, optimizers[c->optimizer.name].word);
        SH_TRY(check_group_numbers(state, &groups[i]));
    }
    return SH_OK;
}

/* Warm-up and the final decay of WSD may touch but not overlap: the overlap would have two rates. */
sh_rc sh_config_check_schedule(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int64_t total = c->lr_scheduler.total_steps > 0 ? c->lr_scheduler.total_steps : c->training.steps;
    int64_t warmup = c->lr_scheduler.warmup_steps;
    int type = c->lr_scheduler.decay_type, shape = sh_cfg_decay_has_tail(type) ? c->lr_scheduler.decay_shape : type;
    /* The rate would never reach its peak. */
    if (warmup > total)
        return sh_config_refuse(state, "lr_scheduler.warmup_steps",
                                "%" PRId64 " is more than all %" PRId64 " steps; give fewer, such as "
                                "--lr_scheduler.warmup_steps=0, or more training.steps",
                                warmup, total);
    if (shape == SH_DECAY_EXP && c->lr_scheduler.min_lr_factor <= 0)
        return sh_config_refuse(state, "lr_scheduler.min_lr_factor",
                                "0: an exponential never gets there; give more, such as 0.01, or sqrt or linear");
    if (!sh_cfg_decay_has_tail(type))
        return SH_OK;
    if ((double)warmup + c->lr_scheduler.decay_ratio * (double)total > (double)total)
        return sh_config_refuse(state, "lr_scheduler.decay_ratio",
                                "%g of %" PRId64 " steps and %" PRId64 " warmup_steps overlap; make one of them less",
                                c->lr_scheduler.decay_ratio, total, warmup);
    return SH_OK;
}

/* What has no factors of widths, and widths that are no whole number of heads. */
sh_rc sh_config_check_mup(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (!c->optimizer.mup)
        return SH_OK;
    if (sh_family_is_tied(&c->model))
        return sh_config_refuse(state, "mup.enable",
                                "the output matrix needs other factors than the embedding, and they are tied; give "
                                "model.tie_word_embeddings=false");
    if (c->lora.rank)
        return sh_config_refuse(state, "mup.enable",
                                "is for matrices that are trained, and those beside adapters are not; leave it out, or "
                                "lora.rank");
    if (c->model.n_experts)
        return sh_config_refuse(
            state, "mup.enable",
            "is for models without experts: no factor of their routers has been tried; leave it out");
    if (c->optimizer.name == SH_OPTIM_SGD)
        return sh_config_refuse(state, "mup.enable",
                                "its factors are for steps that do not grow with the gradient; give "
                                "optimizer.name=adamw, lion or muon");
    if (sh_cfg_is_muon(c->optimizer.name) && c->optimizer.adjust_lr_fn == SH_ADJUST_MATCH_RMS_ADAMW)
        return sh_config_refuse(state, "mup.enable",
                                "optimizer.adjust_lr_fn=match_rms_adamw makes steps that grow with the width; give "
                                "spectral_unclamped");
    if (c->optimizer.mup_base_dim % c->model.head_dim)
        return sh_config_refuse(state, "mup.base_dim",
                                "%d is not a multiple of model.head_dim %d, which all widths must have in common",
                                c->optimizer.mup_base_dim, c->model.head_dim);
    return SH_OK;
}

sh_rc sh_config_check_mean(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (!c->validation.ema || c->optimizer.ema_decay > 0)
        return SH_OK;
    return sh_config_refuse(state, "validation.ema",
                            "the run keeps no average of its parameters; give optimizer.ema_decay, such as 0.999");
}
