/* Reads the base of an adapter checkpoint block by block for a merge. The base is a folder of transformers or a
 * checkpoint; the result is W + scale B A. During the read a checksum of the base's numbers is computed, and at the end
 * it is compared with the one in the checkpoint, so adapters are never merged with a base other than their own. */
#include "io/foreign/hf/base.h"

#include "io/checkpoint/file/digest.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "src/base/number/nf4.h"
#include "src/config/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 8192 }; /* floats on a stack; whole blocks of packed ones */

/* The adapters of one matrix, A [rank,in] and B [out,rank], or of a stack of E, A [E,rank,in] and B [E,out,rank]; a NULL:
 * it is not adapted. in_out: the matrices that they are added to are [in,out]. `whole`: a matrix that was trained itself, beside adapters, and is not the base's; NULL: it was not. */
struct sh_hf_pair {
    float *a, *b, *whole;
    int64_t rank, in, out;
    bool in_out;
};

/* ---- adapters ---- */

/* Read a whole tensor; the blocks are compared with their digests. Freed with free(). */
static sh_rc read_tensor(const struct sh_hf_base *b, const struct sh_ckpt_index *index, int fd,
                         const struct sh_ckpt_entry *e, float **out)
{
    *out = sh_calloc((size_t)e->elems, sizeof **out);
    return sh_ckpt_index_read_range(index, fd, b->of, b->state, e, 0, e->elems, *out);
}

/* Find the adapter of a tensor: of "x.q_proj.weight" it is "x.q_proj.lora_A.weight", of a stack "x.down_proj"
 * "x.down_proj.lora_A.weight"; NULL: it has none. */
static const struct sh_ckpt_entry *find_adapter(const struct sh_ckpt_index *index, const struct sh_ckpt_tensor *t,
                                                enum sh_param_role which)
{
    const char *ending = sh_param_info(t->role)->ending;
    char full[SH_CKPT_NAME_MAX + 1];
    int64_t at;
    size_t n = strlen(t->name), end = strlen(ending);
    bool bare = n < end || strcmp(t->name + n - end, ending) != 0;
    if (!sh_param_info(t->role)->linear && !sh_param_info(t->role)->experts)
        return NULL;
    snprintf(full, sizeof full, "%.*s%s%s", (int)(bare ? n : n - end), t->name, bare ? "." : "",
             sh_param_info(which)->ending);
    at = sh_ckpt_index_find(index, full, 0);
    return at < 0 ? NULL : &index->entry[at];
}

/* Read both matrices or none. Adapters of [in,out] weights have the same shapes: PEFT does not transpose them. */
static sh_rc read_pair(struct sh_hf_base *b, const struct sh_ckpt_index *index, int fd, const struct sh_ckpt_tensor *t,
                       struct sh_hf_pair *pair, int64_t *used)
{
    const struct sh_ckpt_entry *x = find_adapter(index, t, SH_PARAM_LORA_A),
                               *y = find_adapter(index, t, SH_PARAM_LORA_B);
    int64_t in, out;
    int m = t->ndim - 2; /* a matrix's first dimension: a stack of experts has one before it */
    bool in_out = m ? b->experts_in_out : b->w_in_out;
    if (!x && !y)
        return SH_OK;
    if (!x || !y || m < 0 || x->ndim != t->ndim || y->ndim != t->ndim ||
        (m && (x->dim[0] != t->dim[0] || y->dim[0] != t->dim[0])))
        return sh_fail(SH_E_DATA, "%s: %s has only one of its two adapters, or adapters of another kind", b->of,
                       t->name);
    in = t->dim[in_out ? m : m + 1];
    out = t->dim[in_out ? m + 1 : m];
    if (x->dim[m + 1] != in || y->dim[m] != out || x->dim[m] != y->dim[m + 1])
        return sh_fail(SH_E_DATA,
                       "%s: the adapters of %s are [%lld,%lld] and [%lld,%lld], which do not fit its %lld inputs and "
                       "%lld outputs",
                       b->of, t->name, (long long)x->dim[m], (long long)x->dim[m + 1], (long long)y->dim[m],
                       (long long)y->dim[m + 1], (long long)in, (long long)out);
    *pair = (struct sh_hf_pair){.rank = x->dim[m], .in = in, .out = out, .in_out = in_out};
    *used += 2;
    SH_TRY(read_tensor(b, index, fd, x, &pair->a));
    return read_tensor(b, index, fd, y, &pair->b);
}

/* Read a matrix that is in the checkpoint itself: that of labels. */
static sh_rc read_whole(struct sh_hf_base *b, const struct sh_ckpt_index *index, int fd, const struct sh_ckpt_tensor *t,
                        struct sh_hf_pair *pair, int64_t *used)
{
    int64_t at = sh_ckpt_index_find(index, t->name, 0);
    if (at < 0)
        return SH_OK;
    if (index->entry[at].elems != t->elems)
        return sh_fail(SH_E_DATA, "%s: %s has %lld elements, and that of this model %lld", b->of, t->name,
                       (long long)index->entry[at].elems, (long long)t->elems);
    ++*used;
    return read_tensor(b, index, fd, &index->entry[at], &pair->whole);
}

/* Every adapter must belong to a weight of this model, or the checkpoint is another model's. */
static sh_rc read_pairs(struct sh_hf_base *b, const struct sh_ckpt_index *index, int fd)
{
    int64_t used = 0;
    for (int i = 0; i < b->set->n_tensors; i++) {
        SH_TRY(read_pair(b, index, fd, &b->set->tensors[i], &b->pair[i], &used));
        SH_TRY(read_whole(b, index, fd, &b->set->tensors[i], &b->pair[i], &used));
    }
    if (used < index->n)
        return sh_fail(SH_E_DATA, "%s has %lld adapter tensors that fit no weight of this model", b->of,
                       (long long)(index->n - used));
    return SH_OK;
}

/* Read what the checkpoint says about its base, and all its adapters. */
static sh_rc read_adapters(struct sh_hf_base *b, const char *name, char **noted)
{
    struct sh_ckpt_index index = {0};
    int fd = -1;
    sh_rc rc;
    SH_TRY_OUT(sh_ckpt_index_read(b->of, &index));
    SH_TRY_OUT(sh_ckpt_index_state(&index, b->of, name, &b->state));
    SH_TRY_OUT(sh_ckpt_base_read(b->of, index.meta.base, &b->noted, noted));
    SH_TRY_OUT(sh_ckpt_index_open_data(&index, b->of, &fd));
    rc = read_pairs(b, &index, fd);
out:
    if (fd >= 0)
        close(fd);
    sh_ckpt_index_free(&index);
    return rc;
}

/* ---- the base ---- */

/* Read the small tensors, such as scales, of weights that are packed in the folder. */
static sh_rc read_packing(struct sh_hf_base *b)
{
    if (b->match.n_packed && !b->as_packed)
        return sh_fail(SH_E_USAGE,
                       "%s has its weights in four bits only; say --merge-base nf4, or give --base with a folder that "
                       "has all of them",
                       b->path);
    for (int i = 0; i < b->match.spread.n; i++)
        if (b->match.nf4[i])
            SH_TRY(sh_hf_nf4_read(b->match.nf4[i], b->path, &b->match.spread.part[i], &b->files));
    return SH_OK;
}

/* Whether the checkpoint has a matrix of labels of its own, so that the base needs none. */
static bool has_labels(const struct sh_hf_base *b)
{
    for (int i = 0; i < b->set->n_tensors; i++)
        if (b->pair[i].whole && b->set->tensors[i].role == SH_PARAM_HEAD)
            return true;
    return false;
}

/* A folder's files stay open while their blocks are read. */
static sh_rc open_folder(struct sh_hf_base *b, const char *family)
{
    SH_TRY(sh_st_index_read(b->path, &b->folder));
    SH_TRY(sh_hf_match(b->path, &b->folder, b->set, family, has_labels(b), &b->match));
    sh_hf_files_make(&b->files, b->path, &b->folder);
    SH_TRY(sh_hf_files_open_all(&b->files));
    return read_packing(b);
}

/* Tensors may be in any order in the file: each is found by name. */
static sh_rc open_checkpoint(struct sh_hf_base *b)
{
    SH_TRY(sh_ckpt_index_read(b->path, &b->checkpoint));
    b->place = sh_calloc((size_t)b->set->n_tensors + 1, sizeof *b->place);
    for (int i = 0; i < b->set->n_tensors; i++) {
        const struct sh_ckpt_tensor *t = &b->set->tensors[i];
        int64_t at = b->place[i] = sh_ckpt_index_find(&b->checkpoint, t->name, i);
        if (at < 0 || b->checkpoint.entry[at].elems != t->elems)
            return sh_fail(SH_E_DATA, "%s has no %s of this model; is it of another model?", b->path, t->name);
    }
    return sh_ckpt_index_open_data(&b->checkpoint, b->path, &b->checkpoint_fd);
}

/* Adapters make up for what packing has lost, so they belong to the packed base. */
static sh_rc check_packing(const struct sh_hf_base *b)
{
    if (b->as_packed && !b->packed)
        return sh_fail(SH_E_USAGE, "%s was trained on a base that was not packed; leave out --merge-base nf4", b->of);
    if (b->packed && !b->as_packed)
        sh_log_info("%s was trained on its base in four bits, and is merged with the base as its folder has it; "
                    "--merge-base nf4 merges it with the base that it was trained on",
                    b->of);
    return SH_OK;
}

/* The scale is that of the run: alpha / rank, or alpha / sqrt(rank) with use_rslora. The caller must close the base
 * even after a failure. */
sh_rc sh_hf_base_open(const char *of, const char *state, const char *path, bool as_packed, const struct sh_config *cfg,
                      const struct sh_ckpt_set *set, struct sh_hf_base *out)
{
    const struct sh_family *f = sh_family_of(cfg->model.family);
    char *noted = NULL;
    *out = (struct sh_hf_base){.of = of,
                               .set = set,
                               .checkpoint_fd = -1,
                               .w_in_out = f->w_in_out,
                               .experts_in_out = f->experts_in_out,
                               .as_packed = as_packed,
                               .packed = cfg->lora.quantize_base == SH_QUANTIZE_NF4,
                               .rounded = cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16,
                               .pair = sh_calloc((size_t)set->n_tensors + 1, sizeof *out->pair)};
    out->scale = cfg->lora.alpha / (cfg->lora.use_rslora ? sqrt(cfg->lora.rank) : (double)cfg->lora.rank);
    sh_rc rc = check_packing(out);
    if (rc == SH_OK)
        rc = read_adapters(out, state, &noted);
    out->path = path ? sh_strdup(path) : noted;
    if (path)
        free(noted);
    if (rc == SH_OK)
        rc = sh_is_folder(out->path) ? open_folder(out, f->name) : open_checkpoint(out);
    return rc;
}

/* Also works for a base that was only partly opened. */
void sh_hf_base_close(struct sh_hf_base *b)
{
    sh_hf_files_close(&b->files);
    for (int i = 0; b->pair && i < b->set->n_tensors; i++) {
        free(b->pair[i].a);
        free(b->pair[i].b);
        free(b->pair[i].whole);
    }
    if (b->checkpoint_fd >= 0)
        close(b->checkpoint_fd);
    free(b->pair);
    free(b->place);
    free(b->path);
    sh_hf_match_free(&b->match);
    sh_st_index_free(&b->folder);
    sh_ckpt_index_free(&b->checkpoint);
}

/* ---- blocks ---- */

/* How many of the n elements from `first` on are in one form: those of one part of the folder, since an expert may be
 * packed there and another one not.
 *   packed  out  the form of that part; NULL: it is not packed, or the base is a checkpoint
 *   into    out  where in the part they begin */
static int64_t count_alike(const struct sh_hf_base *b, int tensor, int64_t first, int64_t n,
                           const struct sh_hf_nf4 **packed, int64_t *into)
{
    int64_t rest;
    int k;
    *packed = NULL;
    if (b->match.n_packed == 0)
        return n;
    k = sh_hf_spread_part(&b->match.spread, tensor, first, into);
    *packed = b->match.nf4[k];
    rest = b->match.spread.part[k].elems - *into;
    return rest < n ? rest : n;
}

/* Read and unpack elements [first, first + n) of a part that is packed in the folder. They are whole packed blocks,
 * because checkpoint blocks are, and the matrices of experts. */
static sh_rc read_unpacked(struct sh_hf_base *b, const struct sh_hf_nf4 *w, int64_t first, int64_t n, float *out)
{
    const struct {
        const struct sh_st_entry *e;
        enum sh_move_type type;
    } halves[] = {{w->codes, SH_MOVE_CODES}, {w->scales, w->nested ? SH_MOVE_NESTED : SH_MOVE_SCALES}};
    int64_t block = first / SH_NF4_ELEMS, blocks = n / SH_NF4_ELEMS;
    unsigned char *packed = sh_calloc((size_t)blocks, 2 * SH_NF4_BLOCK_BYTES),
                  *bytes = packed + blocks * SH_NF4_BLOCK_BYTES;
    sh_rc rc = SH_OK;
    for (int i = 0; i < 2 && rc == SH_OK; i++) {
        int size = sh_move_type_bytes(halves[i].type);
        rc = sh_hf_files_read(&b->files, halves[i].e, block * size, blocks * size, bytes);
        if (rc == SH_OK && sh_move_join(halves[i].type, bytes, block, blocks, &w->table,
                                        (struct sh_floats){.packed = packed}) < blocks)
            rc = sh_fail(SH_E_DATA, "%s: %s has a number that is not finite", b->path, halves[i].e->name);
    }
    sh_nf4_unpack(packed, blocks, out);
    free(packed);
    return rc;
}

/* Several threads read blocks at once, and all add to one checksum, which does not depend on the order. */
static sh_rc read_plain(struct sh_hf_base *b, int tensor, int64_t first, int64_t n, float *out)
{
    if (b->place)
        return sh_ckpt_index_read_range(&b->checkpoint, b->checkpoint_fd, b->path, SH_CKPT_MODEL,
                                        &b->checkpoint.entry[b->place[tensor]], first, n, out);
    return sh_hf_match_read(&b->match, &b->files, tensor, first, n, "", out);
}

/* Add the numbers to the checksum in the form in which training used them, packed or rounded; x [n] is changed to that
 * form if the caller wants it. Weights that are packed in the folder already are in that form: packing the unpacked
 * numbers once more need not reproduce them.
 *   there  in  they are */
static void add_to_sum(struct sh_hf_base *b, int tensor, int64_t first, int64_t n, bool there, float *x)
{
    bool packed = b->packed && b->set->packed[tensor] && !there;
    uint64_t sum = 0;
    for (int64_t at = 0, m; at < n; at += m, x += m) {
        float rounded[PIECE];
        sh_bf16 room[PIECE];
        struct sh_floats whole = {.whole = x}, kept = {.high = packed ? NULL : room};
        m = n - at < PIECE ? n - at : PIECE;
        if (packed || (b->rounded && !there)) {
            kept.packed = packed ? (unsigned char *)room : NULL;
            sh_floats_put(kept, m, x);
            sh_floats_get(kept, m, rounded);
            whole.whole = rounded;
        }
        sum += sh_mixsum(whole, m, sh_ckpt_base_place(b->set->tensors[tensor].name, first + at));
        if (packed && b->as_packed)
            memcpy(x, rounded, (size_t)m * sizeof *x);
    }
    __atomic_fetch_add(&b->sum, sum, __ATOMIC_RELAXED);
}

/* Compute W + scale B A in double and round it to float32 once. The rows of a stack are those of all experts one after the
 * other; in [in,out] matrices rows are inputs. */
static void add_product(const struct sh_hf_base *b, const struct sh_hf_pair *p, int64_t first, int64_t n, float *x)
{
    int64_t rows = p->in_out ? p->in : p->out, columns = p->in_out ? p->out : p->in;
    for (int64_t k = 0; k < n; k++) {
        int64_t row = (first + k) / columns, column = (first + k) % columns;
        int64_t expert = row / rows, o = p->in_out ? column : row % rows, i = p->in_out ? row % rows : column;
        const float *up = p->b + (expert * p->out + o) * p->rank, *down = p->a + expert * p->rank * p->in + i;
        double sum = 0;
        for (int64_t r = 0; r < p->rank; r++)
            sum += (double)up[r] * (double)down[r * p->in];
        x[k] = (float)((double)x[k] + b->scale * sum);
    }
}

/* Updates the checksum first, which is of the base alone; then adds the adapters' product. What was trained whole does
 * not count in the checksum, as nothing of the base's is left in it. */
sh_rc sh_hf_base_read(struct sh_hf_base *b, int tensor, int64_t first, int64_t n, float *out)
{
    if (b->pair[tensor].whole) {
        memcpy(out, b->pair[tensor].whole + first, (size_t)n * sizeof *out);
        return SH_OK;
    }
    for (int64_t at = 0, into, m; at < n; at += m) {
        const struct sh_hf_nf4 *w;
        m = count_alike(b, tensor, first + at, n - at, &w, &into);
        SH_TRY(w ? read_unpacked(b, w, into, m, out + at) : read_plain(b, tensor, first + at, m, out + at));
        add_to_sum(b, tensor, first + at, m, w != NULL, out + at);
    }
    if (b->pair[tensor].a)
        add_product(b, &b->pair[tensor], first, n, out);
    return SH_OK;
}

/* Call after everything has been read: the checksum is of the whole base. */
sh_rc sh_hf_base_check(const struct sh_hf_base *b)
{
    if (b->sum == b->noted)
        return SH_OK;
    return sh_fail(SH_E_DATA,
                   "%s was trained on numbers other than those in %s; give --base with the folder or checkpoint that "
                   "it began with",
                   b->of, b->path);
}
