/* The prices of all operations of a program: operations with the same operands are priced once. Inside src/cost;
 * local. */
#ifndef SH_COST_PRICES_H
#define SH_COST_PRICES_H

#include "src/cost/step.h"

/* Position among the calls of one kind of collective in a step. */
enum { SH_PLACE_FIRST = 1, SH_PLACE_LAST = 2 };

struct sh_prices {
    struct sh_price *of;
    int n, cap;
    int *index;                       /* [operations of the program] into `of` */
    unsigned char *place;             /* [operations] SH_PLACE_... */
    double slowdown[SH_COST_CLASSES]; /* of computation while a collective of the class runs */
};

void sh_prices_make(const struct sh_cost_request *r, struct sh_prices *out);
/* The work of one rank's step: operations of products, operations of attention, and bytes of the rest; at least 1 each.
 * On more ranks it is nearly the same, because only the part to update becomes smaller. `of`: the prices of the
 * program. */
void sh_prices_work(const struct sh_program *p, const struct sh_prices *of, double work[SH_WORK_DIMS]);
void sh_prices_free(struct sh_prices *p);

/* Write the events of a step like those of a real trace; times in seconds from the start of the step, in the order of
 * their ends. NULL: no trace was requested, and the calls do nothing.
 *   op  number in the section, from 0 */
struct sh_cost_trace;
struct sh_cost_trace *sh_cost_trace_begin(const struct sh_cost_request *r);
void sh_cost_trace_section(struct sh_cost_trace *t, const struct sh_section *s, double now);
void sh_cost_trace_op(struct sh_cost_trace *t, int op, double begin, double end, const struct sh_price *price);
void sh_cost_trace_section_end(struct sh_cost_trace *t, double now);
void sh_cost_trace_end(struct sh_cost_trace *t, double now);

#endif
