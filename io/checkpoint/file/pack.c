/* Converts the index of a checkpoint to bytes, and back. It lies after the tensors, and the footer after it says where:
 *
 *     HDF5's structures | tensors ... | index | footer
 *
 * Unpacking trusts nothing: each number is compared with the bytes present before it sizes an allocation or a read. */
#include "io/checkpoint/file/pack.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/extents.h"
#include "src/base/mem.h"
#include "src/config/read/text.h"

#include <stdlib.h>
#include <string.h>

/* Numbers are stored as in memory: little-endian, like the tensors' data. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are little-endian");

static const char index_magic[8] = "SHERDIDX", footer_magic[8] = "\x89SHERD\r\n";

/* The numbers at the start of an index, in the order and the sizes of the file. */
struct head {
    char magic[8];
    uint32_t major, minor;
    int64_t file_bytes, structure_bytes;
    struct sh_hash128 structure;
    int64_t step, updates, samples, tokens, block_elems;
    uint64_t sum;
    int64_t tensors, blocks;
    int64_t text_bytes[3]; /* configuration, guard, notes */
};
_Static_assert(sizeof(struct head) == SH_CKPT_HEAD_BYTES, "no padding");

/* Precedes the name, the dims and the offsets of a tensor. */
struct tensor_head {
    uint16_t name_bytes, ndim;
};
enum { TENSOR_LEAST = sizeof(struct tensor_head) + 1 + (1 + 1) * 8 };
enum { TENSOR_MOST = sizeof(struct tensor_head) + SH_CKPT_NAME_MAX + (SH_CKPT_DIMS_MAX + SH_CKPT_STATES_MAX + 1) * 8 };

/* The index of 450 TB of tensors. A file that is nothing but a hole can have any length. */
enum { PACKED_MOST = 1 << 30 };

enum { FOOTER_ZEROS = 16 };
/* The footer has a fixed size at the end of the file, so that a reader finds the index with one read. Its magic has a
 * byte above 127 and line ends, which a transfer as text would destroy. */
struct footer {
    int64_t at, bytes;
    struct sh_hash128 digest;
    uint32_t major, minor;
    unsigned char zeros[FOOTER_ZEROS];
    char magic[8];
};
_Static_assert(sizeof(struct footer) == SH_CKPT_FOOTER_BYTES, "no padding");

void sh_ckpt_footer_pack(const struct sh_ckpt_footer *f, unsigned char out[SH_CKPT_FOOTER_BYTES])
{
    struct footer raw = {.at = f->at, .bytes = f->bytes, .digest = f->digest, .major = f->major, .minor = f->minor};
    memcpy(raw.magic, footer_magic, sizeof raw.magic);
    memcpy(out, &raw, sizeof raw);
}

/* False: no footer, or a damaged one. */
bool sh_ckpt_footer_unpack(const unsigned char bytes[SH_CKPT_FOOTER_BYTES], struct sh_ckpt_footer *out)
{
    static const unsigned char zeros[FOOTER_ZEROS];
    struct footer raw;
    memcpy(&raw, bytes, sizeof raw);
    if (memcmp(raw.magic, footer_magic, sizeof raw.magic) != 0 || memcmp(raw.zeros, zeros, sizeof zeros) != 0)
        return false;
    *out = (struct sh_ckpt_footer){
        .at = raw.at, .bytes = raw.bytes, .digest = raw.digest, .major = raw.major, .minor = raw.minor};
    return true;
}

/* A digest of 64 bits for each block in each state. */
static int64_t blocks_bytes(int64_t blocks, int states)
{
    return blocks * states * (int64_t)sizeof(uint64_t);
}

/* From format 2 on: the number of states, and their names, padded with zeros. In format 1 they are known. */
static int64_t states_bytes(const struct sh_ckpt_states *s)
{
    return sh_ckpt_major(s) == 1 ? 0 : (int64_t)sizeof(int64_t) + s->n * SH_CKPT_STATE_NAME;
}

/* From minor version 2 on, after everything else: the length of the base's text, and the text. */
static int64_t base_bytes(const struct sh_ckpt_index *index)
{
    return index->minor < SH_CKPT_MINOR ? 0 : (int64_t)sizeof(int64_t) + (int64_t)strlen(index->meta.base);
}

/* Exact: sh_ckpt_pack() allocates this many bytes and fills all of them. */
int64_t sh_ckpt_packed_bytes(const struct sh_ckpt_index *index)
{
    const struct sh_ckpt_meta *m = &index->meta;
    int64_t bytes = (int64_t)(sizeof(struct head) + strlen(m->config) + strlen(m->guard) + strlen(m->notes));
    for (int64_t i = 0; i < index->n; i++) {
        const struct sh_ckpt_entry *e = &index->entry[i];
        bytes += (int64_t)(sizeof(struct tensor_head) + strlen(e->name)) +
                 (e->ndim + index->states.n + index->states.masked) * 8;
    }
    return bytes + states_bytes(&index->states) + blocks_bytes(index->n_blocks, index->states.n) + base_bytes(index);
}

/* The most that the index of a file of this length can have. Without this limit a damaged length would be allocated. */
int64_t sh_ckpt_packed_most(int64_t file_bytes)
{
    int64_t blocks = file_bytes / (SH_CKPT_BLOCK_ELEMS * 4) + SH_CKPT_TENSORS_MAX;
    int64_t most = (int64_t)sizeof(struct head) + 4 * SH_CKPT_TEXT_MAX + (int64_t)SH_CKPT_TENSORS_MAX * TENSOR_MOST +
                   (int64_t)sizeof(struct sh_ckpt_states) + blocks_bytes(blocks, SH_CKPT_STATES_MAX);
    return most < PACKED_MOST ? most : PACKED_MOST;
}

/* Appends the data and advances. */
static void put(unsigned char **to, const void *data, size_t bytes)
{
    memcpy(*to, data, bytes);
    *to += bytes;
}

/* Numbers need not be aligned, since both sides copy bytes. */
static void put_tensor(unsigned char **to, const struct sh_ckpt_entry *e, const struct sh_ckpt_states *states)
{
    uint64_t mask = e->states;
    struct tensor_head head = {.name_bytes = (uint16_t)strlen(e->name), .ndim = (uint16_t)e->ndim};
    put(to, &head, sizeof head);
    put(to, e->name, head.name_bytes);
    put(to, e->dim, head.ndim * sizeof *e->dim);
    put(to, e->offset, (size_t)states->n * sizeof *e->offset);
    if (states->masked)
        put(to, &mask, sizeof mask);
}

/* Format 1 stores no names of states. */
static void put_states(unsigned char **to, const struct sh_ckpt_states *s)
{
    int64_t n = s->n;
    if (states_bytes(s) == 0)
        return;
    put(to, &n, sizeof n);
    for (int i = 0; i < s->n; i++)
        put(to, s->name[i], sizeof s->name[i]);
}

static void put_base(unsigned char **to, const struct sh_ckpt_index *index)
{
    int64_t n = (int64_t)strlen(index->meta.base);
    if (base_bytes(index) == 0)
        return;
    put(to, &n, sizeof n);
    put(to, index->meta.base, (size_t)n);
}

/* The caller frees it. Order: head, texts, states, tensors, digests, base. */
unsigned char *sh_ckpt_pack(const struct sh_ckpt_index *index)
{
    const struct sh_ckpt_meta *m = &index->meta;
    const char *const texts[] = {m->config, m->guard, m->notes};
    unsigned char *bytes = sh_calloc((size_t)sh_ckpt_packed_bytes(index), 1), *to = bytes;
    /* clang-format off */
    struct head head = {.major = (uint32_t)sh_ckpt_major(&index->states), .minor = (uint32_t)index->minor,
                        .file_bytes = index->file_bytes,
                        .structure_bytes = index->structure_bytes, .structure = index->structure, .step = m->step,
                        .updates = m->updates, .samples = m->samples, .tokens = m->tokens,
                        .block_elems = SH_CKPT_BLOCK_ELEMS, .sum = index->sum, .tensors = index->n,
                        .blocks = index->n_blocks};
    /* clang-format on */
    memcpy(head.magic, index_magic, sizeof head.magic);
    for (int i = 0; i < 3; i++)
        head.text_bytes[i] = (int64_t)strlen(texts[i]);
    put(&to, &head, sizeof head);
    for (int i = 0; i < 3; i++)
        put(&to, texts[i], (size_t)head.text_bytes[i]);
    put_states(&to, &index->states);
    for (int64_t i = 0; i < index->n; i++)
        put_tensor(&to, &index->entry[i], &index->states);
    for (int s = 0; s < index->states.n; s++)
        put(&to, index->digest[s], (size_t)index->n_blocks * sizeof(uint64_t));
    put_base(&to, index);
    return bytes;
}

/* Reads only magic and step, without checking the rest. */
bool sh_ckpt_packed_step(const unsigned char head[SH_CKPT_HEAD_BYTES], int64_t *step)
{
    struct head h;
    memcpy(&h, head, sizeof h);
    *step = h.step;
    return memcmp(h.magic, index_magic, sizeof h.magic) == 0;
}

/* Compares the packed bytes, which are all that a file would contain of them. */
bool sh_ckpt_packed_same(const struct sh_ckpt_index *a, const struct sh_ckpt_index *b)
{
    int64_t bytes = sh_ckpt_packed_bytes(a);
    unsigned char *x = sh_ckpt_pack(a), *y = sh_ckpt_pack(b);
    bool same = bytes == sh_ckpt_packed_bytes(b) && memcmp(x, y, (size_t)bytes) == 0;
    free(x);
    free(y);
    return same;
}

/* The remaining bytes while an index is unpacked. */
struct rest {
    const char *path;
    const unsigned char *at;
    int64_t bytes, file_bytes, end;
};

/* One cure covers every fault of an index, since its digest was right when it was written. */
static sh_rc refuse(const struct rest *r, const char *why)
{
    return sh_fail(SH_E_DATA, "%s: its index is damaged: %s; take an earlier checkpoint", r->path, why);
}

/* All bytes leave the buffer through here, so this is the only check of its bounds. */
static sh_rc take(struct rest *r, void *to, int64_t bytes)
{
    if (bytes < 0 || bytes > r->bytes)
        return refuse(r, "it ends too early");
    memcpy(to, r->at, (size_t)bytes);
    r->at += bytes;
    r->bytes -= bytes;
    return SH_OK;
}

/* Every number that later sizes an allocation is limited by the bytes that really exist. */
static sh_rc check_head(const struct rest *r, const struct head *h)
{
    if (memcmp(h->magic, index_magic, sizeof h->magic) != 0)
        return refuse(r, "it does not start like one");
    if (h->major < 1 || h->major > SH_CKPT_MAJOR || h->minor < SH_CKPT_MINOR_WHOLE || h->minor > INT32_MAX)
        return refuse(r, "its version differs from the file's");
    if (h->block_elems != SH_CKPT_BLOCK_ELEMS)
        return sh_fail(SH_E_DATA, "%s: digests cover blocks of %lld elements, not %d", r->path,
                       (long long)h->block_elems, SH_CKPT_BLOCK_ELEMS);
    if (h->file_bytes != r->file_bytes || h->structure_bytes <= 0 || h->structure_bytes > r->end)
        return refuse(r, "it belongs to a file of another length");
    SH_TRY(sh_ckpt_counts_check(
        r->path,
        &(struct sh_ckpt_meta){.step = h->step, .updates = h->updates, .samples = h->samples, .tokens = h->tokens}));
    if (h->tensors < 0 || h->tensors > SH_CKPT_TENSORS_MAX || h->tensors > r->bytes / TENSOR_LEAST)
        return refuse(r, "its number of tensors is impossible");
    if (h->blocks < 0 || h->blocks > r->bytes / blocks_bytes(1, 1))
        return refuse(r, "its number of blocks is impossible");
    return SH_OK;
}

/* A zero byte inside would make a text end earlier than its length says. */
static sh_rc take_text(struct rest *r, int64_t bytes, char **text)
{
    if (bytes < 0 || bytes > r->bytes || bytes > SH_CKPT_TEXT_MAX || memchr(r->at, '\0', (size_t)bytes))
        return refuse(r, "a text in it is impossible");
    *text = sh_calloc((size_t)bytes + 1, 1);
    return take(r, *text, bytes);
}

/* Names end up in messages and in paths of datasets, so control characters and bad UTF-8 are refused. */
static bool is_clean(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 0 && sh_config_text_bad(name, bytes, false) == bytes;
}

/* The first state is the model; the others are all below "optimizer/", a prefix that no tensor has. */
static bool is_state(const struct sh_ckpt_states *s, int i)
{
    static const char group[] = "optimizer/";
    const char *name = s->name[i], *own = name + strlen(group);
    if (!memchr(name, '\0', sizeof s->name[i]) || !is_clean(name))
        return false;
    if (i == 0)
        return strcmp(name, "model") == 0;
    return strncmp(name, group, strlen(group)) == 0 && *own && !strchr(own, '/') && sh_ckpt_states_find(s, name) == i;
}

/* Format 1 has no names in the file. A file of format 2 with the states of format 1 cannot exist, so it is refused. */
static sh_rc take_states(struct rest *r, uint32_t major, struct sh_ckpt_states *s)
{
    int64_t n;
    *s = sh_ckpt_states_1;
    if (major == 1)
        return SH_OK;
    SH_TRY(take(r, &n, sizeof n));
    if (n < 1 || n > SH_CKPT_STATES_MAX)
        return refuse(r, "its number of states is impossible");
    s->n = (int)n;
    s->masked = major == 3;
    memset(s->name, 0, sizeof s->name);
    for (int i = 0; i < s->n; i++) {
        SH_TRY(take(r, s->name[i], sizeof s->name[i]));
        if (!is_state(s, i))
            return refuse(r, "a state has an impossible name");
    }
    return sh_ckpt_major(s) == (int)major ? SH_OK : refuse(r, "its states are those of another version");
}

/* '/' would address another dataset. */
static sh_rc take_name(struct rest *r, int64_t bytes, char name[SH_CKPT_NAME_MAX + 1])
{
    if (bytes < 1 || bytes > SH_CKPT_NAME_MAX || bytes > r->bytes || memchr(r->at, '\0', (size_t)bytes))
        return refuse(r, "a tensor has an impossible name");
    SH_TRY(take(r, name, bytes));
    name[bytes] = '\0';
    return strchr(name, '/') || !is_clean(name) ? refuse(r, "a tensor has an impossible name") : SH_OK;
}

/* Products are checked for overflow: four dims of 2^16 are 2^64 elements, which would wrap to 0. */
static sh_rc take_shape(struct rest *r, int ndim, struct sh_ckpt_entry *e)
{
    int64_t bytes;
    if (ndim < 1 || ndim > SH_CKPT_DIMS_MAX)
        return refuse(r, "a tensor has an impossible shape");
    SH_TRY(take(r, e->dim, ndim * (int64_t)sizeof *e->dim));
    e->ndim = ndim;
    e->elems = 1;
    for (int d = 0; d < ndim; d++)
        if (e->dim[d] < 1 || __builtin_mul_overflow(e->elems, e->dim[d], &e->elems))
            return refuse(r, "a tensor has an impossible shape");
    if (__builtin_mul_overflow(e->elems, 4, &bytes) || bytes > r->end)
        return refuse(r, "a tensor is larger than the file");
    return SH_OK;
}

/* Which states a tensor has: all, before format 3. Where it has none, it has no place. */
static sh_rc take_mask(struct rest *r, const struct sh_ckpt_states *states, struct sh_ckpt_entry *e)
{
    uint64_t all = (1u << states->n) - 1, mask = all;
    if (states->masked)
        SH_TRY(take(r, &mask, sizeof mask));
    if (mask == 0 || (mask & ~all))
        return refuse(r, "a tensor has impossible states");
    e->states = (unsigned)mask;
    for (int s = 0; s < states->n; s++)
        if (!sh_ckpt_has(e, s) && e->offset[s] != 0)
            return refuse(r, "a tensor lies where it has no state");
    return SH_OK;
}

/* A tensor must lie completely between the structures and the index. */
static sh_rc take_tensor(struct rest *r, int64_t begin, const struct sh_ckpt_states *states, struct sh_ckpt_entry *e)
{
    struct tensor_head head;
    SH_TRY(take(r, &head, sizeof head));
    SH_TRY(take_name(r, head.name_bytes, e->name));
    SH_TRY(take_shape(r, head.ndim, e));
    SH_TRY(take(r, e->offset, states->n * (int64_t)sizeof *e->offset));
    SH_TRY(take_mask(r, states, e));
    for (int s = 0; s < states->n; s++)
        if (sh_ckpt_has(e, s) && (e->offset[s] < begin || e->offset[s] > r->end - e->elems * 4))
            return refuse(r, "a tensor lies outside of the data");
    return SH_OK;
}

/* Readers of the model take the tensors of sh_ckpt_index_models(), all of which must have a place in it. */
static sh_rc check_models(const struct rest *r, const struct sh_ckpt_index *index)
{
    for (int64_t i = 0; i < sh_ckpt_index_models(index); i++)
        if (!sh_ckpt_has(&index->entry[i], SH_CKPT_MODEL))
            return refuse(r, "a tensor of states alone comes before one of the model");
    return SH_OK;
}

/* Compares pointers to entries, since the entries themselves must not move. */
static int by_name(const void *a, const void *b)
{
    const struct sh_ckpt_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorts the names, since comparing each pair of 100,000 would take minutes. */
static sh_rc check_names(const struct rest *r, const struct sh_ckpt_index *index)
{
    const struct sh_ckpt_entry **sorted = sh_calloc((size_t)index->n + 1, sizeof(struct sh_ckpt_entry *));
    bool twice = false;
    for (int64_t i = 0; i < index->n; i++)
        sorted[i] = &index->entry[i];
    qsort(sorted, (size_t)index->n, sizeof *sorted, by_name);
    for (int64_t i = 1; i < index->n; i++)
        twice = twice || strcmp(sorted[i - 1]->name, sorted[i]->name) == 0;
    free(sorted);
    return twice ? refuse(r, "two tensors have one name") : SH_OK;
}

/* Every byte of a file is covered by a digest only if the tensors fill all bytes between structures and index. */
static sh_rc check_places(const struct rest *r, const struct sh_ckpt_index *index)
{
    struct sh_move_range *ranges = sh_calloc((size_t)(index->n * index->states.n) + 1, sizeof *ranges);
    int n = 0;
    for (int64_t i = 0; i < index->n; i++)
        for (int s = 0; s < index->states.n; s++)
            if (sh_ckpt_has(&index->entry[i], s))
                ranges[n++] = (struct sh_move_range){index->entry[i].offset[s], index->entry[i].elems * 4};
    int joined = sh_move_ranges_join(ranges, n);
    bool whole = joined == 1 && ranges[0].at == index->structure_bytes && ranges[0].bytes == r->end - ranges[0].at;
    free(ranges);
    if (joined < 0)
        return sh_fail(SH_E_DATA, "%s: its tensors overlap", r->path);
    return whole ? SH_OK : refuse(r, "its tensors do not cover all bytes of the file");
}

/* Tensors that do not overlap have no more blocks than fit the file, so the arrays stay small. */
static sh_rc take_digests(struct rest *r, int64_t blocks, struct sh_ckpt_index *index)
{
    int64_t expected = 0;
    for (int64_t i = 0; i < index->n; i++)
        expected += sh_ckpt_blocks(index->entry[i].elems);
    if (blocks != expected || blocks_bytes(blocks, index->states.n) > r->bytes)
        return refuse(r, "its number of blocks is impossible");
    sh_ckpt_index_number_blocks(index);
    for (int s = 0; s < index->states.n; s++)
        SH_TRY(take(r, index->digest[s], blocks * (int64_t)sizeof(uint64_t)));
    return SH_OK;
}

/* Takes the numbers that check_head() has accepted, and the digests, which are compared later. */
static void take_numbers(const struct head *h, struct sh_ckpt_index *index)
{
    index->minor = (int32_t)h->minor;
    index->file_bytes = h->file_bytes;
    index->structure_bytes = h->structure_bytes;
    index->structure = h->structure;
    index->sum = h->sum;
    index->meta.step = h->step;
    index->meta.updates = h->updates;
    index->meta.samples = h->samples;
    index->meta.tokens = h->tokens;
}

static sh_rc take_base(struct rest *r, struct sh_ckpt_index *index)
{
    int64_t n;
    if (index->minor < SH_CKPT_MINOR) {
        index->meta.base = sh_strdup("");
        return SH_OK;
    }
    SH_TRY(take(r, &n, sizeof n));
    return take_text(r, n, &index->meta.base);
}

/* In the order of sh_ckpt_pack(). Each step uses only what earlier steps have checked. */
static sh_rc unpack(struct rest *r, struct sh_ckpt_index *index)
{
    struct sh_ckpt_meta *m = &index->meta;
    char **const texts[] = {&m->config, &m->guard, &m->notes};
    struct head h;
    SH_TRY(take(r, &h, sizeof h));
    SH_TRY(check_head(r, &h));
    take_numbers(&h, index);
    for (int i = 0; i < 3; i++)
        SH_TRY(take_text(r, h.text_bytes[i], texts[i]));
    SH_TRY(take_states(r, h.major, &index->states));
    sh_ckpt_index_alloc(index, h.tensors);
    for (int64_t i = 0; i < h.tensors; i++)
        SH_TRY(take_tensor(r, h.structure_bytes, &index->states, &index->entry[i]));
    SH_TRY(check_models(r, index));
    SH_TRY(check_names(r, index));
    SH_TRY(check_places(r, index));
    SH_TRY(take_digests(r, h.blocks, index));
    SH_TRY(take_base(r, index));
    if (r->bytes > 0 && index->minor <= SH_CKPT_MINOR) /* a later version may add to it */
        return refuse(r, "it continues past its end");
    if (index->sum != sh_ckpt_index_digest(index))
        return sh_fail(SH_E_DATA,
                       "%s: its meta data does not match its digest: the file is damaged; take an earlier "
                       "checkpoint",
                       r->path);
    return SH_OK;
}

/* On success *out belongs to the caller. `end` is where the data ends: the offset of the index. */
sh_rc sh_ckpt_unpack(const unsigned char *bytes, int64_t n, const char *path, int64_t file_bytes, int64_t end,
                     struct sh_ckpt_index *out)
{
    struct rest r = {.path = path, .at = bytes, .bytes = n, .file_bytes = file_bytes, .end = end};
    struct sh_ckpt_index index = {0};
    sh_rc rc = unpack(&r, &index);
    if (rc == SH_OK)
        *out = index;
    else
        sh_ckpt_index_free(&index);
    return rc;
}
