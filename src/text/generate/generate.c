#include "src/text/generate/generate.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/screen.h"
#include "src/base/string/str.h"
#include "src/run/run.h"
#include "src/text/generate/continue.h"
#include "src/text/generate/shown.h"

#include <stdlib.h>
#include <string.h>

/* The texts of this rank that are continued together: prompts first, first + ranks, ... of the file. */
struct texts {
    const struct sh_generate *g;
    struct sh_text *t;      /* [n] */
    struct sh_shown *shown; /* [n] */
    int n;
    bool prints;    /* print the one text as it grows */
    size_t printed; /* bytes of it so far */
};

static size_t longest_of(const struct sh_prompts *of)
{
    size_t longest = 0;

    for (int i = 0; i < of->n; i++)
        longest = of->p[i].ids.n > longest ? of->p[i].ids.n : longest;
    return longest;
}

/* Prompts are read in pieces: activations of long ones would take much memory, and longer pieces gain nothing. */
struct sh_request_cache sh_generate_cache(const struct sh_generate *g, const struct sh_prompts *prompts,
                                          const struct sh_config *cfg)
{
    enum { PIECE = 256 };
    int64_t most = g->positions ? g->positions : cfg->model.max_seq_len, longest = (int64_t)longest_of(prompts);
    int64_t positions = longest + g->tokens < most ? longest + g->tokens : most;
    int64_t piece = longest < positions ? longest : positions;

    return (struct sh_request_cache){.rows = g->rows < prompts->n ? g->rows : prompts->n,
                                     .positions = (int)positions,
                                     .piece = (int)(piece < PIECE ? piece : PIECE),
                                     .parallel = g->parallel};
}

static bool ends(const void *ctx, uint32_t id)
{
    const struct texts *of = ctx;

    return sh_tokenizer_ends(of->g->tok, id);
}

static void print_new(struct texts *of, bool last)
{
    const struct sh_shown *s = &of->shown[0];
    size_t upto = sh_shown_settled(s, last);

    if (upto > of->printed)
        fwrite(s->text + of->printed, 1, upto - of->printed, stdout);
    of->printed = upto > of->printed ? upto : of->printed;
    if (last)
        putchar('\n');
    fflush(stdout);
}

/* The text is needed at once if it is printed or may stop, else only at the end. */
static sh_rc added(void *ctx, struct sh_text *t)
{
    struct texts *of = ctx;
    struct sh_shown *s = &of->shown[t - of->t];
    bool last = t->state != SH_TEXT_GOES_ON;

    if (last || of->prints || of->g->stop)
        SH_TRY(sh_shown_add(s, t->ids.id, t->ids.n, last));
    if (s->stopped)
        t->state = SH_TEXT_STOPPED;
    if (of->prints)
        print_new(of, last || s->stopped);
    return SH_OK;
}

/* The text takes over the prompt's ids. */
static void begin_text(struct texts *of, struct sh_prompt *p, uint64_t index)
{
    of->t[of->n] = (struct sh_text){.index = index, .ids = p->ids, .prompt = p->ids.n};
    sh_shown_begin(&of->shown[of->n], of->g->tok, of->g->stop, p->ids.n);
    p->ids = (struct sh_ids){0};
    of->n++;
}

static void free_texts(struct texts *of)
{
    for (int i = 0; i < of->n; i++) {
        free(of->t[i].ids.id);
        free(of->shown[i].text);
    }
    free(of->t);
    free(of->shown);
}

static sh_rc print_prompt(const struct texts *of)
{
    char *text;
    size_t bytes;

    SH_TRY(sh_decode_ids(of->g->tok, of->t[0].ids.id, of->t[0].ids.n, false, &text, &bytes));
    sh_screen_product();
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    free(text);
    return SH_OK;
}

/* What the ranks send each other about a text: this, then ids and text. */
struct result {
    long long n_ids, bytes;
    int state, prompt;
};

static sh_rc write_result(FILE *out, const struct sh_prompt *p, const struct result *of, const uint32_t *ids,
                          const char *text)
{
    static const char *const how[] = {
        [SH_TEXT_ENDED] = "eos", [SH_TEXT_STOPPED] = "stop", [SH_TEXT_FULL] = "length", [SH_TEXT_GOES_ON] = ""};
    json_t *line = json_deep_copy(p->line), *list = json_array();
    bool written;

    for (long long i = 0; i < of->n_ids; i++)
        json_array_append_new(list, json_integer(ids[i]));
    /* Only a tokenizer of bytes leaves bytes that are not characters; JSON cannot hold them. */
    if (json_object_set_new(line, "text", json_stringn(text, (size_t)of->bytes)) != 0)
        json_object_set_new(line, "text", json_null());
    json_object_set_new(line, "tokens", json_integer(of->n_ids - of->prompt));
    json_object_set_new(line, "ids", list);
    json_object_set_new(line, "end", json_string(how[of->state]));
    written = json_dumpf(line, out, JSON_COMPACT | JSON_ENSURE_ASCII) == 0 && fputc('\n', out) != EOF;
    json_decref(line);
    return written ? SH_OK : sh_fail(SH_E_DATA, "cannot write the texts; is the disk full?");
}

/* The owner of a text sends it to all, and rank 0 writes it. */
static sh_rc share_result(const struct sh_run *r, const struct texts *of, int own, int root, const struct sh_prompt *p,
                          FILE *out, sh_rc *wrote)
{
    struct result result = {0};
    bool mine = r->mesh->rank == root;
    uint32_t *ids;
    char *text;
    sh_rc rc;

    if (mine)
        result = (struct result){.n_ids = (long long)of->t[own].ids.n,
                                 .bytes = (long long)of->shown[own].bytes,
                                 .state = of->t[own].state,
                                 .prompt = (int)of->t[own].prompt};
    SH_TRY(sh_mesh_bcast(&result, sizeof result, root));
    ids = mine ? of->t[own].ids.id : sh_calloc((size_t)result.n_ids + 1, sizeof *ids);
    text = mine && result.bytes ? of->shown[own].text : sh_calloc((size_t)result.bytes + 1, 1);
    SH_TRY_OUT(sh_mesh_bcast(ids, (long)(result.n_ids * (long long)sizeof *ids), root));
    SH_TRY_OUT(sh_mesh_bcast(text, (long)result.bytes, root));
    if (r->mesh->rank == 0 && *wrote == SH_OK)
        *wrote = write_result(out, p, &result, ids, text);
out:
    if (!mine)
        free(ids);
    if (!mine || text != of->shown[own].text)
        free(text);
    return rc;
}

/* Write the results in the order of the file, whichever rank has them: of ranks with parts of the same matrices, which
 * continue the same texts, the first. */
static sh_rc share_results(const struct sh_run *r, const struct texts *of, const struct sh_prompts *prompts, int first,
                           int n, FILE *out)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    int owners = sh_group_size(m, m->data), parts = sh_group_size(m, m->tensor);
    sh_rc wrote = SH_OK;

    for (int i = 0; i < n; i++)
        SH_TRY(share_result(r, of, i / owners, sh_group_member(m, m->tensor | m->data, i % owners * parts),
                            &prompts->p[first + i], out, &wrote));
    return sh_agree(wrote);
}

/* Continue prompts [first, first + n), divided among the ranks that have different data. */
static sh_rc continue_some(struct sh_run *r, const struct sh_generate *g, struct sh_prompts *prompts, int first, int n,
                           FILE *out, struct sh_continue_time *time)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    size_t rows = (size_t)r->build.batch.batch;
    struct texts of = {.g = g,
                       .t = sh_calloc(rows, sizeof *of.t),
                       .shown = sh_calloc(rows, sizeof *of.shown),
                       .prints = !prompts->p[0].line && r->mesh->rank == 0};
    struct sh_continue how = {
        .sampling = g->sampling, .tokens = (size_t)g->tokens, .ends = ends, .added = added, .ctx = &of, .time = time};
    sh_rc rc;

    for (int i = sh_group_index(m, m->data); i < n; i += sh_group_size(m, m->data))
        begin_text(&of, &prompts->p[first + i], (uint64_t)(first + i));
    if (!prompts->p[0].line)
        SH_TRY_OUT(sh_agree(of.prints ? print_prompt(&of) : SH_OK));
    SH_TRY_OUT(sh_continue_texts(r, of.t, of.n, &how));
    if (prompts->p[0].line)
        SH_TRY_OUT(share_results(r, &of, prompts, first, n, out));
out:
    free_texts(&of);
    return rc;
}

/* Say it before the first text, which may be on the same terminal. The last token is not read any more. */
static void note_length(const struct sh_run *r, const struct sh_generate *g, const struct sh_prompts *prompts)
{
    int positions = r->build.batch.cache;
    size_t kept = sh_continue_kept(positions);
    char last[SH_STR_SHORT];

    if (longest_of(prompts) + (size_t)g->tokens > (size_t)positions + 1)
        sh_log_info("note: a text that becomes longer than the %d positions of the cache continues from its last %s",
                    positions, kept == 1 ? "token" : sh_str_plural((int64_t)kept, "token", last));
}

sh_rc sh_generate_run(struct sh_run *r, const struct sh_generate *g, struct sh_prompts *prompts, FILE *out)
{
    int64_t at_once = (int64_t)r->build.batch.batch * sh_group_size(&r->mesh->shape, r->mesh->shape.data);
    struct sh_continue_time time = {0};

    note_length(r, g, prompts);
    for (int64_t first = 0; first < prompts->n; first += at_once) {
        int64_t left = prompts->n - first;

        SH_TRY(continue_some(r, g, prompts, (int)first, (int)(left < at_once ? left : at_once), out, &time));
    }
    if (time.steps)
        sh_log_info("prompts read in %.2f s; then %lld steps of one token per text, %.2f ms each", time.read,
                    time.steps, 1e3 * time.write / (double)time.steps);
    return SH_OK;
}
