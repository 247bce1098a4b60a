/* The index of a checkpoint as bytes: packed, unpacked, and its digests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/pack.h"

#include <stdlib.h>
#include <string.h>

enum { BEGIN = 4096 };

static const struct sh_ckpt_tensor tensors[] = {{"a.weight", 2, {3, 5}, 15, SH_PARAM_UP, 0},
                                                {"b", 1, {2}, 2, SH_PARAM_BIAS, 0}};

/* Make an index like create(). */
static struct sh_ckpt_index make_index(void)
{
    struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = tensors, .n_tensors = 2};
    struct sh_ckpt_meta meta = {.step = 7, .config = (char *)"a: 1\n", .guard = (char *)"0 0"};
    struct sh_ckpt_index x;
    int64_t at = BEGIN;

    assert_int_equal(sh_ckpt_index_make(&set, &meta, &x), SH_OK);
    for (int s = 0; s < x.states.n; s++)
        for (int i = 0; i < 2; i++) {
            x.entry[i].offset[s] = at;
            at += x.entry[i].elems * 4;
        }
    x.structure_bytes = BEGIN;
    x.file_bytes = at + sh_ckpt_packed_bytes(&x) + SH_CKPT_FOOTER_BYTES;
    return x;
}

/* The second tensor has only the last state. */
static struct sh_ckpt_index make_masked(void)
{
    static const struct sh_ckpt_tensor some[] = {{"a.weight", 2, {3, 5}, 15, SH_PARAM_UP, 3},
                                                 {"a.weight.rows", 1, {3}, 3, SH_PARAM_MOMENT, 4}};
    struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = some, .n_tensors = 2};
    struct sh_ckpt_index x;

    assert_int_equal(sh_ckpt_index_make(&set, &(struct sh_ckpt_meta){.step = 7}, &x), SH_OK);
    x.entry[0].offset[0] = x.structure_bytes = BEGIN;
    x.entry[0].offset[1] = BEGIN + 60;
    x.entry[1].offset[2] = BEGIN + 120;
    x.file_bytes = BEGIN + 132 + sh_ckpt_packed_bytes(&x) + SH_CKPT_FOOTER_BYTES;
    return x;
}

/* Unpack what an index packs to. */
static sh_rc there_and_back(struct sh_ckpt_index *x, struct sh_ckpt_index *y)
{
    int64_t bytes = sh_ckpt_packed_bytes(x);
    unsigned char *packed;
    sh_rc rc;

    x->sum = sh_ckpt_index_digest(x);
    packed = sh_ckpt_pack(x);
    rc = sh_ckpt_unpack(packed, bytes, "a", x->file_bytes, x->file_bytes - bytes - SH_CKPT_FOOTER_BYTES, y);
    free(packed);
    return rc;
}

static void tensors_have_some_states(void **state)
{
    static const unsigned bad[] = {0, 8 | 4,
                                   2}; /* none; one that the file lacks; one without a place, whose bytes stay over */
    struct sh_ckpt_index x = make_masked(), y;

    (void)state;
    assert_int_equal(sh_ckpt_major(&x.states), 3);
    assert_int_equal(sh_ckpt_index_models(&x), 1);
    assert_int_equal(there_and_back(&x, &y), SH_OK);
    assert_true(sh_ckpt_packed_same(&x, &y) && y.entry[1].states == 4);
    sh_ckpt_index_free(&y);
    for (int i = 0; i < 3; i++) {
        x.entry[1].states = bad[i];
        assert_int_equal(there_and_back(&x, &y), SH_E_DATA);
    }
    sh_ckpt_index_free(&x);
}

static void spoil_nothing(struct sh_ckpt_index *x)
{
    (void)x;
}

static void later_version(struct sh_ckpt_index *x)
{
    x->minor = SH_CKPT_MINOR + 1;
}

static void with_base(struct sh_ckpt_index *x)
{
    int64_t before = sh_ckpt_packed_bytes(x);

    free(x->meta.base);
    x->meta.base = strdup("sum: 0123456789abcdef\npath: /models/a\n");
    x->minor = SH_CKPT_MINOR;
    x->file_bytes += sh_ckpt_packed_bytes(x) - before;
}

static void negative_step(struct sh_ckpt_index *x)
{
    x->meta.step = -1;
}

static void huge_step(struct sh_ckpt_index *x)
{
    x->meta.step = INT64_MAX;
}

static void huge_samples(struct sh_ckpt_index *x)
{
    x->meta.samples = INT64_MAX;
}

static void huge_tokens(struct sh_ckpt_index *x)
{
    x->meta.tokens = SH_CKPT_COUNT_MAX + 1;
}

static void huge_updates(struct sh_ckpt_index *x)
{
    x->meta.updates = INT64_MAX;
}

static void most_tokens(struct sh_ckpt_index *x)
{
    x->meta.tokens = SH_CKPT_COUNT_MAX;
}

static void other_length(struct sh_ckpt_index *x)
{
    x->file_bytes++;
}

static void overlap(struct sh_ckpt_index *x)
{
    x->entry[1].offset[2] -= 4;
}

static void into_structures(struct sh_ckpt_index *x)
{
    x->entry[0].offset[0] -= 4;
}

static void into_index(struct sh_ckpt_index *x)
{
    x->entry[1].offset[2] += 4;
}

static void gap(struct sh_ckpt_index *x)
{
    x->structure_bytes -= 4;
}

static void far_away(struct sh_ckpt_index *x)
{
    x->entry[1].offset[2] = INT64_MAX;
}

static void two_of_a_name(struct sh_ckpt_index *x)
{
    strcpy(x->entry[1].name, x->entry[0].name);
}

static void slash(struct sh_ckpt_index *x)
{
    x->entry[1].name[0] = '/';
}

static void control(struct sh_ckpt_index *x)
{
    strcpy(x->entry[1].name, "b\xc2\x9b");
}

static void no_utf8(struct sh_ckpt_index *x)
{
    x->entry[1].name[0] = '\xff';
}

static void zero_dim(struct sh_ckpt_index *x)
{
    x->entry[0].dim[0] = 0;
}

static void huge_dims(struct sh_ckpt_index *x)
{
    x->entry[0].dim[0] = x->entry[0].dim[1] = INT64_MAX / 2;
}

static void larger_than_file(struct sh_ckpt_index *x)
{
    x->entry[0].dim[0] = INT64_MAX / 5;
}

static void other_states(struct sh_ckpt_index *x)
{

    strcpy(x->states.name[1], "optimizer/momentum");
}

static void no_states(struct sh_ckpt_index *x)
{
    other_states(x);
    x->states.n = 0;
}

static void first_is_no_model(struct sh_ckpt_index *x)
{
    other_states(x);
    strcpy(x->states.name[0], "modem");
}

static void state_elsewhere(struct sh_ckpt_index *x)
{
    other_states(x);
    strcpy(x->states.name[1], "optimized/x");
}

static void deep_state(struct sh_ckpt_index *x)
{
    other_states(x);
    strcpy(x->states.name[1], "optimizer/a/b");
}

static void state_without_name(struct sh_ckpt_index *x)
{
    other_states(x);
    strcpy(x->states.name[2], "optimizer/");
}

static void state_without_end(struct sh_ckpt_index *x)
{
    other_states(x);
    memset(x->states.name[2] + 10, 'x', SH_CKPT_STATE_NAME - 10);
}

static void two_states_of_a_name(struct sh_ckpt_index *x)
{
    other_states(x);
    strcpy(x->states.name[2], "optimizer/momentum");
}

static void wrong_sum(struct sh_ckpt_index *x)
{
    x->sum++;
}

/* Bytes added at the end; the checksum over everything is made before the spoiling or after it. */
static const struct row {
    void (*spoil)(struct sh_ckpt_index *x);
    int more;
    bool sum_first;
    const char *says; /* NULL: it is accepted */
} rows[] = {
    {spoil_nothing, 0, true, NULL},
    {spoil_nothing, 1, true, "it continues past its end"},
    {spoil_nothing, -1, true, "its number of blocks is impossible"},
    {later_version, 0, true, NULL},
    {later_version, 100, true, NULL},
    {negative_step, 0, false, "step is -1"},
    {huge_step, 0, false, "step is 9223372036854775807"},
    {huge_samples, 0, false, "samples is 9223372036854775807"},
    {huge_tokens, 0, false, "tokens is 9007199254740993"},
    {huge_updates, 0, false, "updates is 9223372036854775807"},
    {most_tokens, 0, false, NULL},
    {other_length, 0, false, "of another length"},
    {overlap, 0, false, "overlap"},
    {into_structures, 0, false, "lies outside of the data"},
    {into_index, 0, false, "lies outside of the data"},
    {far_away, 0, false, "lies outside of the data"},
    {gap, 0, false, "do not cover all bytes of the file"},
    {two_of_a_name, 0, false, "two tensors have one name"},
    {slash, 0, false, "impossible name"},
    {control, 0, false, "impossible name"},
    {no_utf8, 0, false, "impossible name"},
    {zero_dim, 0, false, "impossible shape"},
    {huge_dims, 0, false, "impossible shape"},
    {larger_than_file, 0, false, "larger than the file"},
    {other_states, 0, false, NULL},
    {no_states, 0, false, "number of states is impossible"},
    {first_is_no_model, 0, false, "a state has an impossible name"},
    {state_elsewhere, 0, false, "a state has an impossible name"},
    {deep_state, 0, false, "a state has an impossible name"},
    {state_without_name, 0, false, "a state has an impossible name"},
    {state_without_end, 0, false, "a state has an impossible name"},
    {two_states_of_a_name, 0, false, "a state has an impossible name"},
    {wrong_sum, 0, true, "does not match its digest"},
    {negative_step, 0, true, "step is -1"},
    {with_base, 0, false, NULL},
    {with_base, 0, true, "does not match its digest"},
    {with_base, 1, false, "it continues past its end"},
    {with_base, -1, false, "a text in it is impossible"},
    {with_base, -40, false, "it ends too early"},
};

static void check_row(const struct row *row)
{
    struct sh_ckpt_index x = make_index(), out = {0};
    int64_t file_bytes = x.file_bytes, n = sh_ckpt_packed_bytes(&x), end = file_bytes - n - SH_CKPT_FOOTER_BYTES;
    unsigned char *packed, *more;
    sh_rc rc;

    if (row->sum_first)
        x.sum = sh_ckpt_index_digest(&x);
    row->spoil(&x);
    if (!row->sum_first)
        x.sum = sh_ckpt_index_digest(&x);
    file_bytes = row->spoil == with_base ? x.file_bytes : file_bytes;
    packed = sh_ckpt_pack(&x);
    n = sh_ckpt_packed_bytes(&x);
    more = calloc((size_t)n + 100, 1);
    memcpy(more, packed, (size_t)n);
    sh_error_clear();
    rc = sh_ckpt_unpack(more, n + row->more, "x.h5", file_bytes, end, &out);
    assert_int_equal(rc, row->says ? SH_E_DATA : SH_OK);
    if (row->says && !strstr(sh_error_text(), row->says))
        fail_msg("\"%s\" does not say \"%s\"", sh_error_text(), row->says);
    if (rc == SH_OK)
        assert_true(sh_ckpt_packed_same(&x, &out));
    sh_ckpt_index_free(&out);
    sh_ckpt_index_free(&x);
    free(packed);
    free(more);
}

static void only_a_sound_index_is_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
}

static void a_footer_is_one_to_the_bit(void **state)
{
    struct sh_ckpt_footer f = {.at = 1, .bytes = 2, .digest = {3, 4}, .major = 5, .minor = 6}, g;
    unsigned char bytes[SH_CKPT_FOOTER_BYTES];

    (void)state;
    sh_ckpt_footer_pack(&f, bytes);
    for (int bit = 40 * 8; bit < SH_CKPT_FOOTER_BYTES * 8; bit++) { /* zeros and magic */
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(sh_ckpt_footer_unpack(bytes, &g));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_true(sh_ckpt_footer_unpack(bytes, &g));
    assert_memory_equal(&f, &g, sizeof f);
}

/* Another program computed these digests from doc/checkpoint-format.md. They must not change: today's files
 * stay valid. */
static void digests_are_those_of_the_format(void **state)
{
    static const float data[] = {0, 1, -2.5f, 3e38f, 1e-40f};
    static const struct {
        int64_t step;
        int state;
        const char *name;
        int64_t block;
        uint64_t sum;
    } sums[] = {
        {0, 0, "a.weight", 0, 0x6d2c27b16c712381}, {0, 0, "a.weight", 3, 0x04c94dba68591082},
        {7, 0, "a.weight", 0, 0x093ebae40622e7d8}, {7, 0, "a.weight", 3, 0x32ca23cde805783a},
        {7, 2, "a.weight", 0, 0xcdc62a920aa39ef1}, {7, 2, "a.weight", 3, 0xf50bf58f87eda85c},
        {7, 2, "b", 0, 0x38c8692109a0f66f},        {7, 2, "b", 3, 0x813678ca3f71bcca},
    };

    (void)state;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        uint64_t seed = sh_ckpt_digest_seed(sums[i].step, sums[i].state, sums[i].name);

        assert_true(sh_ckpt_digest_part(seed, sums[i].block, data, 0, 5) == sums[i].sum);
        assert_true(sh_ckpt_digest_part(seed, sums[i].block, data, 0, 2) +
                        sh_ckpt_digest_part(seed, sums[i].block, data + 2, 2, 3) ==
                    sums[i].sum);
    }
}

/* The blocks of a piece are counted from its first block, wherever in the tensor that is. */
static void a_piece_is_cut_at_blocks(void **state)
{
    enum { BLOCK = SH_CKPT_BLOCK_ELEMS };
    const struct sh_ckpt_piece p = {.begin = 3 * (int64_t)BLOCK - 5, .elems = BLOCK + 7};
    static const int64_t cuts[][3] = {{0, 5, 0}, {5, BLOCK, 1}, {BLOCK + 5, 2, 2}}; /* at, elements, block */

    (void)state;
    assert_int_equal(sh_ckpt_piece_blocks(&p), 3);
    for (int i = 0; i < 3; i++) {
        int64_t block, at = cuts[i][0];
        uint64_t place, seed = sh_ckpt_digest_seed(7, 1, "a");

        assert_int_equal(sh_ckpt_piece_cut(&p, "a", 7, 1, at, p.elems - at, &block, &place), cuts[i][1]);
        assert_int_equal(block, cuts[i][2]);
        assert_true(place == sh_ckpt_digest_place(seed, (p.begin + at) / BLOCK, (p.begin + at) % BLOCK));
    }
}

/* Change one of the things that the digest of an index covers. */
static void change(struct sh_ckpt_index *x, int what)
{
    int64_t *const numbers[] = {&x->meta.step, &x->meta.samples, &x->meta.tokens, &x->meta.updates,
                                &x->entry[1].dim[0]};

    if (what < 5)
        ++*numbers[what];
    else if (what == 5)
        x->meta.config[0] = 'b';
    else if (what == 6)
        x->meta.guard[0] = '1';
    else if (what == 7)
        x->entry[0].name[0] = 'c';
    else
        x->digest[what - 8][1] ^= 1;
}

static void an_index_is_under_its_digest(void **state)
{
    (void)state;
    for (int what = 0; what < 8 + sh_ckpt_states_1.n; what++) {
        struct sh_ckpt_index x = make_index();
        uint64_t before = sh_ckpt_index_digest(&x);

        change(&x, what);
        if (sh_ckpt_index_digest(&x) == before)
            fail_msg("change %d is not under the digest", what);
        sh_ckpt_index_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_format), cmocka_unit_test(an_index_is_under_its_digest),
        cmocka_unit_test(a_piece_is_cut_at_blocks),        cmocka_unit_test(only_a_sound_index_is_taken),
        cmocka_unit_test(a_footer_is_one_to_the_bit),      cmocka_unit_test(tensors_have_some_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
