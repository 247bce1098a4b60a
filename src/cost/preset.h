/* Devices and their published figures. Inside src/cost; local. */
#ifndef SH_COST_PRESET_H
#define SH_COST_PRESET_H

#include "src/cost/machine.h"

/* All figures for a kind of device, as one node with one device and no network. False: there is no such kind. */
bool sh_preset_device(const char *kind, size_t length, struct sh_machine *out);

/* The names of all presets, separated by ", ". */
enum { SH_PRESET_NAMES = 512 };
const char *sh_preset_names(char text[SH_PRESET_NAMES]);

/* Make a device alone, as its name says, the usual node of that device; others stay. */
void sh_preset_take_node(struct sh_machine *m);

#endif
