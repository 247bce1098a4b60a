#include "src/run/save/map.h"

#include "kernels/states.h"
#include "src/base/mem.h"
#include "src/program/saved.h"
#include "src/run/run.h"

#include <stdlib.h>

/* ---- making it ---- */

bool sh_map_coded(const struct sh_program *p, int k)
{
    return k > 0 && p->state[k - 1].dtype == SH_U8;
}

/* How states are stored, but for those that are wide. Parameters: in bfloat16 as compute copy and remainder, in float16 as separate masters; frozen
 * ones as the compute copy alone, or packed. A state of the optimizer: whole, upper halves alone, or in codes. */
static struct sh_floats stored(const struct sh_program *p, const struct sh_unit *u, int k, void *first, void *low)
{
    if (k == 0 && u->packed)
        return (struct sh_floats){.packed = first};
    if (sh_map_coded(p, k))
        return (struct sh_floats){.coded = first, .law = sh_state_law(k - 1)};
    if ((k == 0 ? p->tensors[u->compute].dtype : p->state[k - 1].dtype) == SH_BF16)
        return (struct sh_floats){.high = first, .low = low};
    return (struct sh_floats){.whole = first};
}

static bool has_low(const struct sh_program *p, const struct sh_unit *u, int k)
{
    return k == 0 && u->trainable && p->tensors[u->compute].dtype == SH_BF16;
}

struct sh_floats sh_map_laid_out(const struct sh_program *p, int unit, int k, void *memory, int64_t n)
{
    const struct sh_unit *u = &p->units[unit];

    if (sh_map_coded(p, k))
        return (struct sh_floats){.whole = memory};
    return stored(p, u, k, memory, has_low(p, u, k) ? (sh_bf16 *)memory + n : NULL);
}

/* The tensor of the device that holds state k of a unit, the upper halves if it is in halves. */
static int tensor_of(const struct sh_unit *u, int k)
{
    return k > 0 ? u->state[k - 1] : u->master == SH_NONE ? u->compute : u->master;
}

/* The view that shows where in the extent of a slice state k lies, or its lower halves; SH_NONE: not there. */
static int view_of(const struct sh_slice *s, int k)
{
    return k > 0 ? s->state[k - 1] : s->remainder;
}

int sh_map_state_at(const struct sh_program *p, int unit, int k)
{
    bool rows = k == 1 + p->n_states;

    return p->units[unit].of_rows != rows ? SH_NONE : rows ? 0 : k;
}

/* Whether state k has only what comes before the unit's `others`. */
static bool is_beginning(const struct sh_program *p, const struct sh_unit *u, int k)
{
    return k > 0 && u->trainable && u->others < u->elems && p->tensors[u->state[k - 1]].dim[0] < u->chunk;
}

bool sh_map_lacks(const struct sh_program *p, int unit, int k, int64_t first)
{
    return is_beginning(p, &p->units[unit], k) && first >= p->units[unit].others;
}

/* Bytes of n elements of state k in a slice. */
static int64_t bytes_before(const struct sh_program *p, int k, int64_t n)
{
    return k == 0 ? n * sh_dtype_bytes(SH_I16) : sh_program_state_bytes(p, k - 1, n);
}

/* State k of a row, whose first element is element `from` of the chunk. */
static void place(struct sh_map_row *row, int k, const struct sh_program *p, struct sh_exec *exec, int64_t from)
{
    const struct sh_unit *u = &p->units[row->here.unit];
    int view = row->slice == SH_NONE ? SH_NONE : view_of(&p->slices[row->slice], k);
    struct sh_floats f = {0};

    if (sh_map_coded(p, k) && row->here.range.begin < u->wide) {
        row->here.state[k] = (struct sh_floats){.whole = (float *)sh_exec_data(exec, u->wide_state[k - 1]) + from};
        return;
    }
    if (view != SH_NONE) {
        row->far |= 1u << k;
        row->at[k] = p->tensors[view].base_elems * sh_dtype_bytes(p->tensors[view].dtype) +
                     bytes_before(p, k, from - p->slices[row->slice].first);
    }
    if (k == 0 || (view == SH_NONE && !sh_map_lacks(p, row->here.unit, k, row->here.range.begin)))
        f = stored(p, u, k, sh_exec_data(exec, tensor_of(u, k)),
                   view == SH_NONE && has_low(p, u, k) ? sh_exec_data(exec, u->remainder) : NULL);
    row->here.state[k] = sh_floats_at(f, from);
}

/* Add elements [from, from + n) of the chunk, as far as they are owned. */
static void add_row(struct sh_map *map, const struct sh_program *p, struct sh_exec *exec, int unit, int64_t from,
                    int64_t n, int slice)
{
    struct sh_map_unit *m = &map->unit[unit];
    struct sh_map_row *row = &map->row[map->n_rows];
    struct sh_range all = {m->owned.begin + from, m->owned.begin + from + n};

    *row = (struct sh_map_row){.here = {.unit = unit, .range = sh_layout_intersect(m->owned, all)}, .slice = slice};
    if (row->here.range.begin == row->here.range.end)
        return;
    for (int k = 0; k < m->n_states; k++)
        place(row, k, p, exec, from);
    m->far |= row->far;
    map->n_rows++;
    m->n_rows++;
}

/* Elements [from, from + n) of the chunk, in two rows if the first of them have states that are wide, or all states. */
static void add_rows(struct sh_map *map, const struct sh_program *p, struct sh_exec *exec, int unit, int64_t from,
                     int64_t n, int slice)
{
    const struct sh_unit *u = &p->units[unit];
    int64_t most = (u->wide ? u->wide : u->others) - map->unit[unit].owned.begin - from;
    int64_t first = !u->trainable || most > n ? n : most > 0 ? most : 0;

    add_row(map, p, exec, unit, from, first, slice);
    add_row(map, p, exec, unit, from + first, n - first, slice);
}

/* The elements of what a rank writes that have state k. */
static int64_t written_of(const struct sh_program *p, const struct sh_unit *u, struct sh_range written, int k)
{
    int64_t n = written.end - written.begin, most = u->others - written.begin;

    if (is_beginning(p, u, k) && most < n)
        n = most > 0 ? most : 0;
    return n;
}

/* Each state has only the part that this rank writes. They lie end to end, with room for an even number of elements, so
 * that four bytes may follow two. */
static void add_copy(struct sh_map_unit *m, const struct sh_program *p, struct sh_exec *exec, int unit)
{
    char *at;

    if (p->units[unit].snapshot == SH_NONE)
        return;
    at = sh_exec_data(exec, p->units[unit].snapshot);
    for (int k = 0; k < m->n_states; k++) {
        int64_t n = m->copied[k] = written_of(p, &p->units[unit], m->written, k);

        m->copy[k] = sh_map_laid_out(p, unit, k, at, n);
        at += (n + n % 2) * (k == 0 || sh_map_coded(p, k) ? 4 : sh_dtype_bytes(p->state[k - 1].dtype));
    }
}

/* The shard axis splits a unit; all replicas hold the same, and share the work of writing it. */
static void add_unit(struct sh_map *map, const struct sh_program *p, const struct sh_mesh_shape *shape,
                     struct sh_exec *exec, int unit)
{
    const struct sh_unit *u = &p->units[unit];
    struct sh_map_unit *m = &map->unit[unit];

    m->owned = sh_program_owned(p, u, shape);
    m->written = sh_layout_split(m->owned, sh_group_size(shape, u->replicate), sh_group_index(shape, u->replicate));
    m->n_states = u->trainable && !u->of_rows ? map->n_states : 1;
    m->first_row = map->n_rows;
    add_rows(map, p, exec, unit, 0, u->n_slices ? u->held : u->chunk, SH_NONE);
    for (int i = u->first_slice; i < u->first_slice + u->n_slices; i++)
        add_rows(map, p, exec, unit, p->slices[i].first, p->slices[i].n, i);
    add_copy(m, p, exec, unit);
}

struct sh_map *sh_map_make(const struct sh_program *p, const struct sh_mesh_shape *shape, struct sh_exec *exec)
{
    struct sh_map *map = sh_calloc(1, sizeof *map);

    map->n_states = 1 + p->n_states;
    map->name[0] = "parameters";
    for (int k = 0; k < p->n_states; k++)
        map->name[1 + k] = p->state[k].name;
    map->unit = sh_calloc((size_t)p->n_units, sizeof *map->unit);
    map->row = sh_calloc((size_t)(3 * p->n_units + p->n_slices) + 1, sizeof *map->row);
    for (int i = 0; i < p->n_units; i++)
        add_unit(map, p, shape, exec, i);
    return map;
}

void sh_map_free(struct sh_map *map)
{
    if (!map)
        return;
    free(map->unit);
    free(map->row);
    free(map);
}

/* ---- asking it ---- */

struct sh_range sh_map_cut(struct sh_range range, const struct sh_param *param)
{
    return sh_layout_intersect(range, (struct sh_range){param->unit_elems, param->unit_elems + param->elems});
}

struct sh_floats sh_map_state(const struct sh_map *map, int unit, int k, int64_t first)
{
    const struct sh_map_unit *m = &map->unit[unit];
    const struct sh_map_row *row = &map->row[m->first_row], *last = row + m->n_rows - 1;
    const struct sh_map_stretch *s;

    if (m->far >> k & 1u || m->n_rows == 0)
        sh_stop(sh_fail(SH_E_BUG, "%s of unit %d do not lie in memory as a whole", map->name[k], unit));
    while (row < last && first >= row->here.range.end)
        row++;
    s = &row->here;
    return sh_floats_at(s->state[k], first - s->range.begin);
}

/* ---- visits ---- */

/* State k of a row; `extent` is that of the row's slice. */
static struct sh_floats find(const struct sh_program *p, const struct sh_map_row *row, int k, char *extent)
{
    const struct sh_unit *u = &p->units[row->here.unit];
    struct sh_floats f = row->here.state[k];

    if (!(row->far >> k & 1u))
        return f;
    return k == 0 ? stored(p, u, k, f.high, extent + row->at[k]) : stored(p, u, k, extent + row->at[k], NULL);
}

static sh_rc visit_row(const struct sh_run *r, const struct sh_map_row *row, struct sh_range range, unsigned states,
                       bool change, sh_map_look *look, void *arg)
{
    const struct sh_map_stretch *all = &row->here;
    struct sh_map_stretch s = {.unit = all->unit, .range = sh_layout_intersect(range, all->range)};
    char *extent = NULL;

    if (row->far & states)
        SH_TRY(sh_exec_lend(r->exec, row->slice, change, &extent));
    for (int k = 0; k < r->map->unit[s.unit].n_states; k++)
        if (states >> k & 1u)
            s.state[k] = sh_floats_at(find(r->p, row, k, extent), s.range.begin - all->range.begin);
    look(&s, arg);
    if (row->far & states)
        sh_exec_give_back(r->exec);
    return SH_OK;
}

sh_rc sh_map_visit(const struct sh_run *r, int unit, struct sh_range range, unsigned states, bool change,
                   sh_map_look *look, void *arg)
{
    const struct sh_map_unit *m = &r->map->unit[unit];

    SH_REQUIRE(!sh_exec_is_pending(r->exec));
    for (int i = m->first_row; i < m->first_row + m->n_rows; i++) {
        const struct sh_map_row *row = &r->map->row[i];

        if (range.begin < row->here.range.end && row->here.range.begin < range.end)
            SH_TRY(visit_row(r, row, range, states, change, look, arg));
    }
    return SH_OK;
}

/* To the host, wherever they lie. */
static void get(const struct sh_run *r, struct sh_floats from, int64_t n, float *to)
{
    if (r->device->gpu)
        sh_exec_get_floats(r->exec, to, from, n);
    else
        sh_floats_get(from, n, to);
}

void sh_map_widen(const struct sh_run *r, const struct sh_map_stretch *s, int k, struct sh_range of, float *to)
{
    int64_t at = of.begin - s->range.begin, n = of.end - of.begin;
    int64_t before = at % SH_CODE8_ELEMS, here = before ? SH_CODE8_ELEMS - before : 0;
    float block[SH_CODE8_ELEMS];

    here = here < n ? here : n;
    if (here > 0) {
        get(r, sh_floats_at(s->state[k], at - before), before + here, block);
        memcpy(to, block + before, (size_t)here * sizeof *to);
    }
    if (here < n)
        get(r, sh_floats_at(s->state[k], at + here), n - here, to + here);
}

void sh_map_visit_all(const struct sh_run *r, bool change, sh_map_look *look, void *arg)
{
    unsigned all = (1u << r->map->n_states) - 1;

    for (int i = 0; i < r->p->n_units; i++) {
        sh_rc rc = SH_OK;

        if (r->p->units[i].trainable)
            rc = sh_map_visit(r, i, r->map->unit[i].owned, all, change, look, arg);
        if (rc != SH_OK)
            sh_stop(sh_fail_prefix(rc, "step %lld: ", (long long)r->step));
    }
}
