#include "tests/fault/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ONCE = 1, LASTING = 2 };

/* The faults of each kind of call. */
static const struct row {
    enum shim_call call;
    enum fault_end end;
    enum shim_fault fault;
    int error, how;
} rows[] = {
    {SHIM_OPEN, MAY_FAIL, SHIM_FAIL, EACCES, ONCE},
    {SHIM_OPEN, MAY_FAIL, SHIM_FAIL, EMFILE, ONCE | LASTING},
    {SHIM_OPEN, MAY_FAIL, SHIM_FAIL, EROFS, ONCE},
    {SHIM_OPEN, MAY_FAIL, SHIM_FAIL, EINTR, ONCE},
    {SHIM_OPEN, MUST_PASS, SHIM_DELAY, 0, ONCE},
    {SHIM_MKDIR, MAY_FAIL, SHIM_FAIL, EACCES, ONCE},
    {SHIM_MKDIR, MAY_FAIL, SHIM_FAIL, ENOSPC, ONCE},
    {SHIM_WRITE, OWN_MUST_FAIL, SHIM_FAIL, ENOSPC, ONCE | LASTING},
    {SHIM_WRITE, OWN_MUST_FAIL, SHIM_FAIL, EIO, ONCE | LASTING},
    {SHIM_WRITE, OWN_MUST_FAIL, SHIM_FAIL, EDQUOT, ONCE | LASTING},
    {SHIM_WRITE, OWN_MUST_PASS, SHIM_FAIL, EINTR, ONCE},
    {SHIM_WRITE, OWN_MUST_PASS, SHIM_SHORT, 0, ONCE},
    {SHIM_WRITE, MAY_FAIL, SHIM_LOSE, 0, ONCE | LASTING},
    {SHIM_WRITE, MAY_FAIL, SHIM_FLIP, 0, ONCE},
    {SHIM_WRITE, MUST_PASS, SHIM_DELAY, 0, ONCE},
    {SHIM_READ, OWN_MUST_FAIL, SHIM_FAIL, EIO, ONCE | LASTING},
    {SHIM_READ, OWN_MUST_PASS, SHIM_FAIL, EINTR, ONCE},
    {SHIM_READ, OWN_MUST_PASS, SHIM_SHORT, 0, ONCE},
    {SHIM_READ, MAY_FAIL, SHIM_FLIP, 0, ONCE},
    {SHIM_SYNC, OWN_MUST_FAIL, SHIM_FAIL, EIO, ONCE | LASTING},
    {SHIM_SYNC, OWN_MUST_FAIL, SHIM_FAIL, ENOSPC, ONCE},
    {SHIM_SYNC, OWN_MUST_FAIL, SHIM_FAIL, EDQUOT, ONCE},
    {SHIM_SYNC, MUST_PASS, SHIM_FAIL, EINTR, ONCE},
    {SHIM_SYNC, MUST_PASS, SHIM_DELAY, 0, ONCE},
    {SHIM_RESIZE, MAY_FAIL, SHIM_FAIL, EIO, ONCE},
    {SHIM_RESIZE, MAY_FAIL, SHIM_FAIL, ENOSPC, ONCE},
    {SHIM_RESERVE, OWN_MUST_FAIL, SHIM_FAIL, ENOSPC, ONCE | LASTING},
    {SHIM_RESERVE, OWN_MUST_FAIL, SHIM_FAIL, EDQUOT, ONCE},
    {SHIM_RESERVE, MUST_PASS, SHIM_FAIL, EINTR, ONCE},
    {SHIM_RESERVE, MUST_PASS, SHIM_FAIL, EOPNOTSUPP, ONCE | LASTING},
    {SHIM_RENAME, OWN_MUST_FAIL, SHIM_FAIL, EACCES, ONCE},
    {SHIM_RENAME, OWN_MUST_FAIL, SHIM_FAIL, ENOSPC, ONCE},
    {SHIM_RENAME, OWN_MUST_FAIL, SHIM_FAIL, EROFS, ONCE},
    {SHIM_CLOSE, MAY_FAIL, SHIM_FAIL, EIO, ONCE},
    {SHIM_CLOSE, MAY_FAIL, SHIM_FAIL, EDQUOT, ONCE},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const char *fault_name(const struct row *row)
{
    static const char *const names[SHIM_FAULTS] = {
        [SHIM_SHORT] = "short",
        [SHIM_LOSE] = "lost",
        [SHIM_FLIP] = "one bit flipped",
        [SHIM_DELAY] = "late",
    };
    return row->fault == SHIM_FAIL ? strerrorname_np(row->error) : names[row->fault];
}

static void add(struct fault *f, const struct row *row, int rank, long number, bool lasting)
{
    *f = (struct fault){
        .rank = rank,
        .end = row->end,
        .plan = {.call = row->call, .number = number, .fault = row->fault, .error = row->error, .lasting = lasting}};
    snprintf(f->text, sizeof f->text, "rank %d: %s number %ld%s: %s", rank, shim_call_name[row->call], number,
             lasting ? " and all later ones" : "", fault_name(row));
}

/* Add the faults of one call of one rank. */
static int add_rows(struct fault *list, int rank, enum shim_call call, long number)
{
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        for (int how = ONCE; how <= LASTING; how++)
            if (rows[i].call == call && (rows[i].how & how))
                add(&list[n++], &rows[i], rank, number, how == LASTING);
    return n;
}

int fault_list(const long (*count)[SHIM_CALLS], int ranks, struct fault **out)
{
    size_t calls = 0;
    for (int r = 0; r < ranks; r++)
        for (int c = 0; c < SHIM_CALLS; c++)
            calls += (size_t)count[r][c];
    struct fault *list = calloc(calls * 2 * ROWS + 1, sizeof *list);
    int n = 0;
    for (int r = 0; list && r < ranks; r++)
        for (int c = 0; c < SHIM_CALLS; c++)
            for (long number = 1; number <= count[r][c]; number++)
                n += add_rows(list + n, r, (enum shim_call)c, number);
    *out = list;
    return n;
}
