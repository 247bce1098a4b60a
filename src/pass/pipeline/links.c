#include "src/pass/pipeline/links.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *const streams[] = {"ahead 0", "back 0", "ahead 1", "back 1", "ahead 2", "back 2"};
enum { ODD_RING = sizeof streams / sizeof *streams, STREAMS = ODD_RING - 2 };

void sh_links_add_streams(struct sh_program *p, int stages, bool ring)
{
    for (int i = 0; i < (ring && stages % 2 ? ODD_RING : STREAMS); i++)
        sh_program_add_stream(p, streams[i], SH_RUNS_COLLECTIVES);
}

int sh_links_stream(const struct sh_program *p, int stages, int border, bool back)
{
    int row = p->n_streams - 1, turn = stages % 2 && border == stages - 1 ? 2 : border % 2;

    while (row > 0 && strcmp(p->streams[row].name, streams[turn * 2 + back]) != 0)
        row--;
    return row;
}

static struct sh_link link_of(const struct sh_program *p, const struct sh_op *op, int section)
{
    return (struct sh_link){.kind = op->kind,
                            .peer = op->attr.link.peer,
                            .micro = op->attr.link.micro,
                            .of = SH_NONE,
                            .stream = op->stream,
                            .section = section,
                            .backward = op->phase != SH_PHASE_FORWARD,
                            .border = op->attr.link.border,
                            .bytes = sh_tensor_bytes(&p->tensors[sh_program_result(op)])};
}

int sh_links_of(const struct sh_program *p, struct sh_link **links)
{
    int *row = sh_calloc((size_t)p->n_ops + 1, sizeof *row), n = 0;

    *links = sh_calloc((size_t)p->n_ops + 1, sizeof **links);
    for (int s = 0; s < p->n_sections; s++)
        for (int i = 0; i < p->sections[s].n_ops; i++) {
            const struct sh_op *op = &p->ops[p->sections[s].first_op + i];
            bool wait = op->kind == SH_OP_WAIT;
            const struct sh_op *of = wait ? &p->ops[p->sections[s].first_op + op->attr.waits_for] : op;

            if (!sh_program_is_message(of))
                continue;
            (*links)[n] = link_of(p, of, s);
            if (wait)
                (*links)[n].kind = SH_OP_WAIT, (*links)[n].of = row[p->sections[s].first_op + op->attr.waits_for];
            row[p->sections[s].first_op + i] = n++;
        }
    free(row);
    return n;
}

struct links {
    const struct sh_link *const *of;
    const int *n;
    int stages;
    int **partner; /* [stages][n] the row of the other side of a message, in the list of its stage */
    int *at;       /* [stages] rows that are done */
};

static const char *name_of(const struct sh_link *l)
{
    return sh_op_info(l->kind == SH_OP_WAIT ? SH_OP_RECEIVE : (enum sh_op_kind)l->kind)->name;
}

/* "stage 2, backward of micro-step 3, receive" */
enum { WHERE = 96 };
static const char *where(int stage, const struct sh_link *l, char text[WHERE])
{
    snprintf(text, WHERE, "stage %d, %s of micro-step %d, %s", stage, l->backward ? "backward" : "forward", l->micro,
             name_of(l));
    return text;
}

/* The next message of this kind and half with that stage, from row `from` on; SH_NONE: there is none. */
static int next_of(const struct links *c, int stage, int kind, bool backward, int peer, int from)
{
    for (int i = from; i < c->n[stage]; i++)
        if (c->of[stage][i].kind == kind && c->of[stage][i].backward == backward && c->of[stage][i].peer == peer)
            return i;
    return SH_NONE;
}

static bool alike(const struct sh_link *a, const struct sh_link *b)
{
    return a->micro == b->micro && a->border == b->border && a->bytes == b->bytes && a->stream == b->stream &&
           a->section == b->section;
}

/* What a stage sends to another in a half of their steps, and what that one expects, in their order. */
static sh_rc pair_up(struct links *c, int from, int to, bool backward)
{
    int a = -1, b = -1, peer = to - from;
    char mine[WHERE], its[WHERE];

    for (;;) {
        a = next_of(c, from, SH_OP_SEND, backward, peer, a + 1);
        b = next_of(c, to, SH_OP_RECEIVE, backward, -peer, b + 1);
        if (a == SH_NONE && b == SH_NONE)
            return SH_OK;
        if (b == SH_NONE)
            return sh_fail(SH_E_BUG, "%s: stage %d expects no such message", where(from, &c->of[from][a], mine), to);
        if (a == SH_NONE)
            return sh_fail(SH_E_BUG, "%s: stage %d sends no such message", where(to, &c->of[to][b], its), from);
        if (!alike(&c->of[from][a], &c->of[to][b]))
            return sh_fail(SH_E_BUG, "%s, %lld bytes: meets %s, %lld bytes", where(from, &c->of[from][a], mine),
                           (long long)c->of[from][a].bytes, where(to, &c->of[to][b], its),
                           (long long)c->of[to][b].bytes);
        c->partner[from][a] = b;
        c->partner[to][b] = a;
    }
}

static sh_rc pair_all(struct links *c)
{
    for (int s = 0; s < c->stages; s++) {
        int next = (s + 1) % c->stages;

        SH_TRY(pair_up(c, s, next, false));
        SH_TRY(pair_up(c, next, s, true));
    }
    return SH_OK;
}

/* A stage goes on until it waits for a message that the other side has not started. */
static bool advance(struct links *c, int stage)
{
    int before = c->at[stage];

    for (; c->at[stage] < c->n[stage]; c->at[stage]++) {
        const struct sh_link *l = &c->of[stage][c->at[stage]];

        if (l->kind == SH_OP_WAIT && c->at[stage + l->peer] <= c->partner[stage][l->of])
            break;
    }
    return c->at[stage] > before;
}

static sh_rc run_all(struct links *c)
{
    char text[WHERE];
    bool any = true;

    while (any) {
        any = false;
        for (int s = 0; s < c->stages; s++)
            any |= advance(c, s);
    }
    for (int s = 0; s < c->stages; s++)
        if (c->at[s] < c->n[s]) {
            const struct sh_link *l = &c->of[s][c->at[s]];

            return sh_fail(SH_E_BUG, "%s: would wait for stage %d for ever", where(s, &c->of[s][l->of], text),
                           s + l->peer);
        }
    return SH_OK;
}

sh_rc sh_links_check(const struct sh_link *const *links, const int *n, int stages)
{
    struct links c = {.of = links, .n = n, .stages = stages};
    sh_rc rc;

    c.partner = sh_calloc((size_t)stages, sizeof *c.partner);
    c.at = sh_calloc((size_t)stages, sizeof *c.at);
    for (int s = 0; s < stages; s++)
        c.partner[s] = sh_calloc((size_t)n[s] + 1, sizeof *c.partner[s]);
    rc = pair_all(&c);
    if (rc == SH_OK)
        rc = run_all(&c);
    for (int s = 0; s < stages; s++)
        free(c.partner[s]);
    free(c.partner);
    free(c.at);
    return rc;
}
