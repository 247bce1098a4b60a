/* Reads a tokenizer.json: the words and merges of the model, then the added tokens. Everything in the file that could
 * change an id is either read or refused by name; nothing is silently ignored, because one wrong id in a thousand would
 * spoil a training run unnoticed. The order of reading matters: parts first, because they determine whether the model
 * is byte-level; then words, merges, and the added tokens, whose ids follow those of the words. */
#include "src/text/token/hf.h"

#include "src/base/mem.h"
#include "src/base/string/utf8.h"
#include "src/text/token/steps/parts.h"

#include <stdlib.h>

/* SentencePiece's mark for a space, U+2581. */
static const char mark[] = "\xe2\x96\x81";

/* Also frees one that was only partly read. */
void sh_token_json_free(struct sh_hf *hf)
{
    if (!hf)
        return;
    sh_bpe_free(&hf->model);
    sh_words_free(&hf->by_text);
    sh_added_set_free(&hf->raw);
    sh_added_set_free(&hf->normalized);
    for (int i = 0; i < hf->n_added; i++) {
        free(hf->added[i].content);
        free(hf->added[i].found_as);
    }
    for (int i = 0; i < hf->n_normal; i++)
        sh_normal_free(&hf->normal[i]);
    for (int i = 0; i < hf->n_split; i++)
        sh_split_free(&hf->split[i]);
    for (int i = 0; i < hf->n_decode; i++)
        sh_decode_free(&hf->decode[i]);
    free(hf->begin.id);
    free(hf->end.id);
    free(hf->added);
    free(hf->word);
    free(hf->store.at);
    free(hf);
}

/* Read an id. The bound keeps a hostile file from asking for gigabytes of words. */
static sh_rc id_of(const json_t *value, const char *word, uint32_t *id)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= SH_HF_IDS)
        return sh_fail(SH_E_DATA, "the id of \"%.40s\" is %s and must be a whole number from 0 to %d", word,
                       sh_json_is(value), SH_HF_IDS - 1);
    *id = (uint32_t)json_integer_value(value);
    return SH_OK;
}

/* Allocate room for all ids, and for all texts at once, so that the texts never move. */
static sh_rc make_room(struct sh_hf *hf, const json_t *vocab, const json_t *added)
{
    size_t bytes = 0, i;
    const json_t *value;
    const char *key;
    uint32_t id;

    json_object_foreach((json_t *)vocab, key, value)
    {
        SH_TRY(id_of(value, key, &id));
        hf->words = (int)id >= hf->words ? (int)id + 1 : hf->words;
        bytes += strlen(key);
    }
    json_array_foreach(added, i, value)
    {
        SH_TRY(id_of(json_object_get(value, "id"), "added_tokens", &id));
        hf->words = (int)id >= hf->words ? (int)id + 1 : hf->words;
    }
    if (hf->words == 0)
        return sh_fail(SH_E_DATA, "there is no word in it");
    /* Each text is stored twice: as in the file, and as bytes. */
    sh_text_room(&hf->store, 2 * bytes + 2);
    hf->word = sh_calloc((size_t)hf->words, sizeof *hf->word);
    sh_words_init(&hf->by_text, json_object_size(vocab) + json_array_size(added));
    sh_words_init(&hf->model.words, json_object_size(vocab));
    return SH_OK;
}

/* How many bytes of a word to show in a message. */
static int shown(size_t bytes)
{
    return bytes < 40 ? (int)bytes : 40;
}

/* Assign an id to a word. Two words with the same id would make decoding ambiguous. text is lent. */
static sh_rc take_id(struct sh_hf *hf, uint32_t id, const char *text, size_t bytes)
{
    const struct sh_token_json_word *there = &hf->word[id];

    if (there->text)
        return sh_fail(SH_E_DATA, "\"%.*s\" and \"%.*s\" both have the id %u", shown(there->bytes), there->text,
                       shown(bytes), text, (unsigned)id);
    hf->word[id] = (struct sh_token_json_word){text, text, (uint32_t)bytes, (uint32_t)bytes, false};
    return SH_OK;
}

/* Add the bytes that a word of a byte-level model stands for. A word with characters outside the alphabet never occurs
 * in a text. */
static void add_as_bytes(struct sh_hf *hf, const char *text, size_t bytes, uint32_t id)
{
    size_t begin = hf->store.n;

    for (size_t i = 0, n; i < bytes; i += n) {
        int byte = sh_code_to_byte(sh_utf8_get((const unsigned char *)text + i, &n));
        unsigned char c = (unsigned char)byte;
        if (byte < 0) {
            hf->store.n = begin;
            return;
        }
        sh_text_put(&hf->store, &c, 1);
    }
    sh_words_put(&hf->model.words, hf->store.at + begin, hf->store.n - begin, id);
}

/* by_text has the texts as in the file, for merges and tokens; model.words has the words as they occur in a text, which
 * for byte-level models is as bytes. */
static sh_rc read_words(struct sh_hf *hf, const json_t *vocab)
{
    const json_t *value;
    const char *key;

    json_object_foreach((json_t *)vocab, key, value)
    {
        uint32_t id = (uint32_t)json_integer_value(value);
        size_t bytes = strlen(key);
        const char *text = (char *)hf->store.at + hf->store.n;
        sh_text_put(&hf->store, key, bytes);
        SH_TRY(take_id(hf, id, text, bytes));
        sh_words_put(&hf->by_text, text, bytes, id);
        if (bytes == 0) /* an empty word never occurs in a text */
            continue;
        if (hf->model.byte_level)
            add_as_bytes(hf, text, bytes, id);
        else
            sh_words_put(&hf->model.words, text, bytes, id);
    }
    return SH_OK;
}

/* Read the two words of a merge: ["a", "b"], or "a b". */
static sh_rc sides(const json_t *merge, const char *side[2], size_t bytes[2])
{
    for (int i = 0; i < 2 && json_is_array(merge) && json_array_size(merge) == 2; i++) {
        side[i] = json_string_value(json_array_get(merge, (size_t)i));
        bytes[i] = json_string_length(json_array_get(merge, (size_t)i));
        if (!side[i])
            return sh_fail(SH_E_DATA, "one of the two is not a string");
    }
    if (json_is_array(merge) && json_array_size(merge) == 2)
        return SH_OK;
    /* The old form has one blank between the two; a word with a blank can only be written in the new one. */
    const char *text = json_string_value(merge), *blank = text ? strchr(text, ' ') : NULL;
    if (!blank || strchr(blank + 1, ' '))
        return sh_fail(SH_E_DATA, "a merge is [\"a\", \"b\"] or \"a b\"");
    side[0] = text;
    bytes[0] = (size_t)(blank - text);
    side[1] = blank + 1;
    bytes[1] = json_string_length(merge) - bytes[0] - 1;
    return SH_OK;
}

/* Both words and their join must exist. The rank is the place in the list: lower ones are merged first. */
static sh_rc read_merge(struct sh_hf *hf, const json_t *merge, uint32_t rank, struct sh_text *whole)
{
    const char *side[2];
    size_t bytes[2];
    int64_t id[2];

    SH_TRY(sides(merge, side, bytes));
    whole->n = 0;
    for (int i = 0; i < 2; i++) {
        id[i] = sh_words_get(&hf->by_text, side[i], bytes[i]);
        if (id[i] < 0)
            return sh_fail(SH_E_DATA, "\"%.*s\" is not a word", shown(bytes[i]), side[i]);
        sh_text_put(whole, side[i], bytes[i]);
    }
    int64_t made = sh_words_get(&hf->by_text, whole->at, whole->n);
    if (made < 0)
        return sh_fail(SH_E_DATA, "\"%.*s\" and \"%.*s\" together are not a word", shown(bytes[0]), side[0],
                       shown(bytes[1]), side[1]);
    sh_merges_put(&hf->model.merges, (uint32_t)id[0], (uint32_t)id[1], rank, (uint32_t)made);
    return SH_OK;
}

/* Whether an entry is the first line of a merges.txt, which some files still have. */
static bool is_version(const json_t *merge)
{
    const char *text = json_string_value(merge);

    return text && !strncmp(text, "#version", 8);
}

/* An error names the merge by its number, counted from 0 as JSON tools do. */
static sh_rc read_merges(struct sh_hf *hf, const json_t *merges)
{
    struct sh_text whole = {0};
    const json_t *merge;
    uint32_t rank = 0;
    size_t i;
    sh_rc rc = SH_OK;

    if (!json_is_array(merges))
        return sh_fail(SH_E_DATA, "merges is %s and must be a list", sh_json_is(merges));
    sh_merges_init(&hf->model.merges, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        if (is_version(merge))
            continue;
        rc = read_merge(hf, merge, rank++, &whole);
        if (rc != SH_OK) {
            rc = sh_fail_prefix(rc, "merges[%zu]: ", i);
            break;
        }
    }
    free(whole.at);
    return rc;
}

/* Whether a value has no effect on ids. */
static bool is_nothing(const json_t *value)
{
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* A model without a type is BPE if it has merges. Dropout would give different ids at each call, so it is refused. */
static sh_rc refuse_model(const json_t *model)
{
    static const char *const others[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");

    if (!json_is_object(model))
        return sh_fail(SH_E_DATA, "it is %s and must be an object", sh_json_is(model));
    if (type ? !json_is_string(type) || strcmp(json_string_value(type), "BPE") : !json_object_get(model, "merges"))
        return sh_fail(SH_E_DATA, "its type is \"%s\"; only BPE is read",
                       json_is_string(type) ? json_string_value(type) : sh_json_is(type));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (!is_nothing(json_object_get(model, others[i])))
            return sh_fail(SH_E_DATA, "%s has a value, and is not read", others[i]);
    return sh_token_json_known(
        model, "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
               "ignore_merges vocab merges");
}

/* SH_NO_ID: unknown symbols are left out. */
static sh_rc read_unk(struct sh_hf *hf, const json_t *model)
{
    const json_t *unk = json_object_get(model, "unk_token");

    hf->model.unk = SH_NO_ID;
    if (!unk || json_is_null(unk))
        return SH_OK;
    if (!json_is_string(unk))
        return sh_fail(SH_E_DATA, "unk_token is %s and must be a string", sh_json_is(unk));
    hf->model.unk = sh_words_get(&hf->by_text, json_string_value(unk), json_string_length(unk));
    return hf->model.unk >= 0 ? SH_OK : sh_fail(SH_E_DATA, "unk_token \"%.40s\" is not a word", json_string_value(unk));
}

/* Words before merges: a merge names words. */
static sh_rc read_model(struct sh_hf *hf, const json_t *model, const json_t *added)
{
    const json_t *vocab = json_object_get(model, "vocab");

    SH_TRY(refuse_model(model));
    if (!json_is_object(vocab))
        return sh_fail(SH_E_DATA, "vocab is %s and must be an object", sh_json_is(vocab));
    SH_TRY(sh_token_json_switch(model, "byte_fallback", false, &hf->model.byte_fallback));
    SH_TRY(sh_token_json_switch(model, "fuse_unk", false, &hf->model.fuse_unk));
    SH_TRY(sh_token_json_switch(model, "ignore_merges", false, &hf->model.ignore_merges));
    SH_TRY(make_room(hf, vocab, added));
    SH_TRY(read_words(hf, vocab));
    SH_TRY(read_merges(hf, json_object_get(model, "merges")));
    SH_TRY(read_unk(hf, model));
    /* All words are known now. */
    sh_bpe_settle(&hf->model);
    for (int b = 0; b < 256 && hf->model.byte_level && hf->model.byte_fallback; b++)
        if (hf->model.byte_id[b] < 0)
            return sh_fail(SH_E_DATA, "byte_fallback in a byte-level model in which not all 256 bytes are words");
    return SH_OK;
}

/* Added tokens. */

/* Normalize the text of a token that is matched in normalized text. */
static void normalize_token(const struct sh_hf *hf, struct sh_added *a)
{
    struct sh_text scratch[2] = {0};
    const unsigned char *text = (unsigned char *)a->content;
    size_t bytes = a->bytes;

    if (a->normalized)
        sh_normalize(hf->normal, hf->n_normal, scratch, &text, &bytes, NULL);
    a->found_as = sh_calloc(bytes + 1, 1);
    memcpy(a->found_as, text, bytes);
    a->found_bytes = (uint32_t)bytes;
    free(scratch[0].at);
    free(scratch[1].at);
}

/* A token that is a word already keeps that word's id; any other token gets the next free id. `tokenizers` does the
 * same, whatever id the file has, so a file with another id is refused. */
static sh_rc place_token(struct sh_hf *hf, struct sh_added *a, uint32_t *next)
{
    int64_t there = sh_words_get(&hf->by_text, a->content, a->bytes);
    uint32_t right = there >= 0 ? (uint32_t)there : *next;

    if (a->id != right)
        return sh_fail(SH_E_DATA, "\"%.40s\" has the id %u, but is read as %u by tokenizers (%s)", a->content,
                       (unsigned)a->id, (unsigned)right,
                       there >= 0 ? "the id of this word in vocab" : "the next one that is free");
    if (there < 0) {
        SH_TRY(take_id(hf, a->id, a->content, a->bytes));
        sh_words_put(&hf->by_text, a->content, a->bytes, a->id);
        ++*next;
    }
    return SH_OK;
}

/* The scan for duplicates is quadratic, so it stops at 4096 tokens; place_token() finds most other duplicates by their
 * ids. */
static sh_rc read_token(struct sh_hf *hf, const json_t *value, uint32_t *next)
{
    struct sh_added *a = &hf->added[hf->n_added];
    const char *text;
    size_t bytes;

    SH_TRY(sh_token_json_known(value, "id content single_word lstrip rstrip normalized special"));
    SH_TRY(sh_token_json_string(value, "content", &text, &bytes));
    SH_TRY(sh_token_json_switch(value, "single_word", false, &a->single_word));
    SH_TRY(sh_token_json_switch(value, "lstrip", false, &a->lstrip));
    SH_TRY(sh_token_json_switch(value, "rstrip", false, &a->rstrip));
    SH_TRY(sh_token_json_switch(value, "normalized", true, &a->normalized));
    SH_TRY(sh_token_json_switch(value, "special", false, &a->special));
    if (bytes == 0)
        return sh_fail(SH_E_DATA, "content is empty");
    for (int i = 0; i < hf->n_added && hf->n_added < 4096; i++)
        if (hf->added[i].bytes == bytes && !memcmp(hf->added[i].content, text, bytes))
            return sh_fail(SH_E_DATA, "\"%.40s\" appears twice", text);
    a->id = (uint32_t)json_integer_value(json_object_get(value, "id"));
    a->content = sh_calloc(bytes + 1, 1);
    memcpy(a->content, text, bytes);
    a->bytes = (uint32_t)bytes;
    /* From here on sh_token_json_free() frees the token. */
    hf->n_added++;
    normalize_token(hf, a);
    return place_token(hf, a, next);
}

/* The decoder gets an added token as its found_as. The token counts as special, and can be left out, only if that is
 * also its content. */
static void show_tokens(struct sh_hf *hf)
{
    for (int i = 0; i < hf->n_added; i++) {
        const struct sh_added *a = &hf->added[i];
        struct sh_token_json_word *w = &hf->word[a->id];
        /* Lent: the tokens live as long as the words. */
        w->shown = a->found_as;
        w->shown_bytes = a->found_bytes;
        w->special = a->special && a->found_bytes == a->bytes && !memcmp(a->found_as, a->content, a->bytes);
    }
}

/* Which of two tokens with one text `tokenizers` finds depends on what else the file has. The set is sorted by text. */
static sh_rc refuse_equal(const struct sh_added_set *set)
{
    for (int i = 1; i < set->n; i++) {
        const struct sh_added *a = set->token[i - 1], *b = set->token[i];
        if (a->found_bytes == b->found_bytes && !memcmp(a->found_as, b->found_as, a->found_bytes))
            return sh_fail(SH_E_DATA, "added_tokens: %u and %u have the same text once it is normalized; take one out",
                           (unsigned)a->id, (unsigned)b->id);
    }
    return SH_OK;
}

/* Read the added tokens; `vocab` is the next free id. */
static sh_rc read_added(struct sh_hf *hf, const json_t *list, uint32_t vocab)
{
    const json_t *value;
    size_t i;

    if (list && !json_is_null(list) && !json_is_array(list))
        return sh_fail(SH_E_DATA, "added_tokens is %s and must be a list", sh_json_is(list));
    hf->added = sh_calloc(json_array_size(list) + 1, sizeof *hf->added);
    json_array_foreach(list, i, value)
    {
        sh_rc rc = read_token(hf, value, &vocab);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "added_tokens[%zu]: ", i);
    }
    show_tokens(hf);
    sh_added_set_make(&hf->raw, hf->added, hf->n_added, false);
    sh_added_set_make(&hf->normalized, hf->added, hf->n_added, true);
    return refuse_equal(&hf->normalized);
}

/* Whether any word contains `part` and something else. */
static bool is_part(const struct sh_hf *hf, const char *part)
{
    size_t n = strlen(part);

    for (int id = 0; id < hf->words; id++) {
        const struct sh_token_json_word *w = &hf->word[id];
        if (w->text && w->bytes > n && memmem(w->text, w->bytes, part, n))
            return true;
    }
    return false;
}

/* Whether any word has the mark for a space after another character. */
static bool mark_follows(const struct sh_hf *hf)
{
    size_t n = sizeof mark - 1;

    for (int id = 0; id < hf->words; id++) {
        const struct sh_token_json_word *w = &hf->word[id];
        for (size_t at = 1; w->text && at + n <= w->bytes; at++)
            if (!memcmp(w->text + at, mark, n) && (at < n || memcmp(w->text + at - n, mark, n) != 0))
                return true;
    }
    return false;
}

/* Whether an unknown character is spelled as its bytes. If not, it either waits for the next known character, which
 * must not be in another piece, or is left out, and its neighbours may merge. */
static bool spells_unknown(const struct sh_hf *hf)
{
    bool all = hf->model.byte_fallback;

    for (int b = 0; b < 256; b++)
        all &= hf->model.byte_id[b] >= 0;
    return all;
}

/* Whether any word contains a byte word such as <0x41> and something else: then a merge may cross from a spelled
 * character to the next one. */
static bool merges_bytes(const struct sh_hf *hf)
{
    for (int id = 0; id < hf->words; id++) {
        const struct sh_token_json_word *w = &hf->word[id];
        if (w->text && w->bytes > 6 && memmem(w->text, w->bytes, "<0x", 3))
            return true;
    }
    return false;
}

/* Return an upper bound on the number of pairs: the number of places where two characters meet within words. */
static size_t count_pairs(const struct sh_hf *hf)
{
    size_t n = 0;

    for (int id = 0; id < hf->words; id++)
        n += hf->word[id].text ? hf->word[id].bytes : 0;
    return n;
}

static void put_pairs(struct sh_pairs *pairs, const unsigned char *text, size_t bytes)
{
    size_t n = 0;
    uint32_t before = bytes ? sh_utf8_get(text, &n) : 0;

    for (size_t i = n; i < bytes; i += n) {
        uint32_t code = sh_utf8_get(text + i, &n);
        sh_pairs_put(pairs, before, code);
        before = code;
    }
}

/* Cut between two characters that are not neighbours in any word: no merge crosses such a place. If unknown characters
 * are not spelled as bytes, both characters must also be words, which is checked for ASCII only. */
static void cut_at_pairs(struct sh_hf *hf, bool spells)
{
    struct sh_pairs *pairs = sh_pairs_create(spells ? count_pairs(hf) : 0);

    for (int a = 0; a < 128 && !spells; a++)
        for (int b = 0; b < 128; b++)
            pairs->ascii[a * 128 + b] = hf->model.ascii_id[a] < 0 || hf->model.ascii_id[b] < 0;
    for (int id = 0; id < hf->words; id++)
        if (hf->word[id].text)
            put_pairs(pairs, (const unsigned char *)hf->word[id].text, hf->word[id].bytes);
    hf->split[hf->n_split++] = (struct sh_split){.kind = SH_SPLIT_PAIRS, .pairs = pairs};
}

/* Without a pre-tokenizer that cuts, a document would be one piece. But no merge crosses a place that no word crosses,
 * so pieces may end there. If unknown characters are spelled as bytes, such places are between any two characters that
 * are not neighbours in any word. Otherwise they are: at line ends, if the line end is a word and part of no other
 * word; in front of marks for spaces, if no word has one after another character and unknown characters are not left
 * out; and between ASCII characters that are not neighbours. With ignore_merges a whole piece may be a word, so nothing
 * is cut. */
static void cut_between_words(struct sh_hf *hf)
{
    const struct sh_bpe *m = &hf->model;
    bool spells = spells_unknown(hf) && !merges_bytes(hf);

    for (int i = 0; i < hf->n_split; i++)
        if (hf->split[i].kind != SH_SPLIT_METASPACE && hf->split[i].kind != SH_SPLIT_PREFIX)
            return;
    if (m->byte_level || m->ignore_merges)
        return;
    if (!spells && m->ascii_id['\n'] >= 0 && !is_part(hf, "\n"))
        hf->split[hf->n_split++] =
            (struct sh_split){.kind = SH_SPLIT_STRING, .how = SH_SPLIT_ISOLATED, .text = sh_strdup("\n"), .bytes = 1};
    if (!spells && m->unk >= 0 && sh_words_get(&m->words, mark, sizeof mark - 1) >= 0 && !mark_follows(hf))
        hf->split[hf->n_split++] =
            (struct sh_split){.kind = SH_SPLIT_MARKS, .text = sh_strdup(mark), .bytes = sizeof mark - 1};
    cut_at_pairs(hf, spells);
}

/* Check the ids of a template; possible only now that all words are known. */
static sh_rc check_template(const struct sh_hf *hf, const struct sh_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] >= (uint32_t)hf->words || !hf->word[ids->id[i]].text)
            return sh_fail(SH_E_DATA, "post_processor: no word has the id %u", (unsigned)ids->id[i]);
    return SH_OK;
}

/* Unknown keys at the top level are refused: they might be a part of a newer version. */
static sh_rc read_all(struct sh_hf *hf, const json_t *top)
{
    const json_t *model = json_object_get(top, "model"), *added = json_object_get(top, "added_tokens");

    if (!json_is_object(top) || !model)
        return sh_fail(SH_E_DATA, "there is no \"model\" in it; is it a tokenizer.json?");
    SH_TRY(sh_token_json_known(
        top, "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model"));
    SH_TRY(sh_token_json_read_parts(hf, top));
    sh_rc rc = read_model(hf, model, added);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "model: ");
    SH_TRY(read_added(hf, added, (uint32_t)json_object_size(json_object_get(model, "vocab"))));
    SH_TRY(check_template(hf, &hf->begin));
    SH_TRY(check_template(hf, &hf->end));
    cut_between_words(hf);
    return SH_OK;
}

/* Error messages begin with the name of the file. The text need not outlive the call. */
sh_rc sh_token_json_parse(const char *text, size_t bytes, const char *name, struct sh_hf **out)
{
    struct sh_hf *hf;
    json_t *top;

    SH_TRY(sh_json_parse(text, bytes, name, &top));
    hf = sh_calloc(1, sizeof *hf);
    sh_rc rc = read_all(hf, top);
    json_decref(top);
    if (rc != SH_OK) {
        sh_token_json_free(hf);
        return sh_fail_prefix(rc, "%s: ", name);
    }
    *out = hf;
    return SH_OK;
}
