#include "src/pass/check/check.h"

const struct sh_op *sh_check_op(const struct sh_check *c, int i)
{
    return &c->p->ops[c->section->first_op + i];
}

sh_rc sh_check_broken(const struct sh_check *c, int i, const char *what)
{
    return sh_fail(SH_E_BUG, "program check: %s, operation %d (%s): %s", sh_section_name(c->section->kind), i,
                   sh_op_info(sh_check_op(c, i)->kind)->name, what);
}
