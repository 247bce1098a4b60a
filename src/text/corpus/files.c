/* `sherd tokenize`: turns text files into one or two token files. One thread reads, cuts at the ends of documents and
 * writes; the pool encodes. The main loop finds a free slot (meanwhile it writes finished batches), fills it with whole
 * documents and gives it to the pool. The validation file, if there is one, gets the last part of all text: the first
 * byte of that part is computed from the sizes, and moved to the next start of a line. */
#include "src/text/corpus/files.h"

#include "io/data/format.h"
#include "src/base/mem.h"
#include "src/text/chat/marks.h"
#include "src/text/corpus/batch.h"
#include "src/text/corpus/bin.h"
#include "src/text/corpus/documents.h"
#include "src/text/corpus/pool.h"
#include "src/text/corpus/source.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of text read at a time, and at least in a batch; most bytes in a document or line; most threads. */
enum { PIECE_BYTES = 1 << 20, DOCUMENT_BYTES = 1 << 30, MOST_THREADS = 256 };

/* An output file: one of the two kinds, or none. */
struct output {
    struct sh_bin_writer *tokens;
    struct sh_document_writer *documents;
};

struct job {
    const struct sh_token_options *opt;
    struct sh_tokenizer *tokenizer;
    struct sh_batch_job batch;
    struct sh_pool *pool;
    int64_t *input_bytes;  /* [n_inputs], as stored, still packed */
    int64_t total, before; /* total: of all inputs, 0: not known; before: of the inputs before this one */
    int64_t cut;           /* byte of the text at which its validation part begins; INT64_MAX: none */
    int64_t read;          /* bytes of text read */
    size_t piece_bytes;
    int64_t document_bytes;
    struct sh_text rest; /* of the file: the start of a document whose end has not been read */
    struct output train, val;
    struct sh_token_report report;
    struct sh_token_progress progress;
};

/* One input file while it is being read. */
struct input {
    struct sh_source *source;
    const char *path;
    bool lines, ended;
    int64_t byte, line; /* of the file, where the next batch begins */
    size_t scanned;     /* in the batch being filled: lines up to here are not separators */
};

/* Compare device and inode: it is the same file, whatever links lead to it. */
static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The name after the last slash; lent. */
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

/* Whether two names are the same file, or would be once they exist: follows all kinds of links, and compares names
 * within one folder. */
static bool same_place(const char *a, const char *b)
{
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    bool same = same_inode(a, b) || (!strcmp(base_name(a), base_name(b)) && same_inode(folder_a, folder_b));
    free(folder_a);
    free(folder_b);
    return same;
}

/* Whether a file is jsonl: by the option, otherwise by the file's name. */
static bool is_lines(const struct sh_token_options *opt, const char *path)
{
    static const char *const ends[] = {".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst"};
    size_t n = strlen(path);

    if (opt->format != SH_FORMAT_AUTO)
        return opt->format != SH_FORMAT_TEXT;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n >= strlen(ends[i]) && !strcasecmp(path + n - strlen(ends[i]), ends[i]))
            return true;
    return false;
}

/* Standard input has no name and no size, and cannot be read twice. */
static sh_rc check_standard_input(const struct sh_token_options *opt, int before)
{
    for (int i = 0; i < before; i++)
        if (sh_source_is_input(opt->inputs[i]))
            return sh_fail(SH_E_USAGE, "- is given twice, and standard input can be read once");
    if (opt->format == SH_FORMAT_AUTO)
        return sh_fail(SH_E_USAGE, "standard input has no name that says what it is; give --format text or jsonl");
    return opt->val_output ? sh_fail(SH_E_USAGE, "standard input has no size, so its last part cannot be found for "
                                                 "validation; tokenize a separate file for validation")
                           : SH_OK;
}

/* An input that is also an output would be replaced by its own tokens. In packed text the byte at which the validation
 * part begins cannot be found. */
static sh_rc check_inputs(const struct sh_token_options *opt)
{
    for (int i = 0; i < opt->n_inputs; i++) {
        if (sh_source_is_input(opt->inputs[i])) {
            SH_TRY(check_standard_input(opt, i));
            continue;
        }
        if (same_place(opt->inputs[i], opt->output) || (opt->val_output && same_place(opt->inputs[i], opt->val_output)))
            return sh_fail(SH_E_USAGE, "%s is both an input and an output; give another name for the tokens",
                           opt->inputs[i]);
        if (opt->val_output && sh_source_packed(opt->inputs[i]))
            return sh_fail(SH_E_USAGE,
                           "%s is packed, so its last part cannot be found for validation; unpack it, or tokenize a "
                           "separate file for validation",
                           opt->inputs[i]);
    }
    return SH_OK;
}

static bool any_is_lines(const struct sh_token_options *opt, bool lines)
{
    for (int i = 0; i < opt->n_inputs; i++)
        if (is_lines(opt, opt->inputs[i]) == lines)
            return true;
    return false;
}

/* Whether a line is a list of messages, which cannot become a text without a template. */
static bool has_messages(enum sh_token_format format)
{
    return format == SH_FORMAT_MESSAGES || format == SH_FORMAT_SHAREGPT;
}

/* Whether a line is a text that has a label or a number. */
static bool has_labels(enum sh_token_format format)
{
    return format == SH_FORMAT_LABELLED || format == SH_FORMAT_NUMBERED || format == SH_FORMAT_MULTI_LABEL;
}

/* Refuse options that would be accepted and have no effect. */
static sh_rc check_used(const struct sh_token_options *opt)
{
    bool labelled = has_labels(opt->format);
    bool rendered = opt->format >= SH_FORMAT_MESSAGES && !labelled, plain = opt->format < SH_FORMAT_SEGMENTS;
    const struct {
        const char *option, *what;
        bool given, used;
    } rows[] = {
        {"--field", "lines of jsonl and --format messages or sharegpt", opt->field,
         has_messages(opt->format) || labelled || (plain && any_is_lines(opt, true))},
        {"--separator", "files of text, in which it ends a document", opt->separator, any_is_lines(opt, false)},
        {"--chat-template", "--format messages, sharegpt, alpaca, prompt-completion, preference, reward and unpaired",
         opt->template, rendered},
        {"--special-in-text", "--format messages, sharegpt, alpaca, prompt-completion, preference, reward and unpaired",
         opt->special_in_text, rendered},
        {"--labels", "--format multi_label", opt->labels, opt->format == SH_FORMAT_MULTI_LABEL},
        {"--eos", "text without a chat template, which has its own end", opt->end, !opt->template && !labelled},
        {"--no-bos", "text before which the tokenizer puts a token: segments and chat templates have it written out",
         opt->no_begin, !opt->template && opt->format != SH_FORMAT_SEGMENTS},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given && !rows[i].used)
            return sh_fail(SH_E_USAGE, "%s is for %s; leave it out", rows[i].option, rows[i].what);
    return SH_OK;
}

/* Before any file is opened. */
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
    SH_TRY(check_used(opt));
    return check_inputs(opt);
}

/* The tokenizer "byte" has no documents, so options about documents are refused. */
static sh_rc check_bytes(const struct sh_token_options *opt)
{
    for (int i = 0; i < opt->n_inputs; i++)
        if (is_lines(opt, opt->inputs[i]))
            return sh_fail(
                SH_E_USAGE,
                "%s is read as documents, and the tokenizer byte has no token that ends one; give another one with "
                "--tokenizer, or --format text for the lines as they are",
                opt->inputs[i]);
    if (opt->separator || opt->end || opt->no_begin || opt->no_end || opt->replace_invalid || opt->documents)
        return sh_fail(
            SH_E_USAGE,
            "the tokenizer byte takes all bytes of a text as they are: no documents, separator, begin, end or invalid text");
    return SH_OK;
}

/* Find the token that ends a document: --eos, otherwise the one that the model's folder names. Without one, documents
 * would run into each other, so a missing one is an error and has no default. */
static sh_rc find_end(struct job *j)
{
    const struct sh_token_options *opt = j->opt;

    j->batch.end = -1;
    if (opt->no_end)
        return opt->end ? sh_fail(SH_E_USAGE, "--eos and --no-eos are both given") : SH_OK;
    j->batch.end = opt->end ? sh_tokenizer_find(j->tokenizer, opt->end) : j->tokenizer->end;
    if (j->batch.end >= 0)
        return SH_OK;
    if (opt->end)
        return sh_fail(SH_E_USAGE, "%s has no word \"%s\"", j->tokenizer->path, opt->end);
    return sh_fail(
        SH_E_USAGE,
        "%s: no config.json next to it names an eos_token_id; give --eos TOKEN to name the token that ends a document, "
        "or --no-eos",
        j->tokenizer->path);
}

/* Set up conversations. Called after find_end(), because a template has its own end token. */
static sh_rc settle_chat(struct job *j)
{
    static const enum sh_chat_form forms[] = {
        [SH_FORMAT_SEGMENTS] = SH_CHAT_SEGMENTS,     [SH_FORMAT_MESSAGES] = SH_CHAT_MESSAGES,
        [SH_FORMAT_COMPLETION] = SH_CHAT_COMPLETION, [SH_FORMAT_SHAREGPT] = SH_CHAT_SHAREGPT,
        [SH_FORMAT_ALPACA] = SH_CHAT_ALPACA,         [SH_FORMAT_PREFERENCE] = SH_CHAT_CHOSEN,
        [SH_FORMAT_UNPAIRED] = SH_CHAT_UNPAIRED,     [SH_FORMAT_LABELLED] = SH_CHAT_LABELLED,
        [SH_FORMAT_REWARD] = SH_CHAT_CHOSEN,         [SH_FORMAT_NUMBERED] = SH_CHAT_LABELLED,
        [SH_FORMAT_MULTI_LABEL] = SH_CHAT_LABELLED};
    const struct sh_token_options *opt = j->opt;

    if (opt->format < SH_FORMAT_SEGMENTS)
        return SH_OK;
    j->batch.chat = forms[opt->format];
    j->batch.documents = true;
    j->batch.numbers = opt->format == SH_FORMAT_REWARD || opt->format == SH_FORMAT_NUMBERED;
    j->batch.field = opt->field;
    if (opt->format == SH_FORMAT_MULTI_LABEL)
        SH_TRY(sh_batch_labels(opt->labels, &j->batch));
    if (opt->no_end)
        return sh_fail(SH_E_USAGE, "--no-eos is not for conversations");
    if (!opt->template && !has_messages(opt->format))
        return SH_OK;
    return sh_chat_template(opt->template, j->tokenizer, "render the text elsewhere and give --format segments",
                            &j->batch.template, &j->batch.end);
}

/* Strings are lent from the options, which outlive the job. */
static sh_rc open_tokenizer(struct job *j)
{
    const struct sh_token_options *opt = j->opt;

    SH_TRY(sh_tokenizer_open(opt->tokenizer ? opt->tokenizer : "byte", &j->tokenizer));
    j->batch = (struct sh_batch_job){.tokenizer = j->tokenizer,
                                     .field = opt->field ? opt->field : "text",
                                     .separator = opt->separator,
                                     .no_begin = opt->no_begin,
                                     .replace_invalid = opt->replace_invalid,
                                     .documents = opt->documents,
                                     .special_in_text = opt->special_in_text,
                                     .end = -1};
    if (!j->tokenizer->ops->whole)
        return check_bytes(opt);
    /* A template itself determines what ends a text; a text with a label has nothing after it. */
    if (!opt->template && !has_labels(opt->format) && !has_messages(opt->format))
        SH_TRY(find_end(j));
    return settle_chat(j);
}

/* Get the sizes of all inputs before the first one is read: a wrong name is noticed at once. */
static sh_rc look_at_inputs(struct job *j)
{
    bool known = true;

    j->input_bytes = sh_calloc((size_t)j->opt->n_inputs, sizeof *j->input_bytes);
    for (int i = 0; i < j->opt->n_inputs; i++) {
        struct sh_source *s;
        /* This also starts unpacking, so a form that is not read is refused here. */
        SH_TRY(sh_source_open(j->opt->inputs[i], &s, &j->input_bytes[i]));
        sh_source_close(s);
        known = known && j->input_bytes[i] >= 0;
        j->total += j->input_bytes[i];
    }
    if (!known)
        j->total = 0;
    return j->total || !known ? SH_OK
                              : sh_fail(SH_E_DATA, "%s is empty: there is nothing to tokenize", j->opt->inputs[0]);
}

/* Validation: the cut moves to the first start of a line at or after it; if no line starts there, the cut stays where
 * it is. */

/* Move *at to the first start of a line at or after it; -1: there is none in this file. The search starts one byte
 * earlier, because the byte before *at may be a line end already. */
static sh_rc next_line(const char *path, int64_t *at)
{
    unsigned char text[4096];
    struct sh_source *s;
    int64_t bytes, taken, seen = 0, from = *at > 0 ? *at - 1 : 0;
    size_t n = 1;
    sh_rc rc;

    SH_TRY(sh_source_open(path, &s, &bytes));
    sh_source_skip(s, from);
    *at = -1;
    while (*at < 0 && n > 0) {
        SH_TRY_OUT(sh_source_read(s, text, sizeof text, &n, &taken));
        const unsigned char *end = memchr(text, '\n', n);
        if (end)
            *at = from + seen + (end - text) + 1;
        seen += (int64_t)n;
    }
    rc = SH_OK;
out:
    sh_source_close(s);
    return rc;
}

/* Search on through later files until a line starts. Example: two files of 10 bytes each, cut at 8: the cut moves to
 * the first start of a line at or after byte 8, otherwise to byte 10, where the second file begins. */
static sh_rc move_cut_to_line(struct job *j)
{
    int64_t begin = 0;

    for (int i = 0; i < j->opt->n_inputs; begin += j->input_bytes[i++]) {
        int64_t at = j->cut > begin ? j->cut - begin : 0;
        if (at > j->input_bytes[i])
            continue;
        if (begin > 0 && at == 0) { /* a file starts a new line: the previous file has ended */
            j->cut = begin;
            return SH_OK;
        }
        SH_TRY(next_line(j->opt->inputs[i], &at));
        if (at >= 0) {
            j->cut = begin + at;
            return SH_OK;
        }
    }
    return SH_OK;
}

/* Without a validation part the cut is INT64_MAX, so comparisons need no special case. */
static sh_rc find_cut(struct job *j)
{
    const struct sh_token_options *opt = j->opt;

    j->cut = INT64_MAX;
    if (!opt->val_output)
        return SH_OK;
    j->cut = (int64_t)((double)j->total * (1 - opt->val_fraction));
    SH_TRY(move_cut_to_line(j));
    if (j->cut == 0 || j->cut == j->total)
        return sh_fail(SH_E_DATA,
                       "cutting %lld bytes at a line end leaves nothing for %s; choose a fraction other than %g",
                       (long long)j->total, j->cut ? opt->val_output : opt->output, opt->val_fraction);
    return SH_OK;
}

/* Reading. */

/* Return how many bytes at the front of a text are whole documents, given that its last `n` bytes are new. */
static size_t whole_documents(const struct job *j, struct input *in, const struct sh_text *text, size_t n)
{
    const unsigned char *end = n ? memrchr(text->at + text->n - n, '\n', n) : NULL;
    size_t whole = 0, after = in->scanned;

    /* The tokenizer "byte" needs no documents: any text is whole. */
    if (!j->tokenizer->ops->whole)
        return text->n;
    if (!end)
        return 0;
    /* A line is a document, so the last end of a line is the last end of a document. */
    if (in->lines)
        return (size_t)(end - text->at) + 1;
    while (j->batch.separator &&
           sh_batch_separator(j->batch.separator, text->at, text->n, after, false, &after) < text->n)
        whole = after;
    in->scanned = after;
    return whole;
}

/* A document and its ids must fit into memory. The usual case is a file without any separator. */
static sh_rc refuse_long(const struct job *j, const struct input *in)
{
    if (in->lines)
        return sh_fail(SH_E_DATA, "%s: line %lld has more than %lld bytes; cut the document", in->path,
                       (long long)in->line + 1, (long long)j->document_bytes);
    return sh_fail(SH_E_DATA,
                   "%s: the document at byte %lld has more than %lld bytes; give --separator for a line that ends "
                   "documents, or cut "
                   "the file into several",
                   in->path, (long long)in->byte + 1, (long long)j->document_bytes);
}

/* Read on until the batch has whole documents, the file ends, or the validation part begins. */
static sh_rc fill(struct job *j, struct input *in, struct sh_batch *b)
{
    int64_t taken, limit = j->read < j->cut ? j->cut : INT64_MAX;
    size_t n, whole = 0;

    b->val = j->read >= j->cut;
    sh_text_put(&b->text, j->rest.at, j->rest.n);
    j->rest.n = in->scanned = 0;
    while (!whole && !in->ended && j->read < limit) {
        /* Never past the cut: training and validation text must not be in one batch. */
        size_t room = (int64_t)j->piece_bytes < limit - j->read ? j->piece_bytes : (size_t)(limit - j->read);
        if ((int64_t)b->text.n > j->document_bytes)
            return refuse_long(j, in);
        SH_TRY(sh_source_read(in->source, sh_text_room(&b->text, room + 1), room, &n, &taken));
        b->text.n += n;
        j->read += (int64_t)n;
        j->progress.taken = j->before + taken;
        in->ended = n == 0;
        whole = whole_documents(j, in, &b->text, n);
    }
    /* At the end of a file or of the training part everything is whole, whatever it ends with. */
    if (in->ended || j->read == limit)
        whole = b->text.n;
    /* The start of an incomplete document goes to the front of the next batch. */
    sh_text_put(&j->rest, b->text.at + whole, b->text.n - whole);
    b->text.n = whole;
    return SH_OK;
}

/* Messages give positions in the file, not in the batch: `first` is the batch's first line, or its first byte. */
static void name_batch(struct input *in, struct sh_batch *b)
{
    b->name = in->path;
    b->lines = in->lines;
    b->first = in->lines ? in->line : in->byte;
    in->byte += (int64_t)b->text.n;
    for (size_t i = 0; in->lines && i < b->text.n; i++)
        in->line += b->text.at[i] == '\n';
}

/* Writing. */

static sh_rc open_output(const struct job *j, const char *path, struct output *out)
{
    int words = j->tokenizer->vocab_size;

    if (!j->batch.documents)
        return sh_bin_writer_open(path, words, &out->tokens);
    SH_TRY(sh_document_writer_open(path, words, j->tokenizer->hash, j->batch.chat != SH_CHAT_NONE,
                                   j->batch.template ? j->batch.template->name : NULL, &out->documents));
    if (j->batch.chat == SH_CHAT_CHOSEN)
        sh_document_writer_flag(out->documents, SH_DOCUMENT_PAIRS);
    if (j->batch.chat == SH_CHAT_UNPAIRED)
        sh_document_writer_flag(out->documents, SH_DOCUMENT_LABELS);
    if (j->batch.numbers)
        sh_document_writer_width(out->documents, j->batch.labels > 1 ? j->batch.labels : 1);
    return SH_OK;
}

static sh_rc put_batch(struct output *out, const struct sh_batch *b)
{
    if (out->documents && b->numbers.n)
        SH_TRY(sh_document_writer_numbers(out->documents, b->numbers.at, b->numbers.n));
    if (out->documents)
        return sh_document_writer_put(out->documents, b->ids.id, b->mask.n ? b->mask.at : NULL, b->ids.n, b->lengths.id,
                                      b->lengths.n);
    return sh_bin_writer_put(out->tokens, b->ids.id, b->ids.n);
}

/* Count and report after the write, so progress never runs ahead of the file. */
static sh_rc write_batch(struct job *j, const struct sh_batch *b)
{
    /* Batches come in the order of the input, so the first failure in the text is the one reported. */
    SH_TRY(sh_pool_rc(b));
    SH_TRY(put_batch(b->val ? &j->val : &j->train, b));
    *(b->val ? &j->report.val_tokens : &j->report.tokens) += (int64_t)b->ids.n;
    for (size_t i = 0; i < b->mask.n; i++)
        j->report.learned += b->mask.at[i];
    j->report.documents += b->documents;
    j->report.empty += b->empty;
    j->report.across += b->across;
    j->progress.tokens += (int64_t)b->ids.n;
    j->progress.total = j->total;
    j->progress.bytes = j->read;
    if (j->opt->progress)
        j->opt->progress(j->opt->progress_ctx, &j->progress);
    return SH_OK;
}

/* Write the finished batches; `all`: wait for all batches. */
static sh_rc write_ready(struct job *j, bool all)
{
    for (struct sh_batch *b; (b = sh_pool_take(j->pool, all)) != NULL;)
        SH_TRY(write_batch(j, b));
    return SH_OK;
}

/* Write finished batches in order until a slot is free. */
static sh_rc find_room(struct job *j, struct sh_batch **b)
{
    SH_TRY(write_ready(j, false));
    while ((*b = sh_pool_room(j->pool)) == NULL)
        SH_TRY(write_batch(j, sh_pool_take(j->pool, true)));
    return SH_OK;
}

/* The last batch of a file may be empty; it is given to the pool nevertheless and writes nothing. */
static sh_rc encode_input(struct job *j, struct input *in)
{
    while (!in->ended) {
        struct sh_batch *b;
        SH_TRY(find_room(j, &b));
        SH_TRY(fill(j, in, b));
        name_batch(in, b);
        sh_pool_give(j->pool);
    }
    return SH_OK;
}

/* Encode the files one after the other. A document never crosses from one file to the next. */
static sh_rc encode_all(struct job *j)
{
    for (int i = 0; i < j->opt->n_inputs; i++) {
        struct input in = {.path = sh_source_name(j->opt->inputs[i]), .lines = is_lines(j->opt, j->opt->inputs[i])};
        int64_t bytes;
        SH_TRY(sh_source_open(j->opt->inputs[i], &in.source, &bytes));
        sh_rc rc = encode_input(j, &in);
        sh_source_close(in.source);
        if (rc != SH_OK)
            return rc;
        j->before += bytes;
    }
    /* This waits for all batches. */
    return write_ready(j, true);
}

/* The number of cores that this process may use; under Slurm that may be fewer than the node has. */
static int threads_of(const struct sh_token_options *opt)
{
    cpu_set_t set;
    int n = opt->threads;

    if (n <= 0)
        n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > MOST_THREADS ? MOST_THREADS : n;
}

/* A commit frees its writer even if it fails. */
static sh_rc commit(struct output *out)
{
    struct output mine = *out;

    *out = (struct output){0};
    if (mine.documents)
        return sh_document_writer_commit(mine.documents);
    return mine.tokens ? sh_bin_writer_commit(mine.tokens) : SH_OK;
}

static void abandon(struct output *out)
{
    sh_bin_writer_abandon(out->tokens);
    sh_document_writer_abandon(out->documents);
}

/* Outputs are created late and get their names last: an error in an input leaves existing files unchanged. */
static sh_rc run(struct job *j)
{
    const struct sh_token_options *opt = j->opt;
    struct sh_pool_job pool = {.encode = sh_batch_run,
                               .create = sh_batch_worker_create,
                               .destroy = sh_batch_worker_destroy,
                               .ctx = &j->batch,
                               .threads = threads_of(opt)};

    SH_TRY(open_tokenizer(j));
    SH_TRY(look_at_inputs(j));
    SH_TRY(find_cut(j));
    SH_TRY(open_output(j, opt->output, &j->train));
    if (opt->val_output)
        SH_TRY(open_output(j, opt->val_output, &j->val));
    SH_TRY(sh_pool_start(&pool, &j->pool));
    SH_TRY(encode_all(j));
    if (j->read == 0)
        return sh_fail(SH_E_DATA, "%s is empty: there is nothing to tokenize", sh_source_name(opt->inputs[0]));
    /* If all lines are blank, no token file is made. */
    if (j->tokenizer->ops->whole && j->report.documents == 0)
        return sh_fail(SH_E_DATA, "%s: no document in it has any text", sh_source_name(opt->inputs[0]));
    if (opt->val_output && (j->report.tokens == 0 || j->report.val_tokens == 0))
        return sh_fail(SH_E_DATA, "no document is left for %s; choose a fraction other than %g",
                       j->report.tokens ? opt->val_output : opt->output, opt->val_fraction);
    SH_TRY(commit(&j->train));
    return commit(&j->val);
}

/* The pool is stopped first, because its threads read the tokenizer. */
static void clean(struct job *j)
{
    sh_pool_stop(j->pool);
    abandon(&j->train);
    abandon(&j->val);
    sh_tokenizer_close(j->tokenizer);
    free(j->input_bytes);
    free(j->rest.at);
}

/* The report is filled only on success. */
sh_rc sh_corpus_tokenize(const struct sh_token_options *opt, struct sh_token_report *report)
{
    struct job j = {.opt = opt,
                    .piece_bytes = opt->piece_bytes ? opt->piece_bytes : PIECE_BYTES,
                    .document_bytes = opt->document_bytes ? opt->document_bytes : DOCUMENT_BYTES};

    SH_TRY(check_options(opt));
    sh_rc rc = run(&j);
    if (rc == SH_OK) {
        *report = j.report;
        report->bytes = j.read;
        report->vocab_size = j.tokenizer->vocab_size;
    }
    clean(&j);
    return rc;
}
