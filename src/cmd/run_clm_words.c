/* The options of run_clm.py that each stand for one key. */
#include "src/cmd/run_clm.h"

#include <string.h>
#include <strings.h>

/* Trainer's defaults, which differ from Sherd's. */
static const struct {
    const char *option, *key; /* the option takes a value; NULL: there is no option for it */
    const char *none;         /* value if it is not given; NULL: Sherd's default */
} words[] = {
    {"--tokenizer_name", "model.tokenizer", NULL},
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

/* Trainer's constant has no warm-up, and Trainer silently drops the options for one. */
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

/* Read an option that is true or false, without a value or with one that HfArgumentParser's string_to_bool() accepts.
 * Errors: SH_E_USAGE: another value. */
static sh_rc flag(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, bool *on)
{
    static const char *const yes[] = {"", "true", "t", "yes", "y", "1"}, *const no[] = {"false", "f", "no", "n", "0"};
    const char *given = sh_cmd_option(cmd, args, name);

    *on = false;
    if (!given)
        return SH_OK;
    for (size_t i = 0; i < COUNT(yes); i++)
        if (!strcasecmp(given, yes[i])) {
            *on = true;
            return SH_OK;
        }
    for (size_t i = 0; i < COUNT(no); i++)
        if (!strcasecmp(given, no[i]))
            return SH_OK;
    return sh_fail(SH_E_USAGE, "sherd run_clm: %s takes True, False or no value, not \"%s\"", name, given);
}

/* --do_train False is refused: another command evaluates without training. */
static sh_rc check_train(const struct sh_cmd *cmd, const struct sh_cmd_args *args, bool *train, bool *eval)
{
    SH_TRY(flag(cmd, args, "--do_train", train));
    SH_TRY(flag(cmd, args, "--do_eval", eval));
    if (sh_cmd_option(cmd, args, "--do_train") && !*train)
        return sh_fail(SH_E_USAGE, "sherd run_clm: --do_train False does not train; `sherd eval --checkpoint FOLDER "
                                   "--data FILE` evaluates");
    return SH_OK;
}

/* Refuse options that contradict each other, or that would silently have no effect. */
static sh_rc check_together(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    bool train, eval, half, brain;

    SH_TRY(check_train(cmd, args, &train, &eval));
    SH_TRY(flag(cmd, args, "--fp16", &half));
    SH_TRY(flag(cmd, args, "--bf16", &brain));
    bool evaluates = eval || sh_cmd_option(cmd, args, "--eval_steps");

    if (half && brain)
        return sh_fail(SH_E_USAGE, "sherd run_clm: --fp16 and --bf16 are two types of one computation; leave out one");
    if (args->n_positional)
        return sh_fail(SH_E_USAGE, "sherd run_clm: \"%s\" is not an option; each begins with --", args->positional[0]);
    if (eval && !train)
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

/* An option that is not given gets Trainer's default if that differs from Sherd's. */
sh_rc sh_clm_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys)
{
    bool half;

    SH_TRY(check_together(cmd, args));
    for (size_t i = 0; i < COUNT(words); i++) {
        const char *given = words[i].option ? sh_cmd_option(cmd, args, words[i].option) : NULL;

        if (given || words[i].none)
            sh_clm_set(keys, words[i].key, given ? given : words[i].none);
    }
    for (size_t i = 0; i < COUNT(flags); i++) {
        bool on;

        SH_TRY(flag(cmd, args, flags[i].option, &on));
        sh_clm_set(keys, flags[i].key, on ? flags[i].on : flags[i].off);
    }
    SH_TRY(flag(cmd, args, "--fp16", &half));
    if (half)
        sh_clm_set(keys, "training.mixed_precision_param", "float16");
    SH_TRY(set_schedule(cmd, args, keys));
    return sh_clm_fsdp(cmd, args, keys);
}
