/* The map of states: on any mesh, with states in memory and in a file, each element of each state has one place, and is
 * written by one rank. */
#include "src/device/device.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/tier/tier.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { COPIES = 100 };

/* A number for element i of state k of a unit, or of its copy; other elements nearby have others. */
static float number(int unit, int64_t i, int k)
{
    return (float)((unit * 211 + i) * 256 + k);
}

/* Elements [begin, begin + n) of a state: give them their numbers, or check that they still have them. */
static void access(const struct sh_run *r, struct sh_floats f, int unit, int64_t begin, int64_t n, int k, bool put)
{
    float *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = number(unit, begin + i, k);
    if (put)
        sh_exec_put_floats(r->exec, f, x, n);
    else
        sh_exec_get_floats(r->exec, x, f, n);
    for (int64_t i = 0; i < n; i++)
        assert_true(x[i] == number(unit, begin + i, k));
    free(x);
}

struct visit {
    const struct sh_run *r;
    bool put;
    int64_t seen;
};

static void look(const struct sh_map_stretch *s, void *arg)
{
    struct visit *v = arg;

    for (int k = 0; k < v->r->map->n_states; k++)
        access(v->r, s->state[k], s->unit, s->range.begin, s->range.end - s->range.begin, k, v->put);
    v->seen += s->range.end - s->range.begin;
}

/* All numbers are still there once all have been written, so no two places have anything in common. */
static void check_places(const struct sh_run *r)
{
    struct visit v = {.r = r, .put = true};
    int64_t owned = 0;

    sh_map_visit_all(r, true, look, &v);
    for (int put = 1; put >= 0; put--)
        for (int u = 0; u < r->p->n_units; u++) {
            const struct sh_map_unit *m = &r->map->unit[u];

            for (int k = 0; k < r->map->n_states; k++)
                access(r, m->copy[k], u, m->written.begin, m->written.end - m->written.begin, COPIES + k, put);
        }
    v.put = false;
    for (int u = 0; u < r->p->n_units; u++) {
        struct sh_range own = r->map->unit[u].owned;

        owned += own.end - own.begin;
        for (int part = 0; part < 3; part++) /* cuts that no slice has */
            assert_int_equal(sh_map_visit(r, u, sh_layout_split(own, 3, part), 7, false, look, &v), SH_OK);
    }
    assert_int_equal(v.seen, 2 * owned);
}

/* Replicas take turns in the order of their shards, so that the parts that ranks write follow each other. */
static void check_mesh(const struct sh_build *b, int shard, int replicate)
{
    const struct sh_exec_file file = {.folder = ".", .verify = true};
    int64_t at[64] = {0};

    for (int i = 0; i < shard * replicate; i++) {
        struct sh_mesh_shape mesh = tiny_mesh(shard, replicate, 1, i % replicate * shard + i / replicate);
        struct sh_run r = {.p = tiny_program(b, mesh), .device = &sh_device_ref};

        if (sh_exec_create(r.p, r.device, NULL, -1, &file, &r.exec) != SH_OK)
            fail_msg("%s", sh_error_text());
        r.map = sh_map_make(r.p, &mesh, r.exec);
        check_places(&r);
        for (int u = 0; u < r.p->n_units; u++) {
            struct sh_range w = r.map->unit[u].written;

            assert_true(w.begin == w.end || w.begin == at[u]);
            at[u] = w.begin == w.end ? at[u] : w.end;
            assert_true(i + 1 < shard * replicate || at[u] == r.p->units[u].elems);
        }
        sh_map_free(r.map);
        sh_exec_destroy(r.exec);
        sh_program_destroy(r.p);
    }
}

static void check_meshes(int ratio_16)
{
    static const int meshes[][2] = {{1, 1}, {3, 1}, {1, 2}, {2, 2}, {8, 1}};
    static const enum sh_dtype types[] = {SH_F32, SH_BF16, SH_F16};

    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m += (size_t)tiny_step(3)) {
            struct sh_build b = tiny_build(&tiny_models[1], 1);

            b.act = types[t];
            b.model.ffn_dim = 500;
            b.options.snapshot = true;
            b.offload = (struct sh_offload){.optimizer_16 = ratio_16, .buffers = 2, .slice_elems = SH_SLICE_MULTIPLE};
            check_mesh(&b, meshes[m][0], meshes[m][1]);
        }
}

static void each_element_has_its_place(void **state)
{
    (void)state;
    check_meshes(0);
    if (sh_tier_check(".", 1 << 20, true) != SH_OK) {
        print_message("# skipped: %s\n", sh_error_text());
        skip();
    }
    check_meshes(16);
    check_meshes(10); /* the first elements of a chunk stay in memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_element_has_its_place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
