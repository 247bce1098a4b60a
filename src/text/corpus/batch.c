/* What a thread of the pool does with a batch: check that it is UTF-8, cut it into documents, encode each one with the
 * tokens in front of and after it. A batch holds whole documents only, so no thread needs another thread's batch. The
 * tokenizer "byte" has no documents and takes the bytes as they are. */
#include "src/text/corpus/batch.h"

#include "io/data/format.h"
#include "io/json/field.h"
#include "src/base/mem.h"
#include "src/base/string/utf8.h"
#include "src/text/chat/marks.h"

#include <stdlib.h>

/* The state of one thread: an encoder has scratch memory and a cache, which threads do not share. */
struct worker {
    struct sh_encoder *encoder;
    struct sh_text text;    /* of one document, or scratch to repair a batch */
    struct sh_marks *marks; /* for conversations, like `chat` */
    struct sh_chat chat;
};

/* Runs in the thread that will use it. */
void *sh_batch_worker_create(const void *ctx)
{
    const struct sh_batch_job *job = ctx;
    struct worker *w = sh_calloc(1, sizeof *w);

    w->encoder = sh_encoder_create(job->tokenizer);
    if (job->chat)
        w->marks = sh_marks_create(job->tokenizer);
    return w;
}

void sh_batch_worker_destroy(void *worker)
{
    struct worker *w = worker;

    sh_encoder_destroy(w->encoder);
    sh_marks_destroy(w->marks);
    sh_chat_free(&w->chat);
    free(w->text.at);
    free(w);
}

size_t sh_batch_separator(const char *separator, const unsigned char *text, size_t bytes, size_t from, bool last,
                          size_t *after)
{
    size_t n = strlen(separator);

    while (from < bytes) {
        const unsigned char *end = memchr(text + from, '\n', bytes - from);
        if (!end && !last)
            return bytes;
        size_t stop = end ? (size_t)(end - text) : bytes, line = stop - from;
        line -= line > 0 && text[stop - 1] == '\r';
        *after = end ? stop + 1 : bytes;
        if (line == n && memcmp(text + from, separator, n) == 0)
            return from;
        from = *after;
    }
    return bytes;
}

/* Refuse a text that already begins with the token that the tokenizer puts in front; it would be there twice. */
static sh_rc refuse_twice(const struct sh_ids *ids, size_t begin, size_t first)
{
    if (first > begin && ids->n > first && ids->id[first] == ids->id[begin])
        return sh_fail(
            SH_E_DATA,
            "the text begins with the token that the tokenizer puts in front of it; take it out of the text, "
            "or give --no-bos");
    return SH_OK;
}

static sh_rc put_document(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b, const void *text,
                          size_t bytes)
{
    size_t begin = b->ids.n;

    if (bytes == 0) {
        b->empty++;
        return SH_OK;
    }
    if (!job->no_begin)
        SH_TRY(sh_encode(w->encoder, "", 0, SH_ENCODE_BEGIN, &b->ids));
    size_t first = b->ids.n;
    SH_TRY(sh_encode(w->encoder, text, bytes, SH_ENCODE_END, &b->ids));
    SH_TRY(refuse_twice(&b->ids, begin, first));
    /* The template, or the text itself, may end with that token. */
    if (job->end >= 0 && (b->ids.n == begin || b->ids.id[b->ids.n - 1] != (uint32_t)job->end))
        sh_ids_put(&b->ids, (uint32_t)job->end);
    if (job->documents)
        sh_ids_put(&b->lengths, (uint32_t)(b->ids.n - begin));
    b->documents++;
    return SH_OK;
}

/* Extend the mask to the ids that were added in front of a text or after it. */
static void fill_mask(struct sh_batch *b, unsigned char counts)
{
    size_t more = b->ids.n - b->mask.n;

    memset(sh_text_room(&b->mask, more + 1), counts, more);
    b->mask.n += more;
}

/* End a document that has n numbers: its last token stands for what a head makes of the one before. */
static void close_numbered(struct sh_batch *b, size_t begin, const double *numbers, size_t n)
{
    fill_mask(b, 0);
    memset(b->mask.at + begin, 0, b->mask.n - begin);
    sh_ids_put(&b->ids, 0);
    fill_mask(b, 1);
    sh_text_put(&b->numbers, numbers, n * sizeof *numbers);
}

/* A prompt and a completion without a template get the tokenizer's begin and end around them; the end is learned. With
 * a template or with segments, the template or the author of the segments provides those tokens. */
static sh_rc put_text(const struct sh_batch_job *job, enum sh_chat_form form, struct worker *w, struct sh_batch *b,
                      const char *line, size_t bytes, double number)
{
    bool plain = form != SH_CHAT_SEGMENTS && form != SH_CHAT_MESSAGES && form != SH_CHAT_SHAREGPT && !job->template;
    size_t begin = b->ids.n, first;

    sh_chat_clear(&w->chat);
    SH_TRY(sh_chat_parse(form, job->template, job->field, line, bytes, &w->chat));
    if (plain && !job->no_begin)
        SH_TRY(sh_encode(w->encoder, "", 0, SH_ENCODE_BEGIN, &b->ids));
    fill_mask(b, 0);
    first = b->ids.n;
    SH_TRY(sh_marks_encode(w->marks, w->encoder, &w->chat, plain ? -1 : job->end,
                           job->special_in_text || form == SH_CHAT_SEGMENTS, &b->ids, &b->mask, &b->across));
    SH_TRY(refuse_twice(&b->ids, begin, first));
    if (plain)
        sh_ids_put(&b->ids, (uint32_t)job->end);
    fill_mask(b, 1);
    /* The first token is never a target, so its bit is free. */
    if (form == SH_CHAT_UNPAIRED)
        b->mask.at[begin] = w->chat.desirable;
    if (job->numbers)
        close_numbered(b, begin, &number, 1);
    sh_ids_put(&b->lengths, (uint32_t)(b->ids.n - begin));
    b->documents++;
    return SH_OK;
}

/* The label of a name; -1: none. */
static int label_named(const struct sh_batch_job *job, const char *name, size_t length)
{
    const char *at = job->names;

    for (int k = 0; at; k++) {
        size_t bytes = strcspn(at, ",");

        if (bytes == length && !memcmp(at, name, bytes))
            return k;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return -1;
}

static sh_rc count_names(const struct sh_batch_job *job, long *n)
{
    size_t bytes;

    *n = 0;
    for (const char *at = job->names; at; at = at[bytes] ? at + bytes + 1 : NULL) {
        bytes = strcspn(at, ",");
        if (!bytes)
            return sh_fail(SH_E_USAGE, "--labels: name %ld is empty", *n + 1);
        if (at[0] == ' ' || at[bytes - 1] == ' ')
            return sh_fail(SH_E_USAGE, "--labels: '%.*s' has a blank at its start or end", (int)bytes, at);
        if (label_named(job, at, bytes) != *n)
            return sh_fail(SH_E_USAGE, "--labels: '%.*s' is there twice", (int)bytes, at);
        ++*n;
    }
    return SH_OK;
}

sh_rc sh_batch_labels(const char *labels, struct sh_batch_job *job)
{
    char *end;
    long n = labels ? strtol(labels, &end, 10) : 0;

    if (labels && *end) {
        job->names = labels;
        SH_TRY(count_names(job, &n));
    }
    if (n < 2 || n > SH_DOCUMENT_WIDTH)
        return sh_fail(SH_E_USAGE,
                       "--format multi_label needs --labels: how many labels there are, 2 to %d, or their names, with "
                       "commas between",
                       SH_DOCUMENT_WIDTH);
    job->labels = (int)n;
    job->numbers = true;
    return SH_OK;
}

/* The label that an entry of a list names; -1: none. */
static int label_of(const struct sh_batch_job *job, const json_t *entry)
{
    if (json_is_string(entry))
        return label_named(job, json_string_value(entry), json_string_length(entry));
    return json_is_integer(entry) && json_integer_value(entry) >= 0 && json_integer_value(entry) < job->labels
               ? (int)json_integer_value(entry)
               : -1;
}

/* Whether an entry says from 0 to 1 if a label is there. */
static bool is_share(const json_t *entry, double *share)
{
    *share = json_is_boolean(entry) ? json_is_true(entry) : json_number_value(entry);
    return (json_is_boolean(entry) || json_is_number(entry)) && *share >= 0 && *share <= 1;
}

/* A list of labels is one of shares, of all labels, or of those that are there, none of them twice: shares that are whole
 * say one of 0 and 1 twice, unless there are two labels. */
static sh_rc read_list(const struct sh_batch_job *job, const json_t *list, double *number)
{
    size_t n = json_array_size(list), shares = 0;
    const json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);

    while (shares < n && n == (size_t)job->labels && is_share(json_array_get(list, shares), &number[shares]))
        shares++;
    if (n == 2 && shares == n && json_is_integer(first) && json_is_integer(second) && number[0] != number[1])
        return sh_fail(SH_E_DATA, "\"labels\" is both the list of both labels and one of a number for each; write true "
                                  "and false");
    if (shares == n && n > 0)
        return SH_OK;
    memset(number, 0, (size_t)job->labels * sizeof *number);
    for (size_t i = 0; i < n; i++) {
        int label = label_of(job, json_array_get(list, i));

        if (label < 0 || number[label] != 0)
            return sh_fail(SH_E_DATA,
                           "entry %zu of \"labels\" is %s; a list has the names or numbers of a text's labels, or "
                           "from 0 to 1 for each of all %d whether the text has it",
                           i + 1, label < 0 ? "none of the labels" : "there twice", job->labels);
        number[label] = 1;
    }
    return SH_OK;
}

/* What the labels of a line are to be: number out [labels], 0 at first. Without a list they are keys of the line. */
static sh_rc read_labels(const struct sh_batch_job *job, json_t *top, double *number)
{
    const json_t *list = json_object_get(top, json_object_get(top, "labels") ? "labels" : "label");
    const char *key;
    json_t *value;
    int found = 0;

    if (json_is_array(list))
        return read_list(job, list, number);
    json_object_foreach(top, key, value)
    {
        int label = list ? -1 : label_named(job, key, strlen(key));

        found += label >= 0 && is_share(value, &number[label]);
    }
    return found == job->labels
               ? SH_OK
               : sh_fail(SH_E_DATA,
                         "\"labels\" is %s, not a list, and the line has not all labels by their names, with "
                         "true, false or a number from 0 to 1",
                         list ? sh_json_is(list) : "missing");
}

/* The numbers of a document's end. */
static sh_rc put_numbers(const struct sh_batch_job *job, struct sh_batch *b, size_t begin, json_t *top)
{
    size_t n = job->labels ? (size_t)job->labels : 1;
    double *number = sh_calloc(n, sizeof *number);
    sh_rc rc = SH_OK;

    if (job->labels)
        rc = read_labels(job, top, number);
    else
        *number = json_number_value(json_object_get(top, "label"));
    if (rc == SH_OK)
        close_numbered(b, begin, number, n);
    free(number);
    return rc;
}

/* The ids that the tokenizer makes of a text, then the label, or a token for the numbers, which alone is a target. */
static sh_rc put_labelled(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b, json_t *top)
{
    const json_t *text = json_object_get(top, job->field ? job->field : "text"), *label = json_object_get(top, "label");
    size_t begin = b->ids.n, first;

    if (!json_is_string(text) || !json_string_length(text))
        return sh_fail(SH_E_DATA, "\"%s\" is %s, not a text", job->field ? job->field : "text",
                       json_is_string(text) ? "empty" : sh_json_is(text));
    if (job->numbers && !job->labels && !json_is_number(label))
        return sh_fail(SH_E_DATA, "\"label\" is %s, not a number", label ? sh_json_is(label) : "missing");
    if (!job->numbers && json_is_array(label))
        return sh_fail(SH_E_DATA, "\"label\" is a list; --format multi_label is for several labels of a text");
    if (!job->numbers && (!json_is_integer(label) || json_integer_value(label) < 0 ||
                          json_integer_value(label) >= job->tokenizer->vocab_size))
        return sh_fail(SH_E_DATA, "\"label\" is no whole number from 0 to %d", job->tokenizer->vocab_size - 1);
    if (!job->no_begin)
        SH_TRY(sh_encode(w->encoder, "", 0, SH_ENCODE_BEGIN, &b->ids));
    first = b->ids.n;
    SH_TRY(sh_encode(w->encoder, json_string_value(text), json_string_length(text), SH_ENCODE_END, &b->ids));
    SH_TRY(refuse_twice(&b->ids, begin, first));
    fill_mask(b, 0);
    if (job->numbers) {
        SH_TRY(put_numbers(job, b, begin, top));
    } else {
        sh_ids_put(&b->ids, (uint32_t)json_integer_value(label));
        fill_mask(b, 1);
    }
    sh_ids_put(&b->lengths, (uint32_t)(b->ids.n - begin));
    b->documents++;
    return SH_OK;
}

static sh_rc put_labelled_line(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b, const char *line,
                               size_t bytes)
{
    json_t *top;
    sh_rc rc;

    SH_TRY(sh_json_parse(line, bytes, "JSON", &top));
    rc = put_labelled(job, w, b, top);
    json_decref(top);
    return rc;
}

/* By how much the reward of the chosen answer is to be larger; 0 if the line does not say. */
static sh_rc margin_of(const char *line, size_t bytes, double *margin)
{
    const json_t *value;
    json_t *top;
    sh_rc rc = SH_OK;

    SH_TRY(sh_json_parse(line, bytes, "JSON", &top));
    value = json_object_get(top, "margin");
    if (value && !json_is_number(value))
        rc = sh_fail(SH_E_DATA, "\"margin\" is %s, not a number", sh_json_is(value));
    *margin = value ? json_number_value(value) : 0;
    json_decref(top);
    return rc;
}

/* A line is one text, or the two of a pair. */
static sh_rc put_chat(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b, const char *line,
                      size_t bytes)
{
    double margin = 0;

    if (job->chat == SH_CHAT_LABELLED)
        return put_labelled_line(job, w, b, line, bytes);
    if (job->numbers)
        SH_TRY(margin_of(line, bytes, &margin));
    SH_TRY(put_text(job, job->chat, w, b, line, bytes, margin));
    return job->chat == SH_CHAT_CHOSEN ? put_text(job, SH_CHAT_REJECTED, w, b, line, bytes, 0) : SH_OK;
}

/* The field could not be read: a conversation is refused with its format, any other line as before. */
static sh_rc refuse_line(const char *field, const char *line, size_t bytes)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    sh_rc rc = sh_chat_check(field, object);

    json_decref(object);
    return rc == SH_OK ? SH_E_DATA : rc;
}

/* Encode one field of a line as a document. */
static sh_rc put_field(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b, const char *line,
                       size_t bytes)
{
    size_t n = 0;

    w->text.n = 0;
    /* A decoded string is never longer than the line that contains it. */
    char *text = (char *)sh_text_room(&w->text, bytes + 1);
    if (sh_json_field(line, bytes, job->field, text, &n) != SH_OK)
        return refuse_line(job->field, line, bytes);
    return put_document(job, w, b, text, n);
}

/* Whether a line is only white space. A zero byte is not white space, though strchr() would find it, as the end of its
 * list. */
static bool is_blank(const unsigned char *line, size_t bytes)
{
    while (bytes > 0 && strchr(" \t\r\n", line[bytes - 1]) && line[bytes - 1])
        bytes--;
    return bytes == 0;
}

/* Encode jsonl: a document is one field of each line, or a conversation. Messages count lines of the file, from 1. */
static sh_rc put_lines(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b)
{
    int64_t number = b->first;
    size_t begin = b->first == 0 && b->text.n >= 3 && !memcmp(b->text.at, "\xef\xbb\xbf", 3) ? 3
                                                                                             : 0; /* a mark of UTF-8 */

    for (size_t at = begin, next; at < b->text.n; at = next, number++) {
        const unsigned char *line = b->text.at + at, *end = memchr(line, '\n', b->text.n - at);
        size_t bytes = end ? (size_t)(end - line) : b->text.n - at;
        next = at + bytes + (end != NULL);
        if (is_blank(line, bytes))
            continue;
        sh_rc rc = (job->chat ? put_chat : put_field)(job, w, b, (const char *)line, bytes);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s: line %lld: ", b->name, (long long)number + 1);
    }
    return SH_OK;
}

/* Encode text: a document is the text between separators, or the whole batch. Messages count bytes of the file,
 * from 1. */
static sh_rc put_texts(const struct sh_batch_job *job, struct worker *w, struct sh_batch *b)
{
    for (size_t at = 0, after; at < b->text.n; at = after) {
        size_t end = b->text.n;
        after = end;
        if (job->separator)
            end = sh_batch_separator(job->separator, b->text.at, b->text.n, at, true, &after);
        /* No separator: the document is the rest. */
        if (end == b->text.n)
            after = end;
        sh_rc rc = put_document(job, w, b, b->text.at + at, end - at);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s: the document at byte %lld: ", b->name,
                                  (long long)(b->first + (int64_t)at) + 1);
    }
    return SH_OK;
}

/* Carry out --invalid replace: each maximal prefix of a broken character becomes one U+FFFD, as in Python and Rust. */
static void mend(struct sh_text *text, struct sh_text *scratch)
{
    scratch->n = 0;
    for (size_t at = 0; at < text->n;) {
        size_t right = sh_utf8_check(text->at + at, text->n - at);
        sh_text_put(scratch, text->at + at, right);
        at += right;
        if (at == text->n)
            break;
        at += sh_utf8_wrong(text->at + at, text->n - at);
        sh_text_put(scratch, "\xef\xbf\xbd", 3);
    }
    text->n = 0;
    sh_text_put(text, scratch->at, scratch->n);
}

/* Name the place by line if a document is a line, otherwise by byte; both are counted from the start of the file. */
static sh_rc refuse_bytes(const struct sh_batch *b, size_t at)
{
    int64_t line = b->first;

    for (size_t i = 0; i < at; i++)
        line += b->lines && b->text.at[i] == '\n';
    return sh_fail(SH_E_DATA, "%s: %s %lld is not UTF-8 (0x%02x); convert the text, or give --invalid replace", b->name,
                   b->lines ? "something in line" : "byte", (long long)(b->lines ? line : b->first + (int64_t)at) + 1,
                   b->text.at[at]);
}

/* Called from any thread of the pool; `ctx` is read-only, `worker` and `b` are this thread's. */
sh_rc sh_batch_run(const void *ctx, void *worker, struct sh_batch *b)
{
    const struct sh_batch_job *job = ctx;
    struct worker *w = worker;

    if (!job->tokenizer->ops->whole)
        return sh_encode(w->encoder, b->text.at, b->text.n, 0, &b->ids);
    size_t right = sh_utf8_check(b->text.at, b->text.n);
    if (right < b->text.n && !job->replace_invalid)
        return refuse_bytes(b, right);
    /* From here on, messages give positions in the repaired text. */
    if (right < b->text.n)
        mend(&b->text, &w->text);
    return b->lines ? put_lines(job, w, b) : put_texts(job, w, b);
}
