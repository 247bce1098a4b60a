/* Calls by rows. The rows of a call are the letter N of its kind's shape (shape.h): an operand with a leading N has one
 * row for each of them.
 *
 * A kind is *local* if each row of what it makes follows from the same row of its inputs and from operands without rows,
 * which are parameters. Its other outputs are sums over rows, marked +=. So a local call may be made in parts. What a
 * part makes has the bits of the whole on any device where the row of a product does not depend on how many there are;
 * the bits of a sum depend on where it is cut. Therefore a sum over rows is a chain of blocks of attr->row_block rows:
 * each block is summed from zero, and blocks are added in order. Parts of whole blocks then change no bit.
 *
 * Local. */
#ifndef SH_KERNELS_ROWS_H
#define SH_KERNELS_ROWS_H

#include "kernels/op.h"
#include "kernels/shape.h"

/* Rows of a sum that are added up in one piece. Products of packed panels in float32 end a stretch here anyway
 * (kernels/cpu/gemm/gemm_panels.c). A block reads and writes the gradient of a matrix once more, 8 bytes an element for
 * 2 operations a row: of 8,192 rows that is a small part of its time on any device. */
enum { SH_ROW_BLOCK = 8192 };

/* Whether a kind is local; a kind of elements, whose letter is n, is local too. */
bool sh_rows_are_local(enum sh_op_kind kind);

/* Whether an operand of a local kind has rows; of a kind of elements each operand has. */
bool sh_rows_in(const struct sh_operand_row *row);

/* The rows of a call whose row block divides them into more than one block; 0: it is run as a whole. */
int64_t sh_rows_to_divide(const struct sh_op_call *call);

/* Run a kernel, or its preparation, once for each block. Scratch and queue are those of the call. */
sh_rc sh_rows_run(sh_kernel kernel, const struct sh_op_call *call);

/* Scratch bytes of a call that is run by sh_rows_run(). */
int64_t sh_rows_work_bytes(const struct sh_kernel_table *kernels, const struct sh_op_call *call, int threads);

#endif
