/* `sherd run_clm`: the options of transformers' run_clm.py become a configuration, which is printed and trained. They
 * rank as a configuration file, so keys on the command line take precedence over them. What the options alone do not
 * determine is worked out in stages: the model and the folders, where an earlier start stopped, texts to tokens, then
 * steps from the length of the data. */
#include "src/cmd/run_clm.h"

#include "io/data/data.h"
#include "io/hf/config.h"
#include "io/token/files.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/config/trainer.h"
#include "src/mesh/mesh.h"
#include "src/run/feed.h"
#include "src/run/newest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { BLOCK = 1024 }; /* the default of run_clm.py, unless the model has less */

static const int64_t MOST_STEPS = 1000000000000;

/* One of the two files: the key that it sets, and where the tokens of a text go. */
static const struct file {
    const char *option, *key, *tokens;
} files[] = {
    {"--train_file", "training.dataset_path", "train.bin"},
    {"--validation_file", "validation.dataset_path", "validation.bin"},
};
enum { TRAIN, VALIDATION, N_FILES };

/* What is done every so many steps, and when: the words of a strategy. */
enum when { NEVER, STEPS, EPOCHS };
static const struct {
    const char *strategy, *older, *steps, *key;
    double none;
} events[] = {
    {"--logging_strategy", NULL, "--logging_steps", "metrics.log_freq", 500},
    {"--save_strategy", NULL, "--save_steps", "checkpoint.interval", 500},
    {"--eval_strategy", "--evaluation_strategy", "--eval_steps", "validation.freq", 0},
};
enum { LOG, SAVE, EVAL, N_EVENTS };

struct start {
    struct sh_clm clm;
    struct sh_config cfg;
    bool known[2]; /* whether each of the files is one that can be read, as far as its name and first line say */
    bool evaluates, splits; /* splits: the validation set is the end of the training text */
    enum when when[N_EVENTS];
    double every[N_EVENTS]; /* below 1: share of the steps; 0: not given */
    double epochs, warmup;  /* warmup: below 1 a share of the steps */
    int64_t most, accumulate, percent;
    int64_t step, samples;           /* done by earlier starts */
    char newest[SH_CONFIG_PATH_MAX]; /* checkpoint of the own folder, "": none */
};

/* Note a problem, so that one start reports all; other failures end the function. */
#define NOTE(call) SH_TRY(sh_problems_note(&s->clm.problems, (call)))

static const char *option(const struct start *s, const char *name)
{
    return sh_clm_option(&s->clm, name);
}

static bool prints_only(const struct start *s)
{
    return option(s, "--print-config") != NULL;
}

/* Load the keys so far as a configuration, with those of the command line, which take precedence. */
static sh_rc load(struct start *s)
{
    const struct sh_cmd_args *args = s->clm.args;
    char *text = sh_clm_yaml(&s->clm);
    sh_rc rc = sh_config_parse(text, strlen(text), "sherd run_clm", args->n_overrides, args->overrides, &s->cfg);

    free(text);
    return rc;
}

/* "key=value": the name must be followed by =, since one key may be a prefix of another. */
static bool gives(const struct sh_cmd_args *args, const char *key)
{
    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(args->overrides[i], key, strlen(key)) && args->overrides[i][strlen(key)] == '=')
            return true;
    return false;
}

/* The end of a name that says what is in the file, without that of a compressed one. */
static bool ends_in(const char *name, const char *const *ends)
{
    size_t length = strlen(name);

    length -= length > 3 && !strcmp(name + length - 3, ".gz") ? 3 : 0;
    length -= length > 4 && !strncmp(name + length - 4, ".zst", 4) ? 4 : 0;
    for (; *ends; ends++)
        if (length > strlen(*ends) && !strncmp(name + length - strlen(*ends), *ends, strlen(*ends)))
            return true;
    return false;
}

static bool is_lines(const char *name)
{
    return ends_in(name, (const char *const[]){".jsonl", ".json", NULL});
}

static bool is_text(const char *name)
{
    return is_lines(name) || ends_in(name, (const char *const[]){".txt", NULL});
}

/* A file of lines begins with an object that has a text. A packed file shows its lines only when it is tokenized. */
static sh_rc check_lines(const struct file *f, const char *given)
{
    char *line = NULL;
    size_t room = 0;
    FILE *in = fopen(given, "r");
    sh_rc rc = SH_OK;

    if (in && getline(&line, &room, in) > 0) {
        const char *first = line + strspn(line, " \t");

        if (first[0] == '[')
            rc = sh_fail(SH_E_USAGE,
                         "sherd run_clm: %s %s: a list; each object needs a line of its own: jq -c '.[]' %s "
                         ">lines.jsonl",
                         f->option, given, given);
        else if (first[0] == '{' && strstr(first, "\"messages\"") && !strstr(first, "\"text\""))
            rc =
                sh_fail(SH_E_USAGE,
                        "sherd run_clm: %s %s: its lines are conversations; `sherd tokenize %s -o %s --format messages "
                        "--chat-template auto --tokenizer DIR` makes a file for %s of which the answers are learned",
                        f->option, given, given, f->tokens, f->option);
    }
    if (in)
        fclose(in);
    free(line);
    return rc;
}

/* The name decides what is in a file; each refusal gives the command that helps. */
static sh_rc check_file(const struct start *s, const struct file *f)
{
    const char *given = option(s, f->option);

    if (!given)
        return SH_OK;
    if (!is_text(given) && !ends_in(given, (const char *const[]){".bin", NULL}))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: %s %s: names of token files end in .bin, of texts in .txt, .jsonl or .json; "
                       "`sherd tokenize %s -o %s --tokenizer DIR --format text` makes a token file",
                       f->option, given, given, f->tokens);
    if (access(given, R_OK) != 0 && !strpbrk(given, "*?["))
        return sh_fail(SH_E_USAGE, "sherd run_clm: %s %s: there is no such file", f->option, given);
    return is_lines(given) ? check_lines(f, given) : SH_OK;
}

/* A text needs the tokenizer of the model. */
static sh_rc check_tokenizer(const struct start *s, const struct file *f, const char *given)
{
    const char *folder = s->cfg.hf.assets_path;
    char *path = sh_path_join(folder, "tokenizer.json");
    bool known = s->cfg.hf.tokenizer[0] || access(path, R_OK) == 0;

    free(path);
    if (known)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "sherd run_clm: %s %s: there is no %s/tokenizer.json to tokenize it; `sherd tokenize %s -o %s "
                   "--tokenizer TOKENIZER` makes a token file",
                   f->option, given, folder, given, f->tokens);
}

/* Sets the keys of the two files; for a text, to the token file that it will become. */
static sh_rc set_files(struct start *s)
{
    for (int i = 0; i < N_FILES; i++) {
        const char *given = option(s, files[i].option);
        bool tokenized = given ? is_text(given) : i == VALIDATION && s->splits;

        if (given && tokenized && s->known[i])
            NOTE(check_tokenizer(s, &files[i], given));
        if (!given && !tokenized)
            continue;
        char *tokens = tokenized ? sh_path_join(s->cfg.job.dump_folder, files[i].tokens) : sh_strdup(given);
        sh_clm_set(&s->clm, files[i].key, tokens);
        free(tokens);
    }
    return SH_OK;
}

static sh_rc refuse(const char *text)
{
    return sh_fail(SH_E_USAGE, "sherd run_clm: %s", text);
}

static sh_rc read_strategy(struct start *s, int i)
{
    const char *given = option(s, events[i].strategy);

    if (!given && events[i].older)
        given = option(s, events[i].older);
    s->when[i] = i == EVAL && !option(s, events[i].steps) ? NEVER : STEPS;
    if (!given)
        return SH_OK;
    s->when[i] = !strcasecmp(given, "epoch") ? EPOCHS : !strcasecmp(given, "steps") ? STEPS : NEVER;
    if (s->when[i] == NEVER && strcasecmp(given, "no") != 0)
        return sh_fail(SH_E_USAGE, "sherd run_clm: %s must be steps, epoch or no, not \"%s\"", events[i].strategy,
                       given);
    return SH_OK;
}

/* A share of the steps below 1, or a whole number of them. */
static sh_rc read_share(struct start *s, const char *name, double none, double *out)
{
    NOTE(sh_cmd_number(s->clm.cmd, s->clm.args, name, 0, (double)MOST_STEPS, none, out));
    if (*out > 1 && *out != floor(*out))
        return sh_fail(SH_E_USAGE, "sherd run_clm: %s must be a whole number, or a share of the steps below 1", name);
    return SH_OK;
}

/* In Trainer, warm-up steps take precedence over a share. */
static sh_rc read_numbers(struct start *s)
{
    const struct sh_cmd *cmd = s->clm.cmd;
    const struct sh_cmd_args *args = s->clm.args;
    double ratio;

    for (int i = 0; i < N_EVENTS; i++) {
        NOTE(read_strategy(s, i));
        NOTE(read_share(s, events[i].steps, events[i].none, &s->every[i]));
        if (option(s, events[i].steps) && s->every[i] <= 0)
            NOTE(sh_fail(SH_E_USAGE, "sherd run_clm: %s must be above 0", events[i].steps));
    }
    NOTE(sh_cmd_whole(cmd, args, "--max_steps", -1, MOST_STEPS, -1, &s->most));
    NOTE(sh_cmd_number(cmd, args, "--num_train_epochs", 1e-9, 1e9, 3, &s->epochs));
    NOTE(sh_cmd_whole(cmd, args, "--gradient_accumulation_steps", 1, 1 << 20, 1, &s->accumulate));
    NOTE(sh_cmd_whole(cmd, args, "--validation_split_percentage", 1, 99, 5, &s->percent));
    NOTE(sh_cmd_number(cmd, args, "--warmup_ratio", 0, 1, 0, &ratio));
    NOTE(read_share(s, "--warmup_steps", 0, &s->warmup));
    s->warmup = s->warmup > 0 ? s->warmup : ratio < 1 ? ratio : (double)MOST_STEPS;
    return SH_OK;
}

/* Refuse options that contradict each other, or that would silently have no effect. */
static sh_rc check_evaluation(struct start *s)
{
    static const char other[] = "does not train; `sherd eval --checkpoint FOLDER --data FILE` evaluates";
    const char *train = option(s, "--train_file"), *validation = option(s, "--validation_file");
    bool trains, evaluates;

    NOTE(sh_clm_truth(&s->clm, "--do_train", &trains));
    NOTE(sh_clm_truth(&s->clm, "--do_eval", &evaluates));
    if (option(s, "--do_train") && !trains)
        NOTE(sh_fail(SH_E_USAGE, "sherd run_clm: --do_train False %s", other));
    else if (evaluates && !trains)
        NOTE(sh_fail(SH_E_USAGE, "sherd run_clm: --do_eval without --do_train %s", other));
    s->evaluates = evaluates || s->when[EVAL] != NEVER;
    s->splits = s->evaluates && !validation && train && is_text(train);
    if (s->evaluates && !validation && !s->splits && !gives(s->clm.args, "validation.dataset_path"))
        return refuse("--do_eval, --eval_strategy and --eval_steps need --validation_file FILE; only a text as "
                      "--train_file can be split");
    if (!s->evaluates && validation)
        return refuse("--validation_file without --do_eval, --eval_strategy or --eval_steps is not used; add one");
    return SH_OK;
}

/* Trainer's constant has no warm-up, and Trainer silently drops the options for one. */
static sh_rc check_together(struct start *s)
{
    const char *schedule = option(s, "--lr_scheduler_type");

    for (int i = 0; i < s->clm.args->n_positional; i++)
        NOTE(sh_fail(SH_E_USAGE, "sherd run_clm: \"%s\" is not an option; each begins with --",
                     s->clm.args->positional[i]));
    if (schedule && !strcmp(schedule, "constant") && s->warmup > 0)
        NOTE(refuse("--lr_scheduler_type constant has no warm-up; constant_with_warmup has one"));
    if (!option(s, "--train_file") && !gives(s->clm.args, "training.dataset_path") && !gives(s->clm.args, "data.mix"))
        NOTE(refuse("no training data: give --train_file FILE, a token file (.bin) or a text (.txt, .jsonl, .json)"));
    for (int i = 0; i < N_FILES; i++) {
        sh_rc rc = check_file(s, &files[i]);

        s->known[i] = rc == SH_OK;
        NOTE(rc);
    }
    NOTE(check_evaluation(s));
    return SH_OK;
}

/* Whether the model can be exported: not, for example, if it has a window that transformers' class lacks. */
static bool is_exported(const struct sh_config *cfg)
{
    bool can = sh_hf_config_can_write(cfg) == SH_OK;

    sh_error_clear();
    return can;
}

/* What follows from the model and the mesh. */
static sh_rc set_model_keys(struct start *s)
{
    struct sh_config *cfg = &s->cfg;
    int rank, world;

    sh_mesh_world(&rank, &world);
    if (!sh_clm_get(&s->clm, "training.seq_len"))
        sh_clm_set_number(&s->clm, "training.seq_len", cfg->model.max_seq_len < BLOCK ? cfg->model.max_seq_len : BLOCK);
    sh_clm_set_number(&s->clm, "training.global_batch_size", cfg->training.local_batch_size * s->accumulate * world);
    if (!cfg->lora.rank && cfg->checkpoint.enable && is_exported(cfg))
        sh_clm_set(&s->clm, "checkpoint.last_save_in_hf", "true");
    if (s->evaluates) {
        sh_clm_set(&s->clm, "validation.enable", "true");
        sh_clm_default(&s->clm, "validation.sequences", "0");
    }
    return set_files(s);
}

/* A model that cannot be read is one of the problems, unless it is the only one. */
static sh_rc load_model(struct start *s)
{
    int before = s->clm.problems.n;

    NOTE(sh_clm_model(&s->clm));
    if (s->clm.problems.n > before)
        return SH_OK;
    sh_rc rc = load(s);

    if (rc == SH_E_DATA && before)
        rc = SH_E_USAGE;
    NOTE(rc);
    return rc == SH_OK ? set_model_keys(s) : SH_OK;
}

/* First stage: what the model and the options decide. Local. The steps are a placeholder until they are known: keys on
 * the command line may have a warm-up longer than the default. */
static sh_rc begin(struct start *s)
{
    NOTE(sh_clm_words(&s->clm));
    NOTE(read_numbers(s));
    NOTE(check_together(s));
    if (!gives(s->clm.args, "training.steps"))
        sh_clm_set_number(&s->clm, "training.steps", MOST_STEPS);
    SH_TRY(load_model(s));
    if (s->clm.ignored)
        sh_log_info("ignored: %.*s: without effect here", (int)strlen(s->clm.ignored) - 2, s->clm.ignored);
    SH_TRY(sh_problems_fail(&s->clm.problems));
    return load(s);
}

/* Rank 0: the checkpoint that the run will go on from, "" for none; the run itself judges the file. */
static sh_rc find_position(struct start *s)
{
    const struct sh_config *cfg = &s->cfg;
    struct sh_ckpt_meta meta = {0};
    char *folder = sh_path_join(cfg->job.dump_folder, cfg->checkpoint.folder), *path = NULL;
    sh_rc rc = cfg->checkpoint.resume == SH_RESUME_NEVER ? SH_OK : sh_newest_whole(folder, &path);

    snprintf(s->newest, sizeof s->newest, "%s", path ? path : "");
    if (rc == SH_OK && !path && cfg->checkpoint.initial_load_path[0] && !cfg->checkpoint.initial_load_model_only)
        rc = sh_newest_find(cfg->checkpoint.initial_load_path, &path);
    if (rc == SH_OK && path)
        rc = sh_ckpt_trusted(path, cfg->checkpoint.trust);
    if (rc == SH_OK && path)
        rc = sh_ckpt_read_meta(path, &meta);
    s->step = meta.step;
    s->samples = meta.samples;
    sh_ckpt_meta_free(&meta);
    free(path);
    free(folder);
    return rc;
}

/* A run in --output_dir is resumed, and nothing is deleted. */
static sh_rc check_resume(const struct start *s)
{
    const char *from = option(s, "--resume_from_checkpoint");
    bool overwrites, is_truth = from && sh_trainer_truth(from) >= 0;

    SH_TRY(sh_clm_truth(&s->clm, "--overwrite_output_dir", &overwrites));
    if (s->newest[0] && (overwrites || (is_truth && !sh_trainer_truth(from))))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: %s: %s would be resumed, and nothing is deleted; give another --output_dir, or "
                       "remove that folder",
                       overwrites ? "--overwrite_output_dir" : "--resume_from_checkpoint False", s->newest);
    if (from && !is_truth && strcmp(from, s->newest) != 0 && strcmp(from, s->cfg.job.dump_folder) != 0)
        return sh_fail(
            SH_E_USAGE,
            "sherd run_clm: --resume_from_checkpoint %s: leave it out: the newest checkpoint of --output_dir is "
            "always resumed; --checkpoint.initial_load_path=FILE goes on from another, in a new --output_dir",
            from);
    return SH_OK;
}

/* Second stage: where earlier starts stopped. Collective: all ranks take what rank 0 has found. */
static sh_rc locate(struct start *s)
{
    int64_t position[2];
    int rank, world;
    sh_rc rc = SH_OK;

    sh_mesh_world(&rank, &world);
    if (rank == 0)
        rc = find_position(s);
    if (rank == 0 && rc == SH_OK)
        rc = check_resume(s);
    SH_TRY(sh_agree(rc));
    position[0] = s->step;
    position[1] = s->samples;
    SH_TRY(sh_mesh_bcast(position, sizeof position, 0));
    s->step = position[0];
    s->samples = position[1];
    return SH_OK;
}

/* The file is written again each time: it is the same, unless the text or the tokenizer has changed. */
static sh_rc tokenize(const struct start *s, int i)
{
    const struct sh_config *cfg = &s->cfg;
    const char *text = option(s, files[i].option);
    bool splits = i == TRAIN && s->splits;
    char *to = sh_path_join(cfg->job.dump_folder, files[i].tokens);
    char *rest = splits ? sh_path_join(cfg->job.dump_folder, files[VALIDATION].tokens) : NULL;
    struct sh_token_options opt = {.tokenizer = cfg->hf.tokenizer[0] ? cfg->hf.tokenizer : cfg->hf.assets_path,
                                   .inputs = &text,
                                   .n_inputs = 1,
                                   .output = to,
                                   .val_output = rest,
                                   .val_fraction = splits ? (double)s->percent / 100 : 0,
                                   .format = is_lines(text) ? SH_FORMAT_JSONL : SH_FORMAT_TEXT};
    struct sh_token_report report = {0};
    sh_rc rc = sh_mkdir_p(cfg->job.dump_folder);

    if (rc == SH_OK)
        rc = sh_token_file(&opt, &report);
    if (rc == SH_OK)
        sh_log_info("%s: %lld bytes -> %lld tokens in %s", text, (long long)report.bytes, (long long)report.tokens, to);
    if (rc == SH_OK && splits)
        sh_log_info("%s: its last %lld%%, %lld tokens in %s, validate", text, (long long)s->percent,
                    (long long)report.val_tokens, rest);
    free(to);
    free(rest);
    return rc;
}

/* Third stage, on rank 0; the other ranks wait in the agreement that follows. */
static sh_rc tokenize_all(const struct start *s)
{
    int rank, world;

    sh_mesh_world(&rank, &world);
    for (int i = 0; i < N_FILES && rank == 0; i++) {
        const char *given = option(s, files[i].option);

        if (given && is_text(given))
            SH_TRY(tokenize(s, i));
    }
    return SH_OK;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The sequences of an epoch. */
static sh_rc count_windows(struct start *s, int64_t *windows)
{
    const char *file = option(s, "--train_file");
    struct sh_data_options opt;
    struct sh_data *data;

    if (prints_only(s) && file && is_text(file))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --print-config does not tokenize %s, so the steps of its epochs are not known; "
                       "add --max_steps N",
                       file);
    SH_TRY(sh_cmd_settle(&s->cfg));
    SH_TRY(sh_feed_options(&s->cfg, s->cfg.training.dataset_path, false, &opt));
    SH_TRY(sh_data_open(&opt, &data));
    *windows = sh_data_samples(data);
    sh_data_close(data);
    return SH_OK;
}

/* --max_steps takes precedence over epochs, as in Trainer; -1 means not given. Epochs count the samples that earlier
 * starts have used, so that another number of ranks, or another batch, ends after as many samples. */
static sh_rc set_steps(struct start *s, int64_t *epoch)
{
    bool by_epochs = s->most <= 0 && !gives(s->clm.args, "training.steps"), counts = by_epochs;
    int64_t windows = 0;
    int rank, world;

    *epoch = 1;
    if (s->most > 0)
        sh_clm_set_number(&s->clm, "training.steps", s->most);
    for (int i = 0; i < N_EVENTS; i++)
        counts = counts || s->when[i] == EPOCHS;
    if (!counts)
        return SH_OK;
    SH_TRY(count_windows(s, &windows));
    sh_mesh_world(&rank, &world);
    int64_t batch = s->cfg.training.global_batch_size;

    if (batch <= 0)
        batch = (int64_t)s->cfg.training.local_batch_size * world;
    *epoch = divide_up(windows, batch);
    if (!by_epochs)
        return SH_OK;
    /* The small number is for products such as 0.1 * 30, which are a little more than a whole one. */
    double left = fmin(ceil(s->epochs * (double)windows - 1e-6) - (double)s->samples, 1e18);
    int64_t steps = s->step + (left > 0 ? divide_up((int64_t)left, batch) : 0);

    sh_clm_set_number(&s->clm, "training.steps", steps > 0 ? steps : 1);
    return SH_OK;
}

/* Steps from a number of them, or from a share of all; at least `least`. */
static int64_t whole(double every, int64_t steps, int64_t least)
{
    int64_t n = every < 1 ? (int64_t)ceil(every * (double)steps - 1e-6) : (int64_t)fmin(every, (double)MOST_STEPS);

    return n < least ? least : n;
}

/* Validation without a frequency of its own is once, at the end, or as often as logging. */
static void set_events(struct start *s, int64_t epoch)
{
    int64_t steps = s->cfg.training.steps;

    for (int i = 0; i < (s->evaluates ? N_EVENTS : EVAL); i++) {
        double every = s->every[i] > 0 ? s->every[i] : s->every[LOG];

        sh_clm_set_number(&s->clm, events[i].key,
                          s->when[i] == STEPS    ? whole(every, steps, 1)
                          : s->when[i] == EPOCHS ? epoch
                          : i == EVAL            ? steps
                                                 : MOST_STEPS);
    }
    sh_clm_set_number(&s->clm, "lr_scheduler.warmup_steps",
                      s->warmup == (double)MOST_STEPS ? steps : whole(s->warmup, steps, 0));
}

/* Last stage: what the data decide. Local. */
static sh_rc finish(struct start *s)
{
    int64_t epoch;

    SH_TRY(set_steps(s, &epoch));
    SH_TRY(load(s));
    set_events(s, epoch);
    SH_TRY(load(s));
    return prints_only(s) ? SH_OK : sh_cmd_settle(&s->cfg);
}

/* Print the options as a file for `sherd train`, with the keys of the command line in a comment. */
static void print_words(const struct start *s)
{
    const struct sh_cmd_args *args = s->clm.args;
    char *text = sh_clm_yaml(&s->clm);
    int rank, world;

    sh_mesh_world(&rank, &world);
    if (rank == 0) {
        printf("# sherd train THIS.yaml");
        for (int i = 0; i < args->n_overrides; i++)
            printf(" --%s", args->overrides[i]);
        printf("\n%s", text);
        fflush(stdout);
    }
    free(text);
}

/* Collective. */
sh_rc sh_cmd_run_clm(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct start *s = sh_calloc(1, sizeof *s);
    sh_rc rc;

    s->clm.cmd = cmd;
    s->clm.args = args;
    s->clm.problems = args->problems;
    SH_TRY_OUT(sh_agree(begin(s)));
    SH_TRY_OUT(locate(s));
    SH_TRY_OUT(sh_agree(prints_only(s) ? SH_OK : tokenize_all(s)));
    SH_TRY_OUT(sh_agree(finish(s)));
    if (!prints_only(s))
        print_words(s);
    rc = prints_only(s) ? sh_cmd_print_config(&s->cfg) : sh_cmd_train_with(&s->cfg);
out:
    sh_clm_free(&s->clm);
    free(s);
    return rc;
}
