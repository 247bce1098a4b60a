/* The prices of all operations of a program: operations with the same operands are priced once. Inside src/cost; local. */
#ifndef SH_COST_PRICES_H
#define SH_COST_PRICES_H

#include "src/cost/step.h"

/* Of the calls of one kind of collective in a step. */
enum { SH_PLACE_FIRST = 1, SH_PLACE_LAST = 2 };

struct sh_prices {
    struct sh_price *of;
    int n, cap;
    int *index;                       /* [operations of the program] into `of` */
    unsigned char *place;             /* [operations] SH_PLACE_... */
    double slowdown[SH_COST_CLASSES]; /* of computation beside a collective of the class */
};

void sh_prices_make(const struct sh_cost_request *r, struct sh_prices *out);
void sh_prices_free(struct sh_prices *p);

/* The rows of a real trace, and an event of an operation in it; times in seconds from the start of the step. */
void sh_cost_trace_rows(struct sh_trace *t, const struct sh_program *p);
void sh_cost_trace_op(struct sh_trace *t, const struct sh_program *p, int op, int row, double begin, double end,
                      const struct sh_price *price);

#endif
