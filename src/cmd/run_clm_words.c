/* The words of run_clm.py that stand for a key each. */
#include "src/cmd/run_clm.h"

#include <string.h>

/* Trainer's defaults, which are not Sherd's. */
static const struct {
    const char *option, *key; /* the option takes a value; NULL: there is no word for it */
    const char *none;         /* when it is not given; NULL: Sherd's own */
} words[] = {
    {"--model_name_or_path", "model.hf_assets_path", NULL},
    {"--model_name", "model.hf_assets_path", NULL},
    {"--per_device_train_batch_size", "training.local_batch_size", "8"},
    {"--learning_rate", "optimizer.lr", "5e-5"},
    {"--adam_beta1", "optimizer.beta1", "0.9"},
    {"--adam_beta2", "optimizer.beta2", "0.999"},
    {"--adam_epsilon", "optimizer.eps", "1e-8"},
    {"--weight_decay", "optimizer.weight_decay", "0"},
    {"--max_grad_norm", "training.max_norm", "1"},
    {NULL, "lr_scheduler.min_lr_factor", "0"},
    {"--block_size", "training.seq_len", NULL},
    {"--output_dir", "job.dump_folder", "trainer_output"},
    {"--save_steps", "checkpoint.interval", "500"},
    {"--save_total_limit", "checkpoint.keep_latest_k", "0"},
    {"--logging_steps", "metrics.log_freq", "500"},
    {"--seed", "debug.seed", "42"},
};

static const struct {
    const char *option, *key, *on, *off;
} flags[] = {
    {"--bf16", "training.mixed_precision_param", "bfloat16", "float32"},
    {"--gradient_checkpointing", "activation_checkpoint.mode", "full", "none"},
};

static const struct {
    const char *word, *decay;
} schedules[] = {
    {"linear", "linear"},
    {"cosine", "cosine"},
    {"constant", "constant"},
    {"constant_with_warmup", "constant"},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Trainer's constant has no warm-up, and drops the words for one without saying so. */
static sh_rc set_schedule(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys)
{
    const char *given = sh_cmd_option(cmd, args, "--lr_scheduler_type");
    bool warms = sh_cmd_option(cmd, args, "--warmup_steps") || sh_cmd_option(cmd, args, "--warmup_ratio");

    if (!given)
        given = "linear";
    if (!strcmp(given, "constant") && warms)
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --lr_scheduler_type constant has no warm-up; constant_with_warmup has one");
    for (size_t i = 0; i < COUNT(schedules); i++)
        if (!strcmp(given, schedules[i].word)) {
            sh_clm_set(keys, "lr_scheduler.decay_type", schedules[i].decay);
            return SH_OK;
        }
    return sh_fail(SH_E_USAGE,
                   "sherd run_clm: --lr_scheduler_type must be linear, cosine, constant or "
                   "constant_with_warmup, not \"%s\"",
                   given);
}

static sh_rc check_together(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    bool evaluates = sh_cmd_option(cmd, args, "--do_eval") || sh_cmd_option(cmd, args, "--eval_steps");

    if (args->n_positional)
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: no word of a line: \"%s\"; each begins with --, and flags have no value",
                       args->positional[0]);
    if (sh_cmd_option(cmd, args, "--model_name") && sh_cmd_option(cmd, args, "--model_name_or_path"))
        return sh_fail(SH_E_USAGE, "sherd run_clm: --model_name and --model_name_or_path are the same; give one");
    if (sh_cmd_option(cmd, args, "--do_eval") && !sh_cmd_option(cmd, args, "--do_train"))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --do_eval without --do_train does not train; `sherd eval --checkpoint FOLDER "
                       "--data FILE` evaluates");
    if (evaluates && !sh_cmd_option(cmd, args, "--validation_file"))
        return sh_fail(SH_E_USAGE, "sherd run_clm: --do_eval and --eval_steps need --validation_file FILE");
    if (!evaluates && sh_cmd_option(cmd, args, "--validation_file"))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --validation_file without --do_eval or --eval_steps is not used; add one");
    return SH_OK;
}

sh_rc sh_clm_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys)
{
    SH_TRY(check_together(cmd, args));
    for (size_t i = 0; i < COUNT(words); i++) {
        const char *given = words[i].option ? sh_cmd_option(cmd, args, words[i].option) : NULL;

        if (given || words[i].none)
            sh_clm_set(keys, words[i].key, given ? given : words[i].none);
    }
    for (size_t i = 0; i < COUNT(flags); i++)
        sh_clm_set(keys, flags[i].key, sh_cmd_option(cmd, args, flags[i].option) ? flags[i].on : flags[i].off);
    SH_TRY(set_schedule(cmd, args, keys));
    return sh_clm_fsdp(cmd, args, keys);
}
