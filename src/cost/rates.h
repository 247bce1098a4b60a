/* The rates of the lower tiers in the figures of a machine. Local. */
#ifndef SH_COST_RATES_H
#define SH_COST_RATES_H

#include "src/config/config.h"
#include "src/cost/machine.h"

/* Put offload.rates into the machine, as measured; rates that are not given stay. Reading and writing at once share the
 * disk: if the mixed rate is given, both rates are multiplied by its ratio to the rate of reading and writing in
 * turn. */
void sh_cost_take_rates(const struct sh_config *cfg, struct sh_machine *m);

/* The preset of a generic CPU or GPU, with offload.rates. It has no network. */
void sh_cost_assume_machine(const struct sh_config *cfg, bool gpu, struct sh_machine *m);

/* And a network between nodes: 100 Gb/s per node of CPUs, 200 Gb/s per GPU. */
void sh_cost_assume_network(bool gpu, int ranks_per_node, struct sh_machine *m);

#endif
