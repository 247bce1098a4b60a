/* The files of run_clm.py: what they are, their tokens, and how many sequences they hold. */
#include "src/tools/run_clm/clm.h"

#include "io/data/data.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/feed.h"
#include "src/text/chat/chat.h"
#include "src/text/corpus/files.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One of the two files: the key that it sets, and where the tokens of a text go. */
static const struct file {
    const char *option, *key, *tokens;
} files[] = {
    {"--train_file", "training.dataset_path", "train.bin"},
    {"--validation_file", "validation.dataset_path", "validation.bin"},
};
enum { TRAIN, VALIDATION, N_FILES, LINE_BYTES = 1 << 16 };

enum kind { UNKNOWN, TOKENS, TEXT, LINES };

/* By the end of the name, without that of a compressed file. */
static enum kind kind_of(const char *name)
{
    static const struct {
        const char *end;
        enum kind kind;
    } ends[] = {{".gz", UNKNOWN}, {".zst", UNKNOWN}, {".bin", TOKENS},
                {".txt", TEXT},   {".jsonl", LINES}, {".json", LINES}};
    size_t length = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t end = strlen(ends[i].end);

        if (length <= end || strncmp(name + length - end, ends[i].end, end) != 0)
            continue;
        if (ends[i].kind != UNKNOWN)
            return ends[i].kind;
        length -= end;
    }
    return UNKNOWN;
}

bool sh_clm_is_text(const char *name)
{
    return kind_of(name) >= TEXT;
}

/* A file of lines begins with an object that has a text. A packed file shows its lines only when it is tokenized, and a
 * longer first line is judged then, too. */
static sh_rc check_lines(const struct file *f, const char *given)
{
    char *line = sh_calloc(1, LINE_BYTES);
    FILE *in = fopen(given, "r");
    json_t *object = in && fgets(line, LINE_BYTES, in) ? json_loads(line, 0, NULL) : NULL;
    const char *chat = json_object_get(object, "text") ? NULL : sh_chat_format(object);
    sh_rc rc = SH_OK;

    if (line[strspn(line, " \t")] == '[')
        rc = sh_clm_refuse("%s %s: a list; each object needs a line of its own: jq -c '.[]' %s >lines.jsonl", f->option,
                           given, given);
    else if (chat)
        rc = sh_clm_refuse("%s %s: its lines are conversations; `sherd tokenize %s -o %s --format %s "
                           "--chat-template auto --tokenizer DIR` makes a file for %s of which the answers are learned",
                           f->option, given, given, f->tokens, chat, f->option);
    json_decref(object);
    if (in)
        fclose(in);
    free(line);
    return rc;
}

/* The name decides what is in a file; each refusal gives the command that helps. */
static sh_rc check_file(const struct sh_clm *c, const struct file *f)
{
    const char *given = sh_clm_option(c, f->option);

    if (!given)
        return SH_OK;
    if (kind_of(given) == UNKNOWN)
        return sh_clm_refuse("%s %s: names of token files end in .bin, of texts in .txt, .jsonl or .json; "
                             "`sherd tokenize %s -o %s --tokenizer DIR --format text` makes a token file",
                             f->option, given, given, f->tokens);
    if (access(given, R_OK) != 0 && !strpbrk(given, "*?["))
        return sh_clm_refuse("%s %s: there is no such file", f->option, given);
    return kind_of(given) == LINES ? check_lines(f, given) : SH_OK;
}

sh_rc sh_clm_check_files(struct sh_clm *c)
{
    for (int i = 0; i < N_FILES; i++) {
        sh_rc rc = check_file(c, &files[i]);

        c->known[i] = rc == SH_OK;
        SH_CLM_NOTE(rc);
    }
    return SH_OK;
}

/* A text needs the tokenizer of the model. */
static sh_rc check_tokenizer(const struct sh_clm *c, const struct file *f, const char *given)
{
    const char *folder = c->cfg.hf.assets_path;
    char *path = sh_path_join(folder, "tokenizer.json");
    bool known = c->cfg.hf.tokenizer[0] || access(path, R_OK) == 0;

    free(path);
    if (known)
        return SH_OK;
    return sh_clm_refuse("%s %s: there is no %s/tokenizer.json to tokenize it; `sherd tokenize %s -o %s "
                         "--tokenizer TOKENIZER` makes a token file",
                         f->option, given, folder, given, f->tokens);
}

sh_rc sh_clm_set_files(struct sh_clm *c)
{
    for (int i = 0; i < N_FILES; i++) {
        const char *given = sh_clm_option(c, files[i].option);
        bool tokenized = given ? sh_clm_is_text(given) : i == VALIDATION && c->splits;

        if (given && tokenized && c->known[i])
            SH_CLM_NOTE(check_tokenizer(c, &files[i], given));
        if (!given && !tokenized)
            continue;
        char *tokens = tokenized ? sh_path_join(c->cfg.job.dump_folder, files[i].tokens) : sh_strdup(given);
        sh_clm_set(c, files[i].key, tokens);
        free(tokens);
    }
    return SH_OK;
}

/* The file is written again each time: it is the same, unless the text or the tokenizer has changed. */
static sh_rc tokenize(const struct sh_clm *c, int i)
{
    const struct sh_config *cfg = &c->cfg;
    const char *text = sh_clm_option(c, files[i].option);
    bool splits = i == TRAIN && c->splits;
    char *to = sh_path_join(cfg->job.dump_folder, files[i].tokens);
    char *rest = splits ? sh_path_join(cfg->job.dump_folder, files[VALIDATION].tokens) : NULL;
    struct sh_token_options opt = {.tokenizer = cfg->hf.tokenizer[0] ? cfg->hf.tokenizer : cfg->hf.assets_path,
                                   .inputs = &text,
                                   .n_inputs = 1,
                                   .output = to,
                                   .val_output = rest,
                                   .val_fraction = splits ? (double)c->percent / 100 : 0,
                                   .format = kind_of(text) == LINES ? SH_FORMAT_JSONL : SH_FORMAT_TEXT};
    struct sh_token_report report = {0};
    sh_rc rc = sh_mkdir_p(cfg->job.dump_folder);

    if (rc == SH_OK)
        rc = sh_corpus_tokenize(&opt, &report);
    if (rc == SH_OK)
        sh_log_info("%s: %lld bytes -> %lld tokens in %s", text, (long long)report.bytes, (long long)report.tokens, to);
    if (rc == SH_OK && splits)
        sh_log_info("%s: its last %lld%%, %lld tokens in %s, validate", text, (long long)c->percent,
                    (long long)report.val_tokens, rest);
    free(to);
    free(rest);
    return rc;
}

/* Third stage, on rank 0; the other ranks wait in the agreement that follows. */
sh_rc sh_clm_tokenize_all(const struct sh_clm *c)
{
    for (int i = 0; i < N_FILES && c->rank == 0; i++) {
        const char *given = sh_clm_option(c, files[i].option);

        if (given && sh_clm_is_text(given))
            SH_TRY(tokenize(c, i));
    }
    return SH_OK;
}

sh_rc sh_clm_count_windows(struct sh_clm *c, int64_t *windows)
{
    const char *file = sh_clm_option(c, "--train_file");
    struct sh_data_options opt;
    struct sh_data *data;

    if (c->prints_only && file && sh_clm_is_text(file))
        return sh_clm_refuse("--print-config does not tokenize %s, so the steps of its epochs are not known; "
                             "add --max_steps N",
                             file);
    SH_TRY(sh_cmd_settle(&c->cfg));
    SH_TRY(sh_feed_options(&c->cfg, c->cfg.training.dataset_path, false, &opt));
    SH_TRY(sh_data_open(&opt, &data));
    *windows = sh_data_samples(data);
    sh_data_close(data);
    return SH_OK;
}
