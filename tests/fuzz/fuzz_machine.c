/* Damaged machine files: refused in one line or read; one that is read has figures within their bounds and points by
 * which a price can be divided.
 *
 *   fuzz_machine [RUNS [SEED]]   random mutations of good texts; default 20000 runs; with SHERD_LONG as fuzz.h says
 *   clang -fsanitize=fuzzer      built with -DSH_LIBFUZZER: guided by coverage */
#include "src/base/hash.h"
#include "src/cost/price.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_figures(struct sh_machine *m)
{
    for (int i = 0; i < sh_machine_n_keys; i++) {
        double value = sh_machine_keys[i].text ? 0 : *sh_machine_figure(m, i);

        if (!isfinite(value) || (!sh_machine_keys[i].text && m->from[i] != SH_FROM_PRESET &&
                                 (value < sh_machine_keys[i].min || value > sh_machine_keys[i].max)))
            abort();
    }
}

/* Price a product and a gather close to the points of the seeds. */
static void check_prices(const struct sh_machine *m)
{
    struct sh_op_attr attr = {0};
    struct sh_op_call call = {
        .kind = SH_OP_LINEAR,
        .attr = &attr,
        .in = {{.dtype = SH_BF16, .ndim = 2, .dim = {8192, 4096}}, {.dtype = SH_BF16, .ndim = 2, .dim = {4096, 4096}}},
        .out = {{.dtype = SH_BF16, .ndim = 2, .dim = {8192, 4096}}}};
    struct sh_coll_place at = {.ranks = 16, .nodes = m->network.bytes_per_second > 0 ? 2 : 1, .rings = 1};

    if (!(sh_price_op(m, &sh_cost_as_is, &call, SH_BF16).seconds > 0))
        abort();
    if (!(sh_price_coll(m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1 << 20).seconds >= 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct sh_machine m;
    sh_rc rc;

    sh_error_clear();
    rc = sh_machine_parse((const char *)bytes, n, "fuzz", &m);
    if (rc == SH_OK) {
        check_figures(&m);
        check_prices(&m);
        sh_machine_close(&m);
    } else if (rc != SH_E_USAGE || !*sh_error_text() || strchr(sh_error_text(), '\n'))
        abort();
    return 0;
}

#ifndef SH_LIBFUZZER
static const char *const seeds[] = {
    ("device: {kind: h100-80}\nnode: {devices: 8}\nnetwork: {bytes_per_second: 400e9}\npoints:\n"
     "  - {kind: linear, type: bfloat16, dims: [8192, 4096, 14336], seconds: 1.41e-3, rounds: 20, spread: 0.01}\n"
     "  - {kind: all_gather, axis: shard, ranks: 16, nodes: 2, bytes: 67108864, seconds: 4.1e-4}\n"),
    ("machine: {name: leaf, source: 'x'}\ndevice:\n  kind: cpu\n  memory_bytes: 8e9\npoints:\n  - {figure: peak.bfloat16, value: 1e12}\n"
     "  - {kind: all_gather, beside: step, slowdown: 0.31}\n"),
    "device: {kind: a100-40}\noverlap: {slowdown: 0.3, serial: 1}\nspread: {node: 0}\nmemory: {share: 1e-12}\n",
};

static const char *const pieces[] = {"\n",        ": ",     "- ",        "[",        "]",       "{",    "}",
                                     ", ",        "0",      "-1",        "1e400",    "nan",     "1e24", "1e-300",
                                     "points:\n", "dims: ", "seconds: ", "kind: ",   "&a ",     "*a",   "---\n",
                                     "\"",        "'",      "\t",        "\xc3\xa9", "figure: "};

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_machine", .what = "texts", FUZZ_TEXTS(seeds, pieces)};

    return fuzz_texts(argc, argv, 20000, &made, LLVMFuzzerTestOneInput);
}
#endif
