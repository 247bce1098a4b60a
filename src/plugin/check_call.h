/* What a call of an operation of a plug-in leaves alone, shows and takes, whatever it computes; rows of sh_op_checks. Local. */
#ifndef SH_PLUGIN_CHECK_CALL_H
#define SH_PLUGIN_CHECK_CALL_H

#include "src/plugin/subject.h"

bool sh_call_check_outside(struct sh_subject *s);
bool sh_call_check_nan(struct sh_subject *s);
bool sh_call_check_bits(struct sh_subject *s);
bool sh_call_check_in_place(struct sh_subject *s);
bool sh_call_check_queue(struct sh_subject *s);
bool sh_call_check_process(struct sh_subject *s);
bool sh_call_check_flops(struct sh_subject *s);

#endif
