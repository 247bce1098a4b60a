#include "src/cmd/cmd.h"

#include "src/base/log.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/text/corpus/files.h"
#include "src/text/corpus/tail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The progress line on a terminal. */
struct line {
    int64_t began, last; /* ns */
    bool shown;
};

/* One second in ns. */
static const int64_t second = 1000000000;

/* At most four times a second: a terminal over ssh is slower than the tokenizer. The time left is based on the bytes of
 * the inputs, compressed as they are, because the size of the text is not known. For standard input neither size is
 * known. */
static void show_progress(void *ctx, const struct sh_token_progress *p)
{
    struct line *l = ctx;
    int64_t now = sh_now_ns();
    double seconds = (double)(now - l->began) / 1e9;
    char bytes[SH_STR_SHORT], rate[SH_STR_SHORT], tokens[SH_STR_SHORT], left[SH_STR_SHORT];

    if (now - l->last < second / 4 || p->taken == 0)
        return;
    l->last = now;
    l->shown = true;
    fputs("\r\x1b[K", stderr);
    if (p->total)
        fprintf(stderr, "%3.0f %%  ", 100.0 * (double)p->taken / (double)p->total);
    fprintf(stderr, "%s  %s tokens  %s/s", sh_str_bytes(p->bytes, bytes), sh_str_count(p->tokens, tokens),
            sh_str_bytes((int64_t)((double)p->bytes / seconds), rate));
    if (p->total)
        fprintf(stderr, "  %s left", sh_str_duration(seconds * (double)(p->total - p->taken) / (double)p->taken, left));
    fflush(stderr);
}

static bool is_there(const char *path)
{
    return path && access(path, F_OK) == 0;
}

/* The validation part of an earlier call may be next to a file that now has the whole text. */
static sh_rc warn_of_held_out(const char *output, bool held_out)
{
    char *other;

    SH_TRY(sh_corpus_find_tail(output, &other));
    if (other)
        sh_log_warn("%s holds the end of %s: a model trained on this one has seen all of that one; %s", other, output,
                    held_out ? "the text repeats itself" : "--val holds text out");
    free(other);
    return SH_OK;
}

/* The message lists the valid words. */
static sh_rc refuse_word(const char *name, const char *given, const char *const *words)
{
    char list[256] = "";

    for (int i = 0; words[i]; i++)
        sh_str_add(list, sizeof list, words[i + 1] ? ", " : " or ", words[i]);
    return sh_fail(SH_E_USAGE, "sherd tokenize: %s must be %s, not \"%s\"", name, list, given);
}

/* One of a few words; `words` ends with NULL, and *out is the index of the word. */
static sh_rc choose(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name,
                    const char *const *words, int *out)
{
    const char *given = sh_cmd_option(cmd, args, name);

    for (*out = 0; given && words[*out]; ++*out)
        if (!strcmp(given, words[*out]))
            return SH_OK;
    if (!given)
        return SH_OK;
    return refuse_word(name, given, words);
}

/* The options for documents; the tokenizer byte refuses most of them later. */
static sh_rc take_documents(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_token_options *opt)
{
    static const char *const formats[] = {"text",     "jsonl",      "segments",    "messages", "prompt-completion",
                                          "sharegpt", "alpaca",     "preference",  "unpaired", "classification",
                                          "reward",   "regression", "multi_label", NULL};
    static const char *const invalid[] = {"refuse", "replace", NULL};
    int format, how;
    int64_t threads;

    SH_TRY(choose(cmd, args, "--format", formats, &format));
    SH_TRY(choose(cmd, args, "--invalid", invalid, &how));
    SH_TRY(sh_cmd_whole(cmd, args, "--threads", 1, 256, 0, &threads));
    opt->format = sh_cmd_option(cmd, args, "--format") ? (enum sh_token_format)(SH_FORMAT_TEXT + format)
                                                       : SH_FORMAT_AUTO;
    opt->replace_invalid = how == 1;
    opt->threads = (int)threads;
    opt->tokenizer = sh_cmd_option(cmd, args, "--tokenizer");
    opt->labels = sh_cmd_option(cmd, args, "--labels");
    opt->field = sh_cmd_option(cmd, args, "--field");
    opt->separator = sh_cmd_option(cmd, args, "--separator");
    opt->end = sh_cmd_option(cmd, args, "--eos");
    opt->no_begin = sh_cmd_option(cmd, args, "--no-bos") != NULL;
    opt->no_end = sh_cmd_option(cmd, args, "--no-eos") != NULL;
    opt->template = sh_cmd_option(cmd, args, "--chat-template");
    opt->special_in_text = sh_cmd_option(cmd, args, "--special-in-text") != NULL;
    opt->documents = sh_cmd_option(cmd, args, "--documents") != NULL;
    return SH_OK;
}

/* Strings are lent from the arguments. */
static sh_rc take_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_token_options *opt)
{
    *opt = (struct sh_token_options){.inputs = args->positional,
                                     .n_inputs = args->n_positional,
                                     .output = sh_cmd_option(cmd, args, "-o"),
                                     .val_output = sh_cmd_option(cmd, args, "--val")};
    if (!opt->n_inputs)
        return sh_fail(SH_E_USAGE, "sherd tokenize: which text? give one or more files");
    if (!opt->output)
        return sh_fail(SH_E_USAGE, "sherd tokenize: where should the tokens go? give -o FILE");
    if (sh_cmd_option(cmd, args, "--val-fraction") && !opt->val_output)
        return sh_fail(SH_E_USAGE, "sherd tokenize: --val-fraction needs --val FILE");
    /* The range excludes both ends: holding out nothing, or leaving nothing to train on, is a mistake. */
    SH_TRY(sh_cmd_number(cmd, args, "--val-fraction", 1e-9, 0.999999, opt->val_output ? 0.1 : 0, &opt->val_fraction));
    return take_documents(cmd, args, opt);
}

/* One line for people and scripts, and the arguments for the next command. */
static void print_report(const struct sh_token_options *opt, const struct sh_token_report *report)
{
    char documents[SH_STR_SHORT];

    printf("%lld bytes -> %lld tokens in %s", (long long)report->bytes, (long long)report->tokens, opt->output);
    if (opt->val_output)
        printf(", %lld in %s", (long long)report->val_tokens, opt->val_output);
    if (report->documents)
        printf("; %s", sh_str_plural(report->documents, "document", documents));
    if (report->empty)
        printf(", %lld empty ones left out", (long long)report->empty);
    if (report->learned)
        printf("; %lld tokens are learned", (long long)report->learned);
    if (report->across)
        printf(", %lld of which begin in the prompt", (long long)report->across);
    printf("; vocabulary %d\n", report->vocab_size);
    if (opt->val_output)
        printf("train with: --training.dataset_path=%s --validation.enable=true --validation.dataset_path=%s\n",
               opt->output, opt->val_output);
}

/* The progress line is erased before anything else is printed. */
sh_rc sh_cmd_tokenize(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct line line = {.began = sh_now_ns()};
    struct sh_token_options opt;
    struct sh_token_report report;

    SH_TRY(take_options(cmd, args, &opt));
    /* Only on a terminal: a log file would get one endless line. */
    if (isatty(STDERR_FILENO)) {
        opt.progress = show_progress;
        opt.progress_ctx = &line;
    }
    bool replaces = is_there(opt.output), replaces_val = is_there(opt.val_output);
    sh_rc rc = sh_corpus_tokenize(&opt, &report);
    if (line.shown)
        fputs("\r\x1b[K", stderr);
    SH_TRY(rc);
    if (replaces)
        sh_log_info("replaced %s", opt.output);
    if (replaces_val)
        sh_log_info("replaced %s", opt.val_output);
    print_report(&opt, &report);
    if (opt.format >= SH_FORMAT_SEGMENTS)
        return sh_cmd_data_first(opt.output, opt.tokenizer);
    return opt.documents ? SH_OK : warn_of_held_out(opt.output, opt.val_output != NULL);
}
