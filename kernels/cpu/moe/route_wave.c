/* Which rows travel in a wave: P E numbers, whoever computes them, so one thread does. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct wave {
    const int32_t *first;
    int64_t P, E, room;
    int wave, place;
    int32_t *rows, *at, *groups;
};

/* Enter a segment of n rows that travels in this wave. */
static void enter(const struct wave *w, int64_t from, int64_t to, int64_t expert, int32_t row, int32_t n)
{
    int64_t part = from * w->P + to, here = w->E / w->P;

    if (!w->rows[part])
        w->at[part] = row;
    w->rows[part] += n;
    if (to == w->place)
        w->groups[from * here + expert % here + 1] = n;
}

static void deal_out(const struct wave *w, int64_t to)
{
    int64_t here = w->E / w->P, used = 0;
    int newest = 0;

    for (int64_t e = to * here; e < (to + 1) * here; e++)
        for (int64_t from = 0; from < w->P; from++) {
            const int32_t *row = w->first + from * (w->E + 1) + e;
            int32_t n = row[1] - row[0];

            if (used + n > w->room) {
                used = 0;
                newest++;
            }
            used += n;
            if (newest == w->wave && n)
                enter(w, from, to, e, row[0], n);
        }
}

/* Whether anyone receives rows, and how many whoever receives most. */
static void note_used(const struct wave *w, const struct sh_op_call *call)
{
    double *used = call->out[2].data;
    int64_t most = 0;

    if (!sh_op_adds(call, 2))
        used[0] = used[1] = 0;
    for (int64_t to = 0; to < w->P; to++) {
        int64_t rows = 0;

        for (int64_t from = 0; from < w->P; from++)
            rows += w->rows[from * w->P + to];
        most = rows > most ? rows : most;
    }
    used[0] += most > 0;
    used[1] += (double)most;
}

sh_rc sh_cpu_route_wave(const struct sh_op_call *call)
{
    int64_t P = call->in[0].dim[0], E = call->in[0].dim[1] - 1;
    struct wave w = {.first = call->in[0].data,
                     .P = P,
                     .E = E,
                     .room = call->attr->wave.room,
                     .wave = call->attr->wave.wave,
                     .place = call->attr->wave.place,
                     .rows = call->out[0].data,
                     .at = (int32_t *)call->out[0].data + P * P,
                     .groups = call->out[1].data};

    memset(w.rows, 0, (size_t)(2 * P * P) * sizeof *w.rows);
    memset(w.groups, 0, (size_t)(E + 1) * sizeof *w.groups);
    for (int64_t to = 0; to < P; to++)
        deal_out(&w, to);
    for (int64_t i = 1; i <= E; i++)
        w.groups[i] += w.groups[i - 1];
    if (call->out[2].data)
        note_used(&w, call);
    return SH_OK;
}
