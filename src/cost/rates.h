/* The tiers below the device's memory in a machine's figures. Local. */
#ifndef SH_COST_RATES_H
#define SH_COST_RATES_H

#include "src/config/config.h"
#include "src/cost/machine.h"

/* Put offload.rates into the machine, as measured; nothing is given: it stays. Reading and writing at once share the disk:
 * where the rate of both is given, each of them is slower by as much as that is below what the two alone would make. */
void sh_cost_take_rates(const struct sh_config *cfg, struct sh_machine *m);

/* Those of any CPU, with the same; nothing else of *m counts. */
void sh_cost_assume_rates(const struct sh_config *cfg, struct sh_machine *m);

#endif
