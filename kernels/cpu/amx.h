/* The tile unit of x86 processors (AMX): whether it may be used, and the panels that its products read.
 *
 * A panel holds 32 rows of op(A), or 32 columns of op(B), over a stretch of the inner dimension, as the tiles that
 * tdpbf16ps multiplies, one after the other: for each 32 of the inner dimension two tiles of 1 KiB. What lies outside
 * of the matrix is zero, so that products know no edges.
 *   rows:     tile h = rows 16h..16h+15, each of 32 inner elements
 *   columns:  tile h = columns 16h..16h+15, as 16 pairs of inner elements, each pair side by side in every column
 * All local, for one thread. Floor of packing: 2 bytes read and 2 written an element. */
#ifndef SH_KERNELS_CPU_AMX_H
#define SH_KERNELS_CPU_AMX_H

#include "src/base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum { SH_AMX_SIDE = 32 };                                /* rows or columns of a panel, and its step of the inner dimension */
enum { SH_AMX_STEP = SH_AMX_SIDE * SH_AMX_SIDE };         /* elements of a panel a step: two tiles */

/* Functions that use the unit; called only where sh_amx_usable() is true. */
#if defined(__x86_64__) && defined(HAVE_AMX)
#define SH_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

/* Also asks the system's leave for this process. */
bool sh_amx_usable(void);

/* Where 32 rows or columns of a stored matrix begin: element (i, k) of them is data[i * step + k] or, when `inner_rows`,
 * data[k * step + i]. */
struct sh_amx_source {
    const sh_bf16 *data;
    int64_t step;      /* distance of stored rows */
    bool inner_rows;   /* the inner dimension counts the stored rows */
    int64_t sides;     /* of the 32, those that exist */
    int64_t depth;     /* of the inner dimension, what exists; the panel is rounded up to 32 */
};

/* panel [ceil(depth / 32) * SH_AMX_STEP], 64-byte aligned */
void sh_amx_pack_rows(const struct sh_amx_source *s, sh_bf16 *panel);
void sh_amx_pack_cols(const struct sh_amx_source *s, sh_bf16 *panel);

#endif
