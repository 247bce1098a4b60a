#include "io/foreign/hf/spread.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define ENDING ".weight"

/* The row for a tensor of this name, and the length of what comes before the module; NULL: the folder has the same
 * tensor. */
static const struct sh_hf_form *form_of(const struct sh_hf_family *f, const char *name, int *before)
{
    size_t n = strlen(name), ending = strlen(ENDING);
    for (const struct sh_hf_form *row = f->form; row < f->form + SH_HF_FORMS && row->here; row++) {
        size_t module = strlen(row->here);
        if (n <= module + ending || strcmp(name + n - ending, ENDING) != 0)
            continue;
        const char *at = name + n - ending - module;
        if (at[-1] == '.' && strncmp(at, row->here, module) == 0) {
            *before = (int)(at - name);
            return row;
        }
    }
    return NULL;
}

/* How many matrices an expert has; 0: the row only renames. */
static int matrices_of(const struct sh_hf_form *row)
{
    return strchr(row->there[0], '#') ? 1 + (row->there[1] != NULL) : 0;
}

/* The same tensor under another name, which the part owns. */
static struct sh_ckpt_tensor renamed(const struct sh_ckpt_tensor *t, char *name)
{
    struct sh_ckpt_tensor part = *t;
    part.name = name;
    return part;
}

/* The name in a folder whose names have another prefix than the model's; one may have been saved without that. Takes
 * `name`; the caller frees the result. */
static char *name_there(const struct sh_hf_family *f, char *name, const struct sh_hf_look *look)
{
    size_t n = strlen(f->prefix);
    char *there = f->there && strncmp(name, f->prefix, n) == 0 ? sh_strfmt("%s%s", f->there, name + n) : NULL;
    bool is = there && (!look || look->has(look->arg, there));

    free(is ? name : there);
    return is ? there : name;
}

/* Matrix number k of [E,O,I]: "block.3." "experts.#.up_proj" -> "block.3.experts.1.up_proj.weight" [O / matrices,I] */
static struct sh_ckpt_tensor matrix(const struct sh_hf_family *f, const struct sh_ckpt_tensor *t,
                                    const struct sh_hf_form *row, int before, const struct sh_hf_look *look, int k)
{
    int matrices = matrices_of(row);
    const char *module = row->there[k % matrices], *number = strchr(module, '#');
    struct sh_ckpt_tensor part = {.ndim = 2, .dim = {t->dim[1] / matrices, t->dim[2]}, .role = t->role};
    part.elems = part.dim[0] * part.dim[1];
    part.name = name_there(
        f, sh_strfmt("%.*s%.*s%d%s" ENDING, before, t->name, (int)(number - module), module, k / matrices, number + 1),
        look);
    return part;
}

/* How many matrices a tensor is in a folder; 0: it is not cut. A damaged checkpoint may have any shape. */
static int64_t count_matrices(const struct sh_ckpt_tensor *t, const struct sh_hf_form *row)
{
    int matrices = matrices_of(row);
    bool fits = t->ndim == 3 && t->elems > 0 && t->dim[0] < 1 << 20;
    return matrices && fits && t->dim[1] % matrices == 0 ? matrices * t->dim[0] : 0;
}

/* transformers keeps the tensor in memory as it is here, and saves it so if asked to (save_original_format=False). */
static sh_rc find_kept(const struct sh_hf_family *f, const struct sh_ckpt_tensor *t, const struct sh_hf_form *row,
                       int before, const struct sh_hf_look *look, char **kept)
{
    char *name = look ? name_there(f, sh_strfmt("%.*s%s", before, t->name, row->kept), look) : NULL;
    sh_rc rc = SH_OK;
    *kept = NULL;
    if (name && look->has(look->arg, name) && matrices_of(row)) {
        struct sh_ckpt_tensor other = matrix(f, t, row, before, look, 0);
        if (look->has(look->arg, other.name))
            rc = sh_fail(SH_E_DATA, "%s: it has the same experts twice, in %s and in %s and its like; delete one form",
                         look->folder, name, other.name);
        free((void *)(uintptr_t)other.name);
    }
    if (rc == SH_OK && name && look->has(look->arg, name))
        *kept = name;
    else
        free(name);
    return rc;
}

static struct sh_ckpt_tensor *add(struct sh_hf_spread *s, int *cap)
{
    s->part = sh_grow(s->part, s->n, cap, sizeof *s->part);
    return &s->part[s->n++];
}

static sh_rc add_parts(const struct sh_hf_family *f, const struct sh_ckpt_tensor *t, const struct sh_hf_look *look,
                       struct sh_hf_spread *s, int *cap)
{
    int before;
    const struct sh_hf_form *row = form_of(f, t->name, &before);
    char *kept = NULL;
    if (row)
        SH_TRY(find_kept(f, t, row, before, look, &kept));
    int64_t n = row && !kept ? count_matrices(t, row) : 0;
    for (int64_t k = 0; k < n; k++)
        *add(s, cap) = matrix(f, t, row, before, look, (int)k);
    if (n > 0)
        return SH_OK;
    if (row && !kept && !matrices_of(row))
        kept = sh_strfmt("%.*s%s" ENDING, before, t->name, row->there[0]);
    *add(s, cap) = renamed(t, kept ? kept : name_there(f, sh_strdup(t->name), look));
    return SH_OK;
}

sh_rc sh_hf_spread_make(const struct sh_hf_family *f, const struct sh_ckpt_set *set, const struct sh_hf_look *look,
                        struct sh_hf_spread *out)
{
    struct sh_hf_spread s = {.first = sh_calloc((size_t)set->n_tensors + 1, sizeof *s.first)};
    int cap = 0;
    sh_rc rc = SH_OK;
    for (int i = 0; i < set->n_tensors && rc == SH_OK; i++) {
        rc = add_parts(f, &set->tensors[i], look, &s, &cap);
        s.first[i + 1] = s.n;
    }
    if (rc == SH_OK)
        *out = s;
    else
        sh_hf_spread_free(&s);
    return rc;
}

void sh_hf_spread_free(struct sh_hf_spread *s)
{
    for (int i = 0; i < s->n; i++)
        free((void *)(uintptr_t)s->part[i].name);
    free(s->part);
    free(s->first);
    *s = (struct sh_hf_spread){0};
}

int sh_hf_spread_part(const struct sh_hf_spread *s, int tensor, int64_t at, int64_t *into)
{
    int64_t elems = s->part[s->first[tensor]].elems;
    *into = at % elems;
    return s->first[tensor] + (int)(at / elems);
}
