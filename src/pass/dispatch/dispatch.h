/* Shared by the files of the dispatch pass (dispatch.c says what it does). Local.
 *
 * routes.c finds what belongs to experts, travel.c moves rows between ranks, waves.c computes over those that have come, and
 * dispatch.c walks over the micro-step. */
#ifndef SH_PASS_DISPATCH_H
#define SH_PASS_DISPATCH_H

#include "src/pass/build.h"

/* A plan of the model's routers, and how its rows travel. */
struct sh_dispatch_route {
    const struct sh_op *plan;
    int64_t rows, room; /* M, R */
    int waves;
    int *parts, *groups; /* [waves] tensors */
    int own_first,
        own_groups; /* tensors of the first wave, for this rank's own experts: their first sorted row; their groups */
};

struct sh_dispatch {
    struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int ranks, stream;
    double capacity;
    struct sh_op *old; /* the original operations */
    int n_old, n_tensors;
    bool *done;     /* [n_old] emitted ahead of its place */
    int *producer;  /* [n_tensors] the original operation of experts that makes it in the forward, SH_NONE */
    int *route;     /* [n_old] of an operation of experts, SH_NONE for others */
    int *maker;     /* [n_tensors] the route of the operation that makes it, SH_NONE */
    bool *wanted;   /* [n_tensors] other operations read it */
    bool *whole;    /* [n_tensors] and not only sums of its rows */
    int *near;      /* [n_tensors] where the rows of the first wave are that do not travel; SH_NONE */
    bool *made;     /* [n_tensors] an operation that makes it at home is emitted */
    int *gather;    /* [n_tensors] the original operation that puts its rows in order in the forward, SH_NONE */
    int *sorted;    /* [n_tensors] the same in the order of rows: for numbers of choices, and rows that are put in order
                       again; SH_NONE */
    bool *by_token; /* [n_tensors] it has a number for each choice of a token, not one for each row */
    int **away;     /* [waves] of [n_tensors]: where it is with the experts, SH_NONE */
    int n_waves;    /* of the route with the most */
    int *used;      /* [n_waves] where its use is reported; SH_NONE: it is not */
    struct sh_dispatch_route *routes;
    int n_routes;
};

/* Operations of one route that follow each other if others are emitted before them. */
struct sh_dispatch_run {
    const struct sh_dispatch_route *route;
    int first, last;
    bool *in; /* [last - first + 1] */
};

/* An activation of the rows of experts, times their weights; and its backward. */
bool sh_dispatch_activates(enum sh_op_kind kind);
bool sh_dispatch_activates_back(enum sh_op_kind kind);

/* Fill d->routes; and what there is to know of operations and tensors before anything is emitted. */
void sh_dispatch_find_routes(struct sh_dispatch *d);
void sh_dispatch_note_tensors(struct sh_dispatch *d);

/* The route of whose plan a tensor is result k; NULL: none. */
const struct sh_dispatch_route *sh_dispatch_route_of_plan(const struct sh_dispatch *d, int t, int k);

/* Make the tensors where the use of waves is reported; and append the waves of a route, right after its plan. */
void sh_dispatch_report_waves(struct sh_dispatch *d);
void sh_dispatch_plan_waves(struct sh_dispatch *d, struct sh_dispatch_route *r);

/* Make room for `rows` rows of a tensor that has them for a route; and a view of elements [first, first + n). Both return the
 * tensor. */
int sh_dispatch_add_like(struct sh_dispatch *d, int t, const struct sh_dispatch_route *r, int64_t rows,
                         const char *what, int wave);
int sh_dispatch_slice(struct sh_dispatch *d, int t, int64_t first, int64_t n);

/* Let one wave's rows travel: from the home [M,...] of a tensor to the experts, or back. by_row: put numbers that have the order
 * of tokens into that of rows, or back. of: an operation of the same phase and block. */
void sh_dispatch_exchange(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int wave,
                          int from, int to, bool back);
void sh_dispatch_by_row(struct sh_dispatch *d, const struct sh_op *of, int from, int order, int to);

/* Change an operation that puts rows in order, or sums them: rows of this rank for its own experts do not travel. */
void sh_dispatch_gather_near(struct sh_dispatch *d, struct sh_op *op);
void sh_dispatch_sum_near(const struct sh_dispatch *d, struct sh_op *op);

/* Let what a run needs of other operations travel, if it is there. emit_waves: all waves of a run, one after the other. */
void sh_dispatch_send_ahead(struct sh_dispatch *d, const struct sh_dispatch_run *run, int wave);
void sh_dispatch_emit_waves(struct sh_dispatch *d, const struct sh_dispatch_run *run);

#endif
