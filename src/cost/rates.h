/* The tiers below the device's memory in a machine's figures. Local. */
#ifndef SH_COST_RATES_H
#define SH_COST_RATES_H

#include "src/config/config.h"
#include "src/cost/machine.h"

/* Put offload.rates into the machine, as measured; what is not given stays. Reading and writing at once share the disk:
 * where the rate of both is given, each of them is slower by as much as that is below what the two alone would make. */
void sh_cost_take_rates(const struct sh_config *cfg, struct sh_machine *m);

/* The preset of a CPU or a GPU of no special make, with the same. It has no network. */
void sh_cost_assume_machine(const struct sh_config *cfg, bool gpu, struct sh_machine *m);

#endif
