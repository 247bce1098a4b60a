/* Slices between sections, with room for fewer than there are: changed slices go to the file and come back, whoever
 * asks and in whatever order; and a tensor without an address is never mistaken for memory. The file is created in the
 * folder of the test; if that is unsuitable, the test is skipped. */
#include "src/base/mem.h"
#include "src/exec/exec.h"
#include "src/exec/moves.h"
#include "src/tier/tier.h"
#include "tests/unit/tiny.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 5 }; /* slices for which there is room */

static struct sh_program *p;
static char *arena;
static int64_t arena_bytes;

static int make_program(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    (void)state;
    b.model.ffn_dim = 500;
    b.act = SH_BF16;
    b.offload = (struct sh_offload){.optimizer_16 = 13, .buffers = 2, .slice_elems = SH_SLICE_MULTIPLE};
    p = tiny_program(&b, b.options.mesh);
    arena_bytes = sh_tier_align(p->own_bytes) + MOST * sh_tensor_bytes(&p->tensors[p->slices[1].home]);
    arena = aligned_alloc(SH_FILE_PAGE, (size_t)arena_bytes);
    return arena ? 0 : -1;
}

static int free_program(void **state)
{
    (void)state;
    free(arena);
    sh_program_destroy(p);
    return 0;
}

/* Open with room for `room` slices. */
static struct sh_moves *open_with(int room)
{
    struct sh_program less = *p;
    static struct sh_program mine;
    struct sh_moves *m = NULL;

    if (sh_tier_check(".", 1 << 20, true) != SH_OK) {
        print_message("# skipped: %s\n", sh_error_text());
        skip();
    }
    less.own_bytes = sh_tier_align(p->persistent_bytes) + room * sh_tensor_bytes(&p->tensors[p->slices[1].home]);
    mine = less;
    if (sh_moves_open(&mine, arena, ".", true, &m) != SH_OK)
        fail_msg("%s", sh_error_text());
    return m;
}

static int64_t bytes_of(int slice)
{
    return sh_tensor_bytes(&p->tensors[p->slices[slice].home]);
}

/* Write all slices: each byte is the number of the slice in this round. */
static void write_all(struct sh_moves *m, int round)
{
    for (int i = 0; i < p->n_slices; i++) {
        int slice = i * 7 % p->n_slices;
        char *extent;

        assert_int_equal(sh_moves_lend(m, slice, true, &extent), SH_OK);
        memset(extent, slice + round, (size_t)bytes_of(slice));
        sh_moves_give_back(m);
    }
}

/* Count the slices that differ from what round `round` wrote; -1: from zeros. */
static int wrong(struct sh_moves *m, int round, int step)
{
    int n = 0;

    for (int i = 0; i < p->n_slices; i++) {
        int slice = i * step % p->n_slices;
        char *extent, is = (char)(round < 0 ? 0 : slice + round);

        assert_int_equal(sh_moves_lend(m, slice, false, &extent), SH_OK);
        n += extent[0] != is || memcmp(extent, extent + 1, (size_t)bytes_of(slice) - 1) != 0;
        sh_moves_give_back(m);
    }
    return n;
}

static void changes_come_back(void **state)
{
    (void)state;
    assert_true(p->n_slices > 9 && p->n_slices % 7 != 0);
    for (int room = 1; room <= MOST; room += 2) {
        struct sh_moves *m = open_with(room);

        assert_int_equal(wrong(m, -1, 1), 0); /* as at the start of a run */
        write_all(m, 1);
        assert_int_equal(wrong(m, 1, 1), 0);
        assert_int_equal(sh_moves_settle(m), SH_OK);
        memset(arena, 0xff, (size_t)arena_bytes); /* a section */
        assert_int_equal(wrong(m, 1, 3), 0);
        write_all(m, 2);
        assert_int_equal(sh_moves_settle(m), SH_OK);
        memset(arena, 0xff, (size_t)arena_bytes);
        assert_int_equal(wrong(m, 2, 1), 0);
        sh_moves_forget(m);
        assert_int_equal(wrong(m, -1, 1), 0);
        sh_moves_close(m);
    }
}

/* Everything that a section fetches has been written before: with zeros, if by nothing else. */
static void what_is_fetched_was_written(void **state)
{
    const struct sh_section *s = sh_program_section(p, SH_SECTION_UPDATE);
    struct sh_moves *m = open_with(2);
    int64_t ticket, in, out, bytes = 0;
    char *extent;

    (void)state;
    assert_int_equal(sh_moves_lend(m, 1, true, &extent), SH_OK);
    memset(extent, 5, (size_t)bytes_of(1));
    sh_moves_give_back(m);
    assert_int_equal(sh_moves_settle(m), SH_OK);
    assert_int_equal(sh_moves_fill(m), SH_OK);
    for (int i = 0; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];
        const char *copy = arena + p->tensors[op->out[0] == SH_NONE ? 0 : op->out[0]].offset_bytes;

        if (op->kind != SH_OP_FETCH)
            continue;
        assert_int_equal(sh_moves_start(m, op, &ticket), SH_OK);
        assert_int_equal(sh_moves_wait(m, ticket), SH_OK);
        assert_int_equal(copy[100], op->in[0] == p->slices[1].home ? 5 : 0);
        bytes += sh_tensor_bytes(&p->tensors[op->in[0]]);
    }
    sh_moves_take(m, &in, &out);
    assert_true(in == bytes && out == 0);
    sh_moves_take(m, &in, &out);
    assert_true(in == 0 && out == 0);
    sh_moves_close(m);
}

/* Many threads ask, as in a save and a load. */
static void many_threads_ask(void **state)
{
    struct sh_moves *m = open_with(2);
    int n = 0;

    (void)state;
#pragma omp parallel for schedule(static, 1) num_threads(4) reduction(+ : n)
    for (int i = 0; i < 40 * p->n_slices; i++) {
        char *extent;

        n += sh_moves_lend(m, i * 11 % p->n_slices, true, &extent) != SH_OK;
        for (int64_t k = 0; k < 64; k++)
            extent[k]++;
        sh_moves_give_back(m);
    }
    for (int i = 0; i < p->n_slices; i++) {
        char *extent;

        assert_int_equal(sh_moves_lend(m, i, false, &extent), SH_OK);
        for (int k = 0; k < 65; k++)
            n += extent[k] != (k < 64 ? 40 : 0);
        sh_moves_give_back(m);
    }
    assert_int_equal(n, 0);
    sh_moves_close(m);
}

/* Get a tensor the way the executor does, in a child process; returns the child's exit status. */
static int status_of(int tensor)
{
    const struct sh_exec_file file = {.folder = ".", .verify = true};
    int status = 0;
    pid_t child = fork();

    if (!child) {
        struct sh_exec *e = NULL;

        if (sh_exec_create(p, &sh_device_ref, NULL, -1, &file, &e) != SH_OK)
            _exit(1);
        _exit(sh_exec_data(e, tensor) ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void what_has_no_address_ends_the_job(void **state)
{
    (void)state;
    sh_moves_close(open_with(1)); /* skips */
    assert_int_equal(status_of(p->units[0].compute), 0);
    assert_int_equal(status_of(p->slices[0].copy), 0);
    assert_int_equal(status_of(p->slices[0].home), SH_E_BUG);
    assert_int_equal(status_of(p->units[p->n_units - 1].state[0]), SH_E_BUG); /* there is none */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_come_back),
        cmocka_unit_test(what_is_fetched_was_written),
        cmocka_unit_test(many_threads_ask),
        cmocka_unit_test(what_has_no_address_ends_the_job),
    };
    return cmocka_run_group_tests(tests, make_program, free_program);
}
