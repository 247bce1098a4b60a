#include "src/pass/check.h"

#include "src/base/mem.h"

#include <limits.h>
#include <stdlib.h>

sh_rc sh_check_views(const struct sh_program *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sh_tensor *v = &p->tensors[i];
        int64_t begin = v->base_elems * sh_dtype_bytes(v->dtype);

        if (v->base != SH_NONE && (begin < 0 || begin + sh_tensor_bytes(v) > sh_tensor_bytes(&p->tensors[v->base])))
            return sh_fail(SH_E_BUG, "program check: view %s leaves %s", v->name, p->tensors[v->base].name);
    }
    return SH_OK;
}

/* What lives between sections lives in all of them. */
static struct sh_life life_of(const struct sh_check *c, int t)
{
    return c->p->tensors[t].persistent ? (struct sh_life){0, INT_MAX} : c->life[t];
}

/* Two tensors in one place: allowed only when their lives do not meet, or meet in one operation that works in place. */
static bool may_share(const struct sh_check *c, int a, int b)
{
    struct sh_life x = life_of(c, a), y = life_of(c, b);
    int in, out;

    if (x.first > y.first)
        return may_share(c, b, a);
    if (x.last < y.first)
        return true;
    return x.last == y.first && sh_lifetime_inplace(c->p, c->section, c->life, x.last, &in, &out) && in == a &&
           out == b;
}

static int by_offset(const void *a, const void *b, void *tensors)
{
    const struct sh_tensor *t = tensors;
    int64_t x = t[*(const int *)a].offset_bytes, y = t[*(const int *)b].offset_bytes;

    return (x > y) - (x < y);
}

/* Storage in use in the section, by offset; returns how many. */
static int list_storage(const struct sh_check *c, int *list)
{
    const struct sh_program *p = c->p;
    int n = 0;

    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].base == SH_NONE && !sh_tensor_on_host(p, t) && sh_tensor_bytes(&p->tensors[t]) && life_of(c, t).first != SH_NONE)
            list[n++] = t;
    qsort_r(list, (size_t)n, sizeof *list, by_offset, p->tensors);
    return n;
}

static sh_rc check_pairs(const struct sh_check *c, const int *list, int n)
{
    const struct sh_tensor *t = c->p->tensors;

    for (int i = 0; i < n; i++) {
        int64_t end = t[list[i]].offset_bytes + sh_tensor_bytes(&t[list[i]]);

        if (t[list[i]].offset_bytes < 0 || end > c->p->own_bytes + sh_segment_bytes(&c->p->segment))
            return sh_fail(SH_E_BUG, "program check: %s lies outside of the arena", t[list[i]].name);
        for (int k = i + 1; k < n && t[list[k]].offset_bytes < end; k++)
            if (!may_share(c, list[i], list[k]))
                return sh_fail(SH_E_BUG, "program check: %s: %s and %s share memory while both live",
                               sh_section_name(c->section->kind), t[list[i]].name, t[list[k]].name);
    }
    return SH_OK;
}

sh_rc sh_check_overlap(const struct sh_check *c)
{
    int *list = sh_calloc((size_t)c->p->n_tensors + 1, sizeof *list);
    sh_rc rc = check_pairs(c, list, list_storage(c, list));

    free(list);
    return rc;
}
