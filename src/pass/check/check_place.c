#include "src/pass/check/check.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* Compares bytes, since a view may have another shape than its base, but lies within it. */
sh_rc sh_check_views(const struct sh_program *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sh_tensor *v = &p->tensors[i];
        int64_t begin = v->base_elems * sh_dtype_bytes(v->dtype);

        if (v->base != SH_NONE && (begin < 0 || begin + sh_tensor_bytes(v) > sh_tensor_bytes(&p->tensors[v->base])))
            return sh_fail(SH_E_BUG, "program check: view %s extends beyond %s", v->name, p->tensors[v->base].name);
    }
    return SH_OK;
}

/* Tensors of a tier lie in order, so `end` is where the next one may begin; a file moves whole pages. */
sh_rc sh_check_homes(const struct sh_program *p)
{
    int64_t end[SH_TIERS_MAX] = {0};

    for (int i = 0; i < p->n_tensors; i++) {
        const struct sh_tensor *t = &p->tensors[i];
        bool file = p->tiers[t->tier].kind == SH_TIER_FILE;

        if (!t->tier || t->base != SH_NONE)
            continue;
        if (t->offset_bytes < end[t->tier] || t->offset_bytes + sh_tensor_bytes(t) > p->tiers[t->tier].bytes)
            return sh_fail(SH_E_BUG, "program check: %s overlaps another one, or lies outside its tier", t->name);
        if (file && (t->offset_bytes % SH_FILE_PAGE || sh_tensor_bytes(t) % SH_FILE_PAGE))
            return sh_fail(SH_E_BUG, "program check: %s does not fill whole pages of its file", t->name);
        end[t->tier] = t->offset_bytes + sh_tensor_bytes(t);
    }
    return SH_OK;
}

/* The two ends of a storage, as indices into the sweep's offsets. */
struct ends {
    int begin, end;
};

/* The sweep goes through the section's operations, two moments each, and keeps track of the storage that is alive. How
 * much of it overlaps [begin, end) is the number that begin before `end`, less the number that end at `begin` or
 * before; two trees of sums over all offsets give both. */
struct sweep {
    const struct sh_check *c;
    int *list, n;         /* storage in use, by offset */
    struct sh_life *life; /* [n] in moments; life[i] belongs to list[i] */
    int64_t *offsets;     /* ascending: where storage begins or ends */
    int n_offsets;
    struct ends *ends_at; /* [n] ends_at[i] belongs to list[i] */
    int *begins, *ends;   /* [n_offsets + 1] Fenwick trees of the storage that is alive */
};

static int by_offset(const void *a, const void *b, void *tensors)
{
    const struct sh_tensor *t = tensors;
    int64_t x = t[*(const int *)a].offset_bytes, y = t[*(const int *)b].offset_bytes;

    return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t begin_of(const struct sweep *s, int i)
{
    return s->c->p->tensors[s->list[i]].offset_bytes;
}

static int64_t end_of(const struct sweep *s, int i)
{
    return begin_of(s, i) + sh_tensor_bytes(&s->c->p->tensors[s->list[i]]);
}

/* Storage in use in the section, by offset. */
static void list_storage(struct sweep *s)
{
    const struct sh_program *p = s->c->p;

    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].base == SH_NONE && p->tensors[t].tier == 0 && sh_tensor_bytes(&p->tensors[t]) &&
            (p->tensors[t].persistent || s->c->life[t].first != SH_NONE))
            s->list[s->n++] = t;
    qsort_r(s->list, (size_t)s->n, sizeof *s->list, by_offset, p->tensors);
    for (int i = 0; i < s->n; i++) {
        s->offsets[2 * i] = begin_of(s, i);
        s->offsets[2 * i + 1] = end_of(s, i);
    }
    qsort(s->offsets, 2 * (size_t)s->n, sizeof *s->offsets, by_value);
    for (int i = 0; i < 2 * s->n; i++)
        if (!i || s->offsets[i] != s->offsets[i - 1])
            s->offsets[s->n_offsets++] = s->offsets[i];
}

/* Binary search; the offset is in the list. */
static int place_of(const struct sweep *s, int64_t offset)
{
    int low = 0, high = s->n_offsets;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (s->offsets[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void find_ends(struct sweep *s)
{
    for (int i = 0; i < s->n; i++)
        s->ends_at[i] = (struct ends){place_of(s, begin_of(s, i)), place_of(s, end_of(s, i))};
}

/* Storage that lives between sections lives through all of this one. An operation that works in place has its input in
 * its first moment and its output in the second, so that they may share memory; everything else that it touches is
 * alive in both. */
static void find_moments(struct sweep *s, int *at)
{
    const struct sh_check *c = s->c;

    for (int i = 0; i < s->n; i++) {
        int t = s->list[i];

        at[t] = i;
        s->life[i] = c->p->tensors[t].persistent ? (struct sh_life){0, 2 * c->section->n_ops}
                                                 : (struct sh_life){2 * c->life[t].first, 2 * c->life[t].last + 1};
    }
    for (int i = 0; i < c->section->n_ops; i++) {
        int in, out;

        if (sh_lifetime_inplace(c->p, c->section, c->life, i, &in, &out) && sh_tensor_bytes(&c->p->tensors[in])) {
            s->life[at[in]].last = 2 * i;
            s->life[at[out]].first = 2 * i + 1;
        }
    }
}

/* Add `by` at a place. In a Fenwick tree node i holds the sum of the i & -i entries up to i, so both this and
 * sum_below() take log n steps. */
static void change(const struct sweep *s, int *tree, int place, int by)
{
    for (int i = place + 1; i <= s->n_offsets; i += i & -i)
        tree[i] += by;
}

/* The sum over all places below this one. */
static int sum_below(const int *tree, int place)
{
    int sum = 0;

    for (int i = place; i > 0; i -= i & -i)
        sum += tree[i];
    return sum;
}

/* Storage i starts to live (by 1) or ends (by -1). */
static void change_alive(struct sweep *s, int i, int by)
{
    change(s, s->begins, s->ends_at[i].begin, by);
    change(s, s->ends, s->ends_at[i].end, by);
}

/* Whether anything alive overlaps [begin, end) of storage i: begins before its end, less ends at or before its begin. i
 * itself is not in the trees yet. */
static bool is_taken(const struct sweep *s, int i)
{
    return sum_below(s->begins, s->ends_at[i].end) > sum_below(s->ends, s->ends_at[i].begin + 1);
}

/* Name the two tensors: this is seldom needed, so the search may be slow. */
static sh_rc overlap(const struct sweep *s, int i)
{
    for (int k = 0; k < s->n; k++)
        if (k != i && s->life[k].first <= s->life[i].last && s->life[i].first <= s->life[k].last &&
            begin_of(s, k) < end_of(s, i) && begin_of(s, i) < end_of(s, k))
            return sh_fail(SH_E_BUG, "program check: %s: %s and %s share memory while both are alive",
                           sh_section_name(s->c->section->kind), s->c->p->tensors[s->list[k < i ? k : i]].name,
                           s->c->p->tensors[s->list[k < i ? i : k]].name);
    return sh_fail(SH_E_BUG, "program check: %s shares memory", s->c->p->tensors[s->list[i]].name);
}

/* Memory on the device that a file reads or writes must be page-aligned too. */
static sh_rc check_pages(const struct sh_check *c)
{
    const struct sh_program *p = c->p;

    for (int i = 0; i < c->section->n_ops; i++) {
        const struct sh_op *op = sh_check_op(c, i);
        bool fetch = op->kind == SH_OP_FETCH;
        int home = fetch ? op->in[0] : op->out[0], copy = fetch ? op->out[0] : op->in[0];

        if (sh_op_info(op->kind)->moves && p->tiers[p->tensors[home].tier].kind == SH_TIER_FILE &&
            p->tensors[copy].offset_bytes % SH_FILE_PAGE)
            return sh_check_broken(c, i, "its place in memory is not page-aligned");
    }
    return SH_OK;
}

/* Runs before the sweep, whose trees know only offsets that are in the list. */
static sh_rc check_inside(const struct sweep *s)
{
    for (int i = 0; i < s->n; i++)
        if (begin_of(s, i) < 0 || end_of(s, i) > s->c->p->own_bytes + sh_program_segment_bytes(&s->c->p->segment))
            return sh_fail(SH_E_BUG, "program check: %s lies outside of the arena", s->c->p->tensors[s->list[i]].name);
    return SH_OK;
}

/* head[m] is the first storage in moment m, next[i] the one after i: linked lists of what begins or ends in each
 * moment. */
static int *by_moment(const struct sweep *s, bool first, int *next)
{
    int moments = 2 * s->c->section->n_ops + 1, *head = sh_calloc((size_t)moments, sizeof *head);

    for (int m = 0; m < moments; m++)
        head[m] = SH_NONE;
    for (int i = s->n - 1; i >= 0; i--) {
        int at = first ? s->life[i].first : s->life[i].last;

        next[i] = head[at];
        head[at] = i;
    }
    return head;
}

/* At each moment, storage that ended before it leaves first; then storage that begins is compared with all that is
 * left, and enters. */
static sh_rc go_through(struct sweep *s)
{
    int *next = sh_calloc(2 * (size_t)s->n + 1, sizeof *next), *next_end = next + s->n;
    int *begin = by_moment(s, true, next), *end = by_moment(s, false, next_end);
    sh_rc rc = SH_OK;

    for (int m = 0; m <= 2 * s->c->section->n_ops && rc == SH_OK; m++) {
        for (int i = m ? end[m - 1] : SH_NONE; i != SH_NONE; i = next_end[i])
            change_alive(s, i, -1);
        for (int i = begin[m]; i != SH_NONE && rc == SH_OK; i = next[i]) {
            rc = is_taken(s, i) ? overlap(s, i) : SH_OK;
            change_alive(s, i, 1);
        }
    }
    free(next);
    free(begin);
    free(end);
    return rc;
}

/* O(n log n) in the number of tensors; comparing all pairs took seconds for large models. */
sh_rc sh_check_overlap(const struct sh_check *c)
{
    size_t n = (size_t)c->p->n_tensors + 1;
    struct sweep s = {.c = c,
                      .list = sh_calloc(n, sizeof *s.list),
                      .life = sh_calloc(n, sizeof *s.life),
                      .offsets = sh_calloc(2 * n, sizeof *s.offsets),
                      .ends_at = sh_calloc(n, sizeof *s.ends_at)};
    int *at = sh_calloc(n, sizeof *at);
    sh_rc rc;

    list_storage(&s);
    find_ends(&s);
    find_moments(&s, at);
    s.begins = sh_calloc((size_t)s.n_offsets + 1, sizeof *s.begins);
    s.ends = sh_calloc((size_t)s.n_offsets + 1, sizeof *s.ends);
    rc = check_inside(&s);
    if (rc == SH_OK)
        rc = check_pages(c);
    if (rc == SH_OK)
        rc = go_through(&s);
    free(s.list);
    free(s.life);
    free(s.offsets);
    free(s.ends_at);
    free(s.begins);
    free(s.ends);
    free(at);
    return rc;
}
