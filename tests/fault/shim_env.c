/* The shim as a library for LD_PRELOAD, which injects faults into `sherd` itself. One fault of one rank, from the
 * environment:
 *
 *   SHIM_FOLDER=out/ SHIM_AFTER=part-of-a-path SHIM_RANK=1 SHIM_CALL=write SHIM_NUMBER=3 SHIM_FAULT=kill
 *
 * SHIM_FAULT is kill, hang, ask, short, lose, flip, count, or the number of an errno; with SHIM_LASTING all later calls of that
 * kind fail too. At the end the calls are written, one line per rank, to the file SHIM_COUNTS if that is given:
 * "rank call call ...", in their order. */
#include "tests/fault/shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static enum shim_call call_of(const char *name)
{
    int c = 0;
    while (c < SHIM_ANY && strcmp(shim_call_name[c], name) != 0)
        c++;
    return (enum shim_call)c;
}

static enum shim_fault fault_of(const char *name)
{
    static const struct {
        const char *name;
        enum shim_fault fault;
    } faults[] = {{"kill", SHIM_KILL}, {"hang", SHIM_HANG}, {"short", SHIM_SHORT},  {"lose", SHIM_LOSE},
                  {"flip", SHIM_FLIP}, {"ask", SHIM_ASK},   {"count", SHIM_NOTHING}};

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (!strcmp(name, faults[i].name))
            return faults[i].fault;
    return SHIM_FAIL;
}

static struct shim_plan plan_here(void)
{
    const char *fault = setting("SHIM_FAULT");
    struct shim_plan plan = {.call = call_of(setting("SHIM_CALL")),
                             .number = atol(setting("SHIM_NUMBER")),
                             .lasting = getenv("SHIM_LASTING") != NULL};
    plan.fault = fault_of(fault);
    if (plan.fault == SHIM_FAIL)
        plan.error = atoi(fault);
    return plan;
}

__attribute__((constructor)) static void begin(void)
{
    bool counting = strcmp(setting("SHIM_FAULT"), "count") == 0;
    if (getenv("SHIM_FOLDER") && (counting || shim_rank() == atoi(setting("SHIM_RANK"))))
        shim_start(setting("SHIM_FOLDER"), getenv("SHIM_AFTER"), plan_here());
}

/* Use one write to a file opened for appending, however long the line is, so the ranks' lines do not mix. */
__attribute__((destructor)) static void tell(void)
{
    enum { LINE_BYTES = 16 * (SHIM_ORDER + 1) };
    static char line[LINE_BYTES];
    FILE *out = getenv("SHIM_COUNTS") ? fopen(getenv("SHIM_COUNTS"), "a") : NULL;
    shim_stop();
    if (!out)
        return;
    setvbuf(out, line, _IOFBF, sizeof line);
    fprintf(out, "%d", shim_rank());
    for (long i = 0; i < shim_count(SHIM_ANY) && i < SHIM_ORDER; i++)
        fprintf(out, " %s", shim_call_name[shim_order(i)]);
    fprintf(out, "\n");
    fclose(out);
}
