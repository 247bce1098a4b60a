/* Choose by measurement which of a library's kernels computes each matrix product: on rank 0, once, at the first start
 * in a folder. The answer is kept in a file there, products.txt, and is the same on all ranks and after a restart:
 * measured on another day, the clock would choose other kernels, and with them other bits. The file is not part of a
 * checkpoint, because any machine may load a checkpoint. */
#ifndef SH_RUN_PRODUCTS_H
#define SH_RUN_PRODUCTS_H

#include "src/device/device.h"

/* Choose for all calls that the device has prepared. Collective, agreed; call it before the arena holds anything,
 * because the measured products multiply its zeros. If the file is damaged, belongs to another GPU or library, or lacks
 * a product of this run, everything is measured again and a warning says so.
 *   gpu     in  the name of this rank's GPU; rank 0's counts
 *   folder  in  of the run; it exists
 * Cost:   up to 5 runs of up to 8 kernels for each shape: a few seconds.
 * Errors: SH_E_DATA if the file cannot be written: without it, a restart would have other bits. */
sh_rc sh_products_choose(const struct sh_device *device, const char *gpu, const char *folder, int rank);

#endif
