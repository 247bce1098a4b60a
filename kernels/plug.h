/* Operations of plug-ins as kinds of the program. They get numbers from SH_OP_KINDS on, so that passes, prices and
 * printing read their rows like all others; the tables of kernels have one function here for all of them.
 *
 * Rows are added before the first program is made, by one thread, and never taken away. Local. */
#ifndef SH_KERNELS_PLUG_H
#define SH_KERNELS_PLUG_H

#include "include/sherd/plugin.h"
#include "kernels/op.h"

/* Add the rows of one plug-in, which stay where they are. Errors: SH_E_USAGE: a row that is wrong, by its name, with
 * what would be right; then none is added. */
sh_rc sh_plug_add(const struct sherd_plugin *library);

/* What is wrong with a row alone, as text without its name; NULL: nothing. */
enum { SH_PLUG_TEXT = 256 };
const char *sh_plug_wrong(const struct sherd_op *row, char text[SH_PLUG_TEXT]);
const char *sh_plug_loss_wrong(const struct sherd_loss *row);

/* The kind of that name; SH_OP_ROOM: there is none. */
enum sh_op_kind sh_plug_find(const char *name);

/* The row of a kind: NULL for a kind of Sherd's own, and for one that is of the other sort. */
const struct sherd_op *sh_plug_row(enum sh_op_kind kind);
const struct sherd_loss *sh_plug_loss(enum sh_op_kind kind);

/* The rows of its numbers [SHERD_NUMBERS]; NULL: no such kind. */
const struct sherd_number *sh_plug_number_rows(enum sh_op_kind kind);

/* Give number i of an operation another value, and put the values of all into an operation's attributes. */
void sh_plug_set(enum sh_op_kind kind, int i, double value);
void sh_plug_numbers(enum sh_op_kind kind, struct sh_op_attr *attr);

/* The kernels of operations; plug_loss.h has those of losses. Errors: SH_E_DATA: the kernel has failed; SH_E_USAGE: there is none for a GPU. */
sh_rc sh_plug_ref(const struct sh_op_call *call);
sh_rc sh_plug_cpu(const struct sh_op_call *call);
sh_rc sh_plug_cuda(const struct sh_op_call *call);
int64_t sh_plug_work_bytes(const struct sh_op_call *call);

#endif
