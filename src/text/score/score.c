/* Log-probabilities of given texts, many at a time: short ones share rows as documents do, and ranks have different
 * rows. */
#include "src/text/score/score.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 512 }; /* fewest tokens of a row, if several texts may share it */

/* Where a text stands: tokens [at, at + n - 1) of a row are its inputs. */
struct place {
    int64_t row;
    int64_t at;
};

/* Whether texts may share a row. A rotation by the place in a row is as good as one by the place in the text, since
 * only distances count. */
static bool shares_rows(const struct sh_config *cfg)
{
    return !sh_family_of(cfg->model.family)->learned_positions;
}

/* The last token predicts nothing. */
static int64_t inputs_of(const struct sh_score *text)
{
    return (int64_t)text->n - 1;
}

/* Texts and where each one's scored part begins: ranks that have read other files must not add up their answers. */
uint64_t sh_score_hash(const struct sh_score *texts, int n)
{
    uint64_t h = 0;

    for (int i = 0; i < n; i++)
        h = sh_mix64(sh_mix64(h ^ sh_hash64(texts[i].ids, texts[i].n * sizeof *texts[i].ids)) ^ texts[i].first);
    return h;
}

/* Fewest places of a row that several texts share. longrope has other frequencies from its original length on, and short
 * texts must not reach that because of their neighbours. */
static int64_t shortest_row(const struct sh_config *cfg)
{
    int64_t most = cfg->model.max_seq_len < SHORT ? cfg->model.max_seq_len : SHORT;
    bool changes = cfg->model.rope_factor != 0 && cfg->model.rope_type == SH_ROPE_LONG;

    return changes && cfg->model.rope_original_max_len < most ? cfg->model.rope_original_max_len : most;
}

/* Rows are as long as the longest text, but not so short that most of a step would be padding and overhead. */
struct sh_request_score sh_score_request(const struct sh_score *texts, int n, int rows, const struct sh_config *cfg)
{
    int64_t longest = 1;

    for (int i = 0; i < n; i++)
        longest = inputs_of(&texts[i]) > longest ? inputs_of(&texts[i]) : longest;
    if (shares_rows(cfg) && longest < shortest_row(cfg))
        longest = shortest_row(cfg);
    return (struct sh_request_score){.rows = rows, .seq = (int)longest, .docs = shares_rows(cfg)};
}

/* Place one text after the other; return the number of rows. */
static int64_t place_texts(const struct sh_run *r, const struct sh_score *texts, int n, struct place *place)
{
    int64_t row = 0, at = 0, room = r->build.batch.seq;

    for (int i = 0; i < n; i++) {
        if (at && (!r->build.batch.docs || at + inputs_of(&texts[i]) > room)) {
            row++;
            at = 0;
        }
        place[i] = (struct place){row, at};
        at += inputs_of(&texts[i]);
    }
    return n ? row + 1 : 0;
}

/* The rows of this rank in one step. */
struct step {
    struct sh_run *r;
    int64_t first, rows, seq; /* rows [first, first + rows) of all */
    struct sh_feed feed;      /* [rows,seq] */
    int32_t *word;            /* likewise */
    float *logprob;
};

/* Where a text's first token lies in this rank's [rows,seq]. */
static int64_t elem_of(const struct step *s, const struct place *p)
{
    return (p->row - s->first) * s->seq + p->at;
}

/* Mask all places, and make each token a separate document; places without a text stay so. */
static void clear(struct step *s)
{
    for (int64_t i = 0; i < s->rows * s->seq; i++) {
        s->feed.tokens[i] = 0;
        s->feed.targets[i] = -1;
        s->feed.docs[i] = (int32_t)(i % s->seq);
    }
}

/* Only tokens from text->first on are targets. The text is a separate document, so it does not see its neighbours. */
static void put_text(struct step *s, const struct sh_score *text, const struct place *p)
{
    int64_t at = elem_of(s, p);

    for (int64_t i = 0; i < inputs_of(text); i++) {
        s->feed.tokens[at + i] = (int32_t)text->ids[i];
        s->feed.targets[at + i] = (size_t)i + 1 < text->first ? -1 : (int32_t)text->ids[i + 1];
        s->feed.docs[at + i] = (int32_t)p->at;
    }
}

static void run_step(struct step *s)
{
    sh_feed_put(s->r, &s->feed, 0);
    sh_exec_run(s->r->exec, SH_SECTION_SCORE);
    sh_feed_take(s->r, SH_PORT_LOGPROB, s->logprob);
    sh_feed_take(s->r, SH_PORT_LIKELIEST, s->word);
}

/* Token i is predicted at the place of the token before it. */
static void take_text(const struct step *s, struct sh_score *text, const struct place *p)
{
    int64_t at = elem_of(s, p);

    text->greedy = true;
    for (size_t i = text->first; i < text->n; i++) {
        int64_t e = at + (int64_t)i - 1;

        text->logprob += s->logprob[e];
        text->greedy = text->greedy && s->word[e] == (int32_t)text->ids[i];
    }
}

/* Score the texts in this rank's rows; the others stay 0, as the sum over the ranks needs. Rows ascend with the
 * texts. */
static void do_step(struct step *s, struct sh_score *texts, int n, const struct place *place)
{
    int begin = 0, end;

    while (begin < n && place[begin].row < s->first)
        begin++;
    for (end = begin; end < n && place[end].row < s->first + s->rows; end++)
        ;
    clear(s);
    for (int i = begin; i < end; i++)
        put_text(s, &texts[i], &place[i]);
    run_step(s);
    for (int i = begin; i < end; i++)
        take_text(s, &texts[i], &place[i]);
}

/* One rank has a text's answer and the others add zeros, so a sum of integers changes no bit. */
static sh_rc share(const struct sh_run *r, struct sh_score *texts, int n)
{
    long long *all = sh_calloc(2 * (size_t)n + 1, sizeof *all);
    sh_rc rc;

    for (int i = 0; i < n && sh_mesh_speaks(&r->mesh->shape); i++) {
        memcpy(&all[2 * i], &texts[i].logprob, sizeof texts[i].logprob);
        all[2 * i + 1] = texts[i].greedy;
    }
    rc = sh_mesh_sum_i64(all, 2 * n);
    for (int i = 0; i < n; i++) {
        memcpy(&texts[i].logprob, &all[2 * i], sizeof texts[i].logprob);
        texts[i].greedy = all[2 * i + 1] != 0;
    }
    free(all);
    return rc;
}

/* All ranks run the same number of steps, because a step may have collectives. */
static sh_rc score_all(struct sh_run *r, struct sh_score *texts, int n)
{
    struct step s = {.r = r, .rows = r->build.batch.batch, .seq = r->build.batch.seq};
    struct place *place = sh_calloc((size_t)n + 1, sizeof *place);
    const struct sh_mesh_shape *m = &r->mesh->shape;
    int64_t all = place_texts(r, texts, n, place), elems = s.rows * s.seq, at_once = s.rows * sh_group_size(m, m->data);

    s.feed = (struct sh_feed){.sequences = s.rows, .tokens = sh_calloc(5 * (size_t)elems, sizeof *s.word)};
    s.feed.targets = s.feed.tokens + elems;
    s.feed.docs = s.feed.targets + elems;
    s.feed.part = s.feed.docs + elems;
    s.word = s.feed.part + elems;
    s.logprob = sh_calloc((size_t)elems, sizeof *s.logprob);
    for (int64_t first = 0; first < all; first += at_once) {
        s.first = first + sh_group_index(m, m->data) * s.rows;
        do_step(&s, texts, n, place);
    }
    free(s.feed.tokens);
    free(s.logprob);
    free(place);
    return sh_agree(share(r, texts, n));
}

static int by_tokens(const void *a, const void *b)
{
    const struct sh_score *x = *(struct sh_score *const *)a, *y = *(struct sh_score *const *)b;
    int order = (x->n > y->n) - (x->n < y->n);

    order = order ? order : (x->first > y->first) - (x->first < y->first);
    return order ? order : memcmp(x->ids, y->ids, x->n * sizeof *x->ids);
}

/* For each text, the first one in the list that is equal to it; itself, if none is. Freed with free(). */
static int *find_equals(struct sh_score *texts, int n)
{
    struct sh_score **sorted = sh_calloc((size_t)n + 1, sizeof *sorted);
    int *equal = sh_calloc((size_t)n + 1, sizeof *equal);

    for (int i = 0; i < n; i++)
        sorted[i] = &texts[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_tokens);
    for (int i = 0, end; i < n; i = end) {
        int first = n;

        for (end = i; end < n && by_tokens(&sorted[i], &sorted[end]) == 0; end++)
            first = sorted[end] - texts < first ? (int)(sorted[end] - texts) : first;
        for (; i < end; i++)
            equal[sorted[i] - texts] = first;
    }
    free(sorted);
    return equal;
}

/* Collective. Equal texts are scored once: their last bits would depend on their neighbours in the row, and a choice
 * between equals on chance. */
sh_rc sh_score_texts(struct sh_run *r, struct sh_score *texts, int n)
{
    struct sh_score *different = sh_calloc((size_t)n + 1, sizeof *different);
    int *equal = find_equals(texts, n), *at = sh_calloc((size_t)n + 1, sizeof *at), n_different = 0;
    sh_rc rc;

    for (int i = 0; i < n; i++)
        if (equal[i] == i) {
            at[i] = n_different;
            different[n_different++] = (struct sh_score){.ids = texts[i].ids, .n = texts[i].n, .first = texts[i].first};
        }
    rc = score_all(r, different, n_different);
    for (int i = 0; i < n && rc == SH_OK; i++) {
        texts[i].logprob = different[at[equal[i]]].logprob;
        texts[i].greedy = different[at[equal[i]]].greedy;
    }
    free(different);
    free(equal);
    free(at);
    return rc;
}
