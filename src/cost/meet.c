#include "src/cost/meet.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

struct meeting {
    int started; /* sides */
    double latest, seconds, end;
};

/* Meetings of the same sides, one after the other. */
struct way {
    struct meeting *of;
    int n, cap;
    int *next; /* [stages] number of the next one */
};

struct sh_meets {
    int stages, n;
    struct way *ways; /* [n] each border there and back, then the collectives of all */
};

struct sh_meets *sh_meets_create(int stages)
{
    struct sh_meets *m = sh_calloc(1, sizeof *m);

    m->stages = stages;
    m->n = 2 * stages + 1;
    m->ways = sh_calloc((size_t)m->n, sizeof *m->ways);
    for (int i = 0; i < m->n; i++)
        m->ways[i].next = sh_calloc((size_t)stages, sizeof *m->ways[i].next);
    return m;
}

void sh_meets_free(struct sh_meets *m)
{
    for (int i = 0; m && i < m->n; i++) {
        free(m->ways[i].of);
        free(m->ways[i].next);
    }
    free(m ? m->ways : NULL);
    free(m);
}

bool sh_meets_at(const struct sh_mesh_shape *mesh, const struct sh_op *op)
{
    return op->attr.group & mesh->pipeline;
}

static struct way *way_of(const struct sh_meets *m, int stage, const struct sh_op *op)
{
    bool back;
    int border = sh_program_border(op, stage, m->stages, &back);

    return &m->ways[sh_program_is_message(op) ? 2 * border + back : m->n - 1];
}

static struct meeting *meeting_at(struct way *w, int number)
{
    while (w->n <= number) {
        w->of = sh_grow(w->of, w->n, &w->cap, sizeof *w->of);
        w->of[w->n++] = (struct meeting){0};
    }
    return &w->of[number];
}

/* Sides start in order, so the one before has been started by all. */
int sh_meets_start(struct sh_meets *m, int stage, const struct sh_op *op, double now, double seconds)
{
    struct way *w = way_of(m, stage, op);
    int number = w->next[stage]++;
    struct meeting *it = meeting_at(w, number);

    it->latest = fmax(it->latest, now);
    it->seconds = fmax(it->seconds, seconds);
    if (++it->started == (sh_program_is_message(op) ? 2 : m->stages))
        it->end = fmax(it->latest, number ? w->of[number - 1].end : 0) + it->seconds;
    return number;
}

bool sh_meets_end(const struct sh_meets *m, int stage, const struct sh_op *op, int number, double *end)
{
    const struct meeting *it = &way_of(m, stage, op)->of[number];

    *end = it->end;
    return it->started == (sh_program_is_message(op) ? 2 : m->stages);
}
