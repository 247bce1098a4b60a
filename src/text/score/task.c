/* From texts to tokens, and from log-probabilities to answers. Where tokens end, and what is divided by what, follow
 * lm_eval's rules, so that figures compare with published ones (doc/fine-tuning.md). */
#include "src/text/score/task.h"

#include "src/base/mem.h"
#include "src/base/string/utf8.h"
#include "src/text/base/ranges.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The means that turn texts into tokens. */
struct encoder {
    struct sh_encoder *e;
    size_t positions; /* most that the model reads */
    int64_t prefix;   /* the token before a text without a context: it begins texts, or else ends them; -1: none */
};

/* Find the token that a tokenizer puts before a text by itself; if it puts none, the token that ends texts stands for a
 * beginning. */
static sh_rc find_prefix(const struct sh_tokenizer *tok, struct encoder *e)
{
    struct sh_ids ids = {0};
    sh_rc rc = sh_encode(e->e, "", 0, SH_ENCODE_BEGIN, &ids);

    e->prefix = rc == SH_OK && ids.n ? (int64_t)ids.id[0] : tok->end;
    free(ids.id);
    return rc;
}

/* Spaces at the end of a context belong to what follows: tokens have their space in front. */
static size_t without_spaces(const char *text, size_t bytes)
{
    const unsigned char *t = (const unsigned char *)text;
    size_t last, n;

    for (; bytes; bytes -= last) {
        last = sh_utf8_last(t, bytes);
        if (!sh_char_is_stripped(sh_utf8_get(t + bytes - last, &n)))
            break;
    }
    return bytes;
}

/* Put what stands in front of a text whose context has no token. */
static sh_rc put_prefix(const struct encoder *e, struct sh_ids *ids)
{
    if (e->prefix < 0)
        return sh_fail(SH_E_DATA, "there is no context, and the tokenizer has no token that begins or ends texts");
    sh_ids_put(ids, (uint32_t)e->prefix);
    return SH_OK;
}

/* Encode context and text together, and count the tokens of the context. A context of spaces, or of characters that no
 * word has, may have none. */
static sh_rc encode_both(const struct encoder *e, const struct sh_task_choice *c, struct sh_ids *ids, size_t *context)
{
    size_t kept = without_spaces(c->context, c->context_bytes), n = c->context_bytes + c->text_bytes;
    char *both = sh_calloc(n + 1, 1);
    struct sh_ids front = {0};
    sh_rc rc;

    memcpy(both, c->context, c->context_bytes);
    memcpy(both + c->context_bytes, c->text, c->text_bytes);
    SH_TRY_OUT(sh_encode(e->e, both, kept, SH_ENCODE_BEGIN, &front));
    if (!front.n)
        SH_TRY_OUT(put_prefix(e, ids));
    *context = front.n ? front.n : 1;
    SH_TRY_OUT(sh_encode(e->e, both, n, SH_ENCODE_BEGIN, ids));
out:
    free(front.id);
    free(both);
    return rc;
}

/* A text alone is predicted from the prefix. */
static sh_rc encode_alone(const struct encoder *e, const struct sh_task_choice *c, struct sh_ids *ids, size_t *context)
{
    SH_TRY(put_prefix(e, ids));
    *context = 1;
    return sh_encode(e->e, c->text, c->text_bytes, 0, ids);
}

/* The model reads all tokens but the last. */
static sh_rc add_score(const struct encoder *e, const struct sh_ids *ids, size_t context, struct sh_task *t)
{
    size_t most = e->positions + 1, cut = ids->n > most ? ids->n - most : 0;

    if (ids->n <= context)
        return sh_fail(SH_E_DATA, "it adds no token to its context");
    if (ids->n - context > e->positions)
        return sh_fail(SH_E_DATA, "it has %zu tokens, but the model reads %zu", ids->n - context, e->positions);
    sh_task_add_score(t, ids->id + cut, ids->n - cut, context - cut);
    return SH_OK;
}

static sh_rc encode_choice(const struct encoder *e, int choice, struct sh_task *t)
{
    struct sh_task_choice *c = &t->choice[choice];
    struct sh_ids ids = {0};
    size_t context = 0;
    sh_rc rc;

    SH_TRY_OUT((c->context_bytes ? encode_both : encode_alone)(e, c, &ids, &context));
    c->score = t->n_scores;
    SH_TRY_OUT(add_score(e, &ids, context, t));
out:
    free(ids.id);
    return rc;
}

/* Cut the text into windows that share no target. The first reads the prefix and the first P - 1 tokens, and predicts
 * the first P. Each of the others predicts the next P, starting from the token before them; the last one is filled up
 * with tokens that came before. */
static sh_rc encode_text(const struct encoder *e, struct sh_task *t)
{
    struct sh_ids ids = {0};
    size_t p = e->positions, done = 1;
    sh_rc rc = SH_OK;

    if (e->prefix >= 0)
        sh_ids_put(&ids, (uint32_t)e->prefix);
    SH_TRY_OUT(sh_encode(e->e, t->choice[0].text, (size_t)t->text_bytes, 0, &ids));
    if (ids.n < 2) {
        rc = sh_fail(SH_E_DATA, "the text has no token that is predicted from another");
        goto out;
    }
    while (done < ids.n) {
        size_t end = done + p < ids.n ? done + p : ids.n, from = end > p + 1 ? end - p - 1 : 0;

        sh_task_add_score(t, ids.id + from, end - from, done - from);
        done = end;
    }
out:
    free(ids.id);
    return rc;
}

/* A file of llm.c does not name its tokenizer, so its tokens are checked. */
static sh_rc check_tokens(const struct sh_task *t, int positions, int words)
{
    for (int i = 0; i < t->n_scores; i++) {
        const struct sh_score *s = &t->score[i];

        if (s->n > (size_t)positions + 1)
            return sh_fail(SH_E_DATA, "an example has %zu tokens, but the model reads %d", s->n, positions);
        for (size_t k = 0; k < s->n; k++)
            if (s->ids[k] >= (uint32_t)words)
                return sh_fail(SH_E_DATA,
                               "an example has token %u, but the model has %d words; is it for another model?",
                               s->ids[k], words);
    }
    return SH_OK;
}

/* Tokens are made here once; what came as tokens is only checked. */
sh_rc sh_task_encode(const struct sh_tokenizer *tok, int positions, int words, struct sh_task *t)
{
    struct encoder e = {.positions = (size_t)positions};
    sh_rc rc;

    if (t->tokens)
        return check_tokens(t, positions, words);
    e.e = sh_encoder_create(tok);
    SH_TRY_OUT(find_prefix(tok, &e));
    if (t->kind == SH_TASK_TEXT)
        SH_TRY_OUT(encode_text(&e, t));
    for (int i = 0; i < t->n_choices && t->kind != SH_TASK_TEXT; i++) {
        rc = encode_choice(&e, i, t);
        if (rc != SH_OK) {
            rc = sh_fail_prefix(rc, "continuation %d: ", i + 1);
            goto out;
        }
    }
out:
    sh_encoder_destroy(e.e);
    return rc;
}

static const struct sh_score *score_of(const struct sh_task *t, int choice)
{
    return &t->score[t->choice[choice].score];
}

/* What the log-probability is divided by. */
enum { ALONE, BY_CHARS, BY_BYTES, WAYS };

/* Long answers have lower probabilities, so lm_eval also divides by characters (acc_norm) or bytes. */
static double weighed(const struct sh_task *t, int choice, int way)
{
    const struct sh_task_choice *c = &t->choice[choice];
    size_t by = way == BY_CHARS ? c->chars : c->bytes;

    return score_of(t, choice)->logprob / (way == ALONE || by == 0 ? 1 : (double)by);
}

/* Whether the likeliest choice, the first among equals, is the right one. */
static bool is_right(const struct sh_task *t, const struct sh_task_doc *d, int way)
{
    int best = 0;

    for (int i = 1; i < d->n; i++)
        if (weighed(t, d->first + i, way) > weighed(t, d->first + best, way))
            best = i;
    return best == d->gold;
}

static sh_rc write_line(json_t *line, FILE *out)
{
    bool written = json_dumpf(line, out, JSON_COMPACT | JSON_ENSURE_ASCII) == 0 && fputc('\n', out) != EOF;

    json_decref(line);
    return written ? SH_OK : sh_fail(SH_E_DATA, "cannot write the results; is the disk full?");
}

/* The line that was read, with the answer added: whoever asked finds its own fields again. */
static sh_rc write_request(const struct sh_task *t, const struct sh_task_doc *d, FILE *out)
{
    const struct sh_score *s = score_of(t, d->first);
    json_t *line = json_deep_copy(d->line);

    json_object_set_new(line, "logprob", json_real(s->logprob));
    json_object_set_new(line, "is_greedy", json_boolean(s->greedy));
    json_object_set_new(line, "tokens", json_integer((json_int_t)(s->n - s->first)));
    json_object_set_new(line, "bytes", json_integer((json_int_t)t->choice[d->first].bytes));
    return write_line(line, out);
}

static json_t *answer_of(const struct sh_score *s)
{
    return json_pack("[f,b]", s->logprob, (int)s->greedy);
}

/* A sample as lm_eval logs it. */
static sh_rc write_sample(const struct sh_task *t, int doc, FILE *out)
{
    const struct sh_task_doc *d = &t->doc[doc];
    json_t *line = json_object(), *arguments = json_object(), *resps = json_array(), *filtered = json_array();

    for (int i = 0; i < d->n; i++) {
        const struct sh_task_choice *c = &t->choice[d->first + i];
        char name[32];

        snprintf(name, sizeof name, "gen_args_%d", i);
        if (c->text)
            json_object_set_new(arguments, name,
                                json_pack("{s:o,s:o}", "arg_0", json_stringn(c->context, c->context_bytes), "arg_1",
                                          json_stringn(c->text, c->text_bytes)));
        json_array_append_new(resps, json_pack("[o]", answer_of(score_of(t, d->first + i))));
        json_array_append_new(filtered, answer_of(score_of(t, d->first + i)));
    }
    json_object_set_new(line, "doc_id", json_integer(doc));
    json_object_set_new(line, "doc", d->line ? json_deep_copy(d->line) : json_object());
    json_object_set_new(line, "target", json_sprintf("%d", d->gold));
    json_object_set_new(line, "arguments", arguments);
    json_object_set_new(line, "resps", resps);
    json_object_set_new(line, "filtered_resps", filtered);
    json_object_set_new(line, "acc", json_real(is_right(t, d, ALONE)));
    json_object_set_new(line, "acc_norm", json_real(is_right(t, d, BY_CHARS)));
    json_object_set_new(line, "acc_bytes", json_real(is_right(t, d, BY_BYTES)));
    return write_line(line, out);
}

/* Print the accuracies with the standard error of a mean of zeros and ones. */
static void print_choices(const struct sh_task *t)
{
    static const char *const names[WAYS] = {"acc", "acc_norm", "acc_bytes"};

    for (int way = 0; way < (t->tokens ? BY_BYTES : WAYS); way++) {
        double right = 0, n = t->n_docs, mean;

        for (int i = 0; i < t->n_docs; i++)
            right += is_right(t, &t->doc[i], way);
        mean = right / n;
        printf("%s %.4f +- %.4f  ", names[way], mean, n > 1 ? sqrt(mean * (1 - mean) / (n - 1)) : 0);
    }
    printf("documents %d\n", t->n_docs);
}

/* The perplexity is a mean over tokens; bits per byte are a mean over bytes, which compares between tokenizers. */
static void print_text(const struct sh_task *t)
{
    double sum = 0;
    size_t tokens = 0;

    for (int i = 0; i < t->n_scores; i++) {
        sum += t->score[i].logprob;
        tokens += t->score[i].n - t->score[i].first;
    }
    printf("log-likelihood %.4f  perplexity %.4f  bits per byte %.6f  tokens %zu  bytes %lld\n", sum,
           exp(-sum / (double)tokens), -sum / log(2.0) / (double)t->text_bytes, tokens, (long long)t->text_bytes);
}

/* JSON has no word for numbers that are not finite, and among them no answer is the likeliest. */
static sh_rc check_finite(const struct sh_task *t)
{
    for (int i = 0; i < t->n_scores; i++)
        if (!isfinite(t->score[i].logprob))
            return sh_fail(SH_E_NUMERIC, "the log-probability of text %d is %g: the model's numbers are not finite",
                           i + 1, t->score[i].logprob);
    return SH_OK;
}

sh_rc sh_task_print(const struct sh_task *t, FILE *lines)
{
    SH_TRY(check_finite(t));
    for (int i = 0; i < t->n_docs && lines && t->kind != SH_TASK_TEXT; i++)
        SH_TRY(t->kind == SH_TASK_REQUESTS ? write_request(t, &t->doc[i], lines) : write_sample(t, i, lines));
    if (t->kind == SH_TASK_CHOICES)
        print_choices(t);
    if (t->kind == SH_TASK_TEXT)
        print_text(t);
    return SH_OK;
}
