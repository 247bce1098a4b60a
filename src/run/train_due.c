#include "src/run/train.h"

#include "src/run/kept/kept.h"
#include "src/run/measure/claims.h"
#include "src/run/run.h"

bool sh_train_compares(const struct sh_train *t, int64_t step)
{
    int64_t every = t->r->cfg.fault.replica_check_every;

    return every && step % every == 0;
}

bool sh_train_validates(const struct sh_train *t, int64_t step)
{
    const struct sh_config *cfg = &t->r->cfg;

    return cfg->validation.enable && sh_train_due(step, cfg->validation.freq, cfg->training.steps);
}

bool sh_train_saves(const struct sh_train *t, int64_t step)
{
    const struct sh_config *cfg = &t->r->cfg;

    return cfg->checkpoint.enable && sh_train_due(step, cfg->checkpoint.interval, cfg->training.steps);
}

bool sh_train_looks(const struct sh_train *t, int64_t step)
{
    return step == t->r->cfg.training.steps || sh_train_compares(t, step) || sh_train_validates(t, step) ||
           sh_train_saves(t, step) || sh_kept_due(t->r, step) || sh_norms_due(t->r, step) ||
           sh_claims_due(t->r, step) || sh_replay_due(t->r, step);
}

void sh_train_say_doing(const struct sh_train *t, int64_t step)
{
    sh_job_doing(t->r->cfg.checkpoint.enable ? "finishing step %lld, then saving"
                                             : "finishing step %lld; nothing is saved, since checkpoint.enable=false",
                 step);
}
