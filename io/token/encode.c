#include "io/file/file.h"
#include "io/token/bin.h"
#include "io/token/token.h"
#include "src/base/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Text read at a time; also the longest line that is sure to reach the tokenizer in one piece. */
enum { PIECE_BYTES = 4 << 20 };

struct input {
    const char *path;
    int fd;
    int64_t begin, bytes; /* its place in the text that all inputs make together */
};

struct job {
    const struct sh_token_ops *ops;
    struct input *input;
    int n_inputs;
    int64_t total, cut;   /* bytes of the text; where its validation part begins */
    struct sh_token_writer *train, *val; /* val NULL: none */
    unsigned char *text;  /* [PIECE_BYTES] */
    uint32_t *ids;        /* [PIECE_BYTES] */
    struct sh_token_report report;
};

static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The folder of a path, to be freed. */
static char *folder_of(const char *path)
{
    size_t n = (size_t)(base_name(path) - path);
    return n ? sh_strfmt("%.*s", (int)n, path) : sh_strdup(".");
}

/* Whether two names are one file, or would be once they exist: links of all kinds, and the same name in one folder. */
static bool same_place(const char *a, const char *b)
{
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    bool same = same_inode(a, b) || (!strcmp(base_name(a), base_name(b)) && same_inode(folder_a, folder_b));
    free(folder_a);
    free(folder_b);
    return same;
}

static sh_rc check_options(const struct sh_token_options *opt)
{
    if (opt->n_inputs < 1)
        return sh_fail(SH_E_USAGE, "no input file to tokenize");
    if (opt->val_output && !(opt->val_fraction > 0 && opt->val_fraction < 1))
        return sh_fail(SH_E_USAGE, "the validation fraction is %g; it must lie between 0 and 1", opt->val_fraction);
    if (!opt->val_output && opt->val_fraction != 0)
        return sh_fail(SH_E_USAGE, "a validation fraction needs a validation file to write to");
    if (opt->val_output && same_place(opt->val_output, opt->output))
        return sh_fail(SH_E_USAGE, "training and validation tokens would go to the same file %s", opt->output);
    for (int i = 0; i < opt->n_inputs; i++)
        if (same_place(opt->inputs[i], opt->output) || (opt->val_output && same_place(opt->inputs[i], opt->val_output)))
            return sh_fail(SH_E_USAGE, "%s is a text to read and a file of tokens to write; give another name for the tokens",
                           opt->inputs[i]);
    return SH_OK;
}

static sh_rc open_inputs(struct job *j, const struct sh_token_options *opt)
{
    j->input = sh_calloc((size_t)opt->n_inputs, sizeof *j->input);
    for (int i = 0; i < opt->n_inputs; i++) {
        struct input *in = &j->input[i];
        SH_TRY(sh_file_open(opt->inputs[i], &in->fd, &in->bytes));
        in->path = opt->inputs[i];
        in->begin = j->total;
        j->total += in->bytes;
        j->n_inputs++;
    }
    return SH_OK;
}

/* Bytes up to the last line end, all of them when there is none. */
static int64_t whole_lines(const unsigned char *text, int64_t bytes)
{
    int64_t n = bytes;
    while (n > 0 && text[n - 1] != '\n')
        n--;
    return n > 0 ? n : bytes;
}

/* Up to `limit` bytes of the text from `at`, all from one input and ending at a line end if there is one. */
static sh_rc read_piece(struct job *j, int64_t at, int64_t limit, int64_t *bytes)
{
    const struct input *in = j->input;
    while (at >= in->begin + in->bytes)
        in++;
    int64_t left = in->begin + in->bytes - at;
    int64_t n = left < limit ? left : limit;
    if (n > PIECE_BYTES)
        n = PIECE_BYTES;
    SH_TRY(sh_file_read(in->fd, in->path, j->text, n, at - in->begin));
    *bytes = n < left && n < limit ? whole_lines(j->text, n) : n;
    return SH_OK;
}

/* Move the cut to the first line begin at or after it; a text without line ends from there on is cut where it is. */
static sh_rc move_cut_to_line(struct job *j)
{
    for (int64_t at = j->cut > 0 ? j->cut - 1 : 0; at < j->total;) {
        int64_t bytes;
        SH_TRY(read_piece(j, at, j->total - at, &bytes));
        const unsigned char *line_end = memchr(j->text, '\n', (size_t)bytes);
        if (line_end) {
            j->cut = at + (line_end - j->text) + 1;
            return SH_OK;
        }
        at += bytes;
    }
    return SH_OK;
}

static sh_rc find_cut(struct job *j, const struct sh_token_options *opt)
{
    j->cut = j->total;
    if (!opt->val_output)
        return SH_OK;
    j->cut = (int64_t)((double)j->total * (1 - opt->val_fraction));
    SH_TRY(move_cut_to_line(j));
    if (j->cut == 0 || j->cut == j->total)
        return sh_fail(SH_E_DATA,
                       "cutting %lld bytes at a line end leaves nothing for %s; choose another fraction than %g",
                       (long long)j->total, j->cut ? opt->val_output : opt->output, opt->val_fraction);
    return SH_OK;
}

static sh_rc encode_all(struct job *j)
{
    for (int64_t at = 0, bytes; at < j->total; at += bytes) {
        bool val = at >= j->cut;
        size_t n;
        SH_TRY(read_piece(j, at, (val ? j->total : j->cut) - at, &bytes));
        SH_TRY(j->ops->encode(j->text, (size_t)bytes, j->ids, &n));
        SH_TRY(sh_token_writer_put(val ? j->val : j->train, j->ids, n));
        *(val ? &j->report.val_tokens : &j->report.tokens) += (int64_t)n;
    }
    return SH_OK;
}

/* A commit frees its writer also when it fails. */
static sh_rc commit(struct sh_token_writer **w)
{
    struct sh_token_writer *mine = *w;
    *w = NULL;
    return mine ? sh_token_writer_commit(mine) : SH_OK;
}

static sh_rc run(struct job *j, const struct sh_token_options *opt)
{
    SH_TRY(open_inputs(j, opt));
    SH_TRY(find_cut(j, opt));
    if (j->total == 0)
        return sh_fail(SH_E_DATA, "%s is empty: there is nothing to tokenize", opt->inputs[0]);
    SH_TRY(sh_token_writer_open(opt->output, j->ops->vocab_size, &j->train));
    if (opt->val_output)
        SH_TRY(sh_token_writer_open(opt->val_output, j->ops->vocab_size, &j->val));
    SH_TRY(encode_all(j));
    SH_TRY(commit(&j->train));
    return commit(&j->val);
}

static void clean(struct job *j)
{
    sh_token_writer_abandon(j->train);
    sh_token_writer_abandon(j->val);
    for (int i = 0; i < j->n_inputs; i++)
        close(j->input[i].fd);
    free(j->input);
    free(j->text);
    free(j->ids);
}

sh_rc sh_token_file(const struct sh_token_options *opt, struct sh_token_report *report)
{
    struct job j = {0};
    SH_TRY(check_options(opt));
    SH_TRY(sh_token_find(opt->tokenizer ? opt->tokenizer : "byte", &j.ops));
    j.text = sh_calloc(PIECE_BYTES, 1);
    j.ids = sh_calloc(PIECE_BYTES, sizeof *j.ids);
    sh_rc rc = run(&j, opt);
    if (rc == SH_OK) {
        *report = j.report;
        report->bytes = j.total;
        report->vocab_size = j.ops->vocab_size;
    }
    clean(&j);
    return rc;
}
