/* Which of a library's kernels each product of matrices takes, by measurement: on rank 0, once, at the first start in a
 * folder. The answer stands in a file there, products.txt, and is the same on all ranks and after a restart: a clock chooses
 * otherwise on another day, and with the kernel the bits. It is no part of a checkpoint, which any machine may load. */
#ifndef SH_RUN_PRODUCTS_H
#define SH_RUN_PRODUCTS_H

#include "src/device/device.h"

/* Choose for all calls that the device has prepared. Collective, agreed; before the arena has anything in it: what is
 * measured multiplies its zeros. A file that is damaged, of another GPU or library, or without a product of this run is
 * measured anew, with a line.
 *   gpu     in  the name of this rank's GPU; rank 0's counts
 *   folder  in  of the run; there
 * Cost:   up to 5 runs of up to 8 kernels for each shape: some seconds.
 * Errors: SH_E_DATA when the file cannot be written: without it, a restart would have other bits. */
sh_rc sh_products_choose(const struct sh_device *device, const char *gpu, const char *folder, int rank);

#endif
