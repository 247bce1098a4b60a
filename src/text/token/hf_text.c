/* Encoding and decoding with a tokenizer.json. The stages of encoding: find added tokens in the raw text; normalize the
 * text between them; find added tokens in the normalized text; pre-tokenizers cut it into pieces; merges turn a piece
 * into ids. Each stage passes stretches to the next, so only steps that change the text copy it. */
#include "src/base/string/utf8.h"
#include "src/text/token/hf.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* The state of a thread that encodes. */
struct encoder {
    struct sh_text normal[2];
    struct sh_split_scratch *split;
    struct sh_bpe_scratch bpe;
    const struct sh_bpe *model;
    struct sh_ids *out;
    bool lasting;             /* pieces stay where they are until the text ends */
    struct sh_places *places; /* of the ids in `out`; NULL: not wanted. The rest is for them */
    const unsigned char *text;
    struct sh_spans origin[2];
    uint32_t *width;      /* [words] */
    struct sh_span *part; /* [room] */
    size_t room;
};

/* Create the encoder of one thread. */
static void *create(const void *own)
{
    const struct sh_hf *hf = own;
    struct encoder *e = sh_calloc(1, sizeof *e);

    e->split = sh_split_scratch_create(hf->n_split);
    e->model = &hf->model;
    e->lasting = sh_split_lasts(hf->split, hf->n_split);
    sh_bpe_scratch_init(&e->bpe);
    return e;
}

static void destroy(void *encoder)
{
    struct encoder *e = encoder;

    free(e->normal[0].at);
    free(e->normal[1].at);
    free(e->origin[0].at);
    free(e->origin[1].at);
    free(e->width);
    free(e->part);
    sh_split_scratch_destroy(e->split);
    sh_bpe_scratch_free(&e->bpe);
    free(e);
}

/* What a stretch of a derived text comes from. */
static struct sh_span comes_from(const struct sh_span *where, size_t begin, size_t end)
{
    return (struct sh_span){where[begin].begin, where[end - 1].end};
}

/* The ids from `first` on are those of the piece. */
static sh_rc put_places(struct encoder *e, const unsigned char *piece, size_t bytes, const struct sh_span *where,
                        size_t first)
{
    size_t n = e->out->n - first;

    if (n > e->room) {
        e->room = 2 * n;
        e->part = sh_realloc(e->part, e->room, sizeof *e->part);
    }
    SH_TRY(sh_bpe_places(e->model, &e->bpe, e->width, piece, bytes, e->out->id + first, n, e->part));
    for (size_t i = 0; i < n; i++)
        sh_places_put(e->places, (struct sh_place){.text = comes_from(where, e->part[i].begin, e->part[i].end)});
    return SH_OK;
}

/* The last stage: a piece becomes ids. */
static sh_rc put_piece(void *ctx, const unsigned char *piece, size_t bytes, const struct sh_span *where)
{
    struct encoder *e = ctx;
    size_t first = e->out->n;

    sh_bpe_encode(e->model, &e->bpe, piece, bytes, e->out);
    if (!e->lasting || where)
        sh_bpe_finish(e->model, &e->bpe, e->out);
    return where ? put_places(e, piece, bytes, where, first) : SH_OK;
}

/* `first`: this stretch is at the start of the document, which decides whether a space is prepended. */
static sh_rc put_section(const struct sh_hf *hf, struct encoder *e, const unsigned char *text, size_t bytes,
                         const struct sh_span *where, bool first)
{
    sh_rc rc = sh_split(hf->split, hf->n_split, e->split, text, bytes, where, first, put_piece, e);

    sh_bpe_finish(e->model, &e->bpe, e->out); /* also after a failure: pieces of this text must not wait any longer */
    return rc;
}

typedef sh_rc (*section_fn)(const struct sh_hf *hf, struct encoder *e, const unsigned char *text, size_t bytes,
                            const struct sh_span *where, bool first);

/* An added token at [begin, end), whose own text ends at `own_end`. where: NULL in the text as it was given. */
static void put_added_place(struct encoder *e, const struct sh_added *a, const struct sh_span *where, size_t begin,
                            size_t end, size_t own_end)
{
    size_t own = own_end - a->found_bytes;

    if (where)
        sh_places_put(e->places, (struct sh_place){comes_from(where, begin, end), comes_from(where, own, own_end)});
    else
        sh_places_put(e->places,
                      (struct sh_place){{(uint32_t)begin, (uint32_t)end}, {(uint32_t)own, (uint32_t)own_end}});
}

/* Cut a text at the tokens of a set, and pass the stretches between them to the next stage. */
static sh_rc cut(const struct sh_hf *hf, struct encoder *e, const struct sh_added_set *set, const unsigned char *text,
                 size_t bytes, const struct sh_span *where, bool first, section_fn next)
{
    size_t from = 0, done = 0, begin, end;
    const struct sh_added *a;

    while ((a = sh_added_next(set, text, bytes, &from, done, &begin, &end)) != NULL) {
        if (done < begin)
            SH_TRY(next(hf, e, text + done, begin - done, where ? where + done : NULL, first && done == 0));
        sh_ids_put(e->out, a->id);
        if (e->places)
            put_added_place(e, a, where, begin, end, from);
        done = end;
    }
    return done < bytes ? next(hf, e, text + done, bytes - done, where ? where + done : NULL, first && done == 0)
                        : SH_OK;
}

/* The two buffers alternate between steps; they are free again when this returns. */
static sh_rc normalize(const struct sh_hf *hf, struct encoder *e, const unsigned char *text, size_t bytes,
                       const struct sh_span *where, bool first)
{
    (void)where; /* the text is still as it was given */
    e->origin[0].n = e->origin[1].n = 0;
    if (e->places)
        sh_spans_start(&e->origin[0], (uint32_t)(text - e->text), bytes);
    sh_normalize(hf->normal, hf->n_normal, e->normal, &text, &bytes, e->places ? e->origin : NULL);
    return cut(hf, e, &hf->normalized, text, bytes, e->places ? e->origin[0].at : NULL, first, put_section);
}

/* Append the ids of a template, which stand for nothing in the text. */
static void put_all(struct encoder *e, const struct sh_ids *ids, size_t at)
{
    for (size_t i = 0; i < ids->n; i++) {
        sh_ids_put(e->out, ids->id[i]);
        if (e->places)
            sh_places_put(e->places, (struct sh_place){.text = {(uint32_t)at, (uint32_t)at}});
    }
}

/* Places are bounded by the longest document that is read, 1 GiB. */
static void begin_places(const struct sh_hf *hf, struct encoder *e, const unsigned char *text)
{
    e->text = text;
    if (e->width)
        return;
    e->width = sh_calloc((size_t)hf->words + 1, sizeof *e->width);
    for (int i = 0; i < hf->words; i++)
        e->width[i] = hf->word[i].bytes;
}

static sh_rc encode(const void *own, void *encoder, const unsigned char *text, size_t bytes, unsigned how,
                    struct sh_ids *out, struct sh_places *places)
{
    const struct sh_hf *hf = own;
    struct encoder *e = encoder;
    size_t right = sh_utf8_check(text, bytes);

    if (right < bytes)
        return sh_fail(SH_E_DATA, "byte %zu of the text (0x%02x) is not UTF-8", right + 1, text[right]);
    e->out = out;
    e->places = places;
    if (places)
        begin_places(hf, e, text);
    if (how & SH_ENCODE_BEGIN)
        put_all(e, &hf->begin, 0);
    SH_TRY(cut(hf, e, &hf->raw, text, bytes, NULL, true, normalize));
    if (how & SH_ENCODE_END)
        put_all(e, &hf->end, bytes);
    return SH_OK;
}

/* Ids without a word are left out, as in tokenizers; without a decoder, words are joined by spaces. */
static sh_rc decode(const void *own, const uint32_t *ids, size_t n, bool special, char **text, size_t *bytes)
{
    const struct sh_hf *hf = own;
    struct sh_strings words = {0};

    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)hf->words || !hf->word[ids[i]].text || (hf->word[ids[i]].special && !special))
            continue;
        if (!hf->has_decoder && words.n)
            sh_text_put(&words.text, " ", 1);
        sh_strings_put(&words, hf->word[ids[i]].shown, hf->word[ids[i]].shown_bytes);
    }
    sh_decode(hf->decode, hf->n_decode, &words);
    *bytes = words.text.n;
    *text = sh_calloc(words.text.n + 1, 1);
    if (words.text.n)
        memcpy(*text, words.text.at, words.text.n);
    sh_strings_free(&words);
    return SH_OK;
}

/* Includes added tokens. */
static int64_t find(const void *own, const char *word)
{
    return sh_words_get(&((const struct sh_hf *)own)->by_text, word, strlen(word));
}

/* Length of a word of a byte-level model: each character of the alphabet is one byte. */
static uint32_t alphabet_bytes(const struct sh_token_json_word *w)
{
    uint32_t bytes = 0;
    size_t n;

    for (size_t i = 0; i < w->bytes; i += n, bytes++)
        if (sh_code_to_byte(sh_utf8_get((const unsigned char *)w->text + i, &n)) < 0)
            return w->bytes;
    return bytes;
}

/* Length of a word of a character-level model: "<0x0A>" is one byte if such words stand for bytes, and so is the mark
 * for a space. */
static uint32_t plain_bytes(const struct sh_hf *hf, const struct sh_token_json_word *w)
{
    static const char mark[] = "\xe2\x96\x81";
    uint32_t bytes = w->bytes;

    if (hf->model.byte_fallback && w->bytes == 6 && !memcmp(w->text, "<0x", 3) && w->text[5] == '>')
        return 1;
    for (size_t i = 0; i + 3 <= w->bytes; i++)
        if (!memcmp(w->text + i, mark, 3))
            bytes -= 2;
    return bytes;
}

/* Added tokens stand for their own text. */
static void lengths(const void *own, uint32_t *bytes)
{
    const struct sh_hf *hf = own;

    for (int id = 0; id < hf->words; id++) {
        const struct sh_token_json_word *w = &hf->word[id];
        bytes[id] = !w->text ? 0 : hf->model.byte_level ? alphabet_bytes(w) : plain_bytes(hf, w);
    }
    for (int i = 0; i < hf->n_added; i++)
        bytes[hf->added[i].id] = hf->added[i].special ? 0 : hf->added[i].bytes;
}

static void close_hf(void *own)
{
    sh_token_json_free(own);
}

const struct sh_token_ops sh_token_hf = {.name = "tokenizer.json",
                                         .whole = true,
                                         .close = close_hf,
                                         .create = create,
                                         .destroy = destroy,
                                         .encode = encode,
                                         .decode = decode,
                                         .find = find,
                                         .lengths = lengths};
