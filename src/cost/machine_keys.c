/* The keys of a machine file. Parsing, help and doc use these rows; a key is a field of struct sh_machine and a row
 * here. */
#include "src/cost/machine.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/cost/preset.h"

#include <stdlib.h>
#include <string.h>

/* The offset is enough to find a key: all numbers in struct sh_machine are doubles, all texts are arrays. */
#define AT(field) .offset = offsetof(struct sh_machine, field)
#define NUMBER(field, least, most, what, ...)                                                         \
    {                                                                                                 \
        .name = #field, AT(field), .min = (least), .max = (most), .unit = (what), .help = __VA_ARGS__ \
    }
#define TEXT(key, field, ...)                                                                             \
    {                                                                                                     \
        .name = (key), AT(field), .text = true, .max = sizeof((struct sh_machine *)0)->field, .unit = "", \
        .help = __VA_ARGS__                                                                               \
    }

/* Rates and shares are divisors, so they cannot be 0; LARGE is beyond any machine, and keeps sums finite. */
#define TINY 1e-12
#define LARGE 1e24

const struct sh_machine_key sh_machine_keys[] = {
    TEXT("machine.name", name, "name of the machine"),
    TEXT("machine.source", source, "who measured what, when, where"),
    NUMBER(node.devices, 1, 1024, "devices", "devices per node; each has one rank"),
    NUMBER(node.price_per_device_hour, 0, 1e6, "money", "cost of a device per hour; 0: not known"),
    TEXT("device.kind", device.kind, "preset that supplies what the file does not give"),
    NUMBER(device.memory_bytes, 1, LARGE, "bytes", "memory per device"),
    NUMBER(device.reserved_bytes, 0, LARGE, "bytes", "part of that memory used by drivers, libraries and NCCL"),
    NUMBER(device.launch_seconds, 0, 1, "s", "from one kernel launch to the next, back to back"),
    NUMBER(device.watts, 0, 1e6, "W", "power limit of a device; 0: not known"),
    NUMBER(peak.bfloat16, 1, LARGE, "flop/s",
           "rate of dense products in bfloat16, from the data sheet, or the best one measured"),
    NUMBER(peak.float32, 1, LARGE, "flop/s", "the same in float32"),
    NUMBER(product.share, TINY, 2, "", "share of the peak that an infinitely large product reaches within a step"),
    NUMBER(product.half, 0, 1e6, "elements", "smallest dimension with which a product reaches half of that share"),
    NUMBER(product.experts, TINY, 2, "",
           "share of those rates that the products of experts reach: on GPUs a kernel of Sherd computes them"),
    NUMBER(attention.forward, TINY, 2, "", "share of the peak that attention reaches, by causal operations"),
    NUMBER(attention.backward, TINY, 2, "", "the same for its backward, which adds in any order"),
    NUMBER(attention.ordered, TINY, 2, "",
           "share of that rate in one order, with training.deterministic; a [T,T] takes its time besides"),
    NUMBER(attention.ordered_bytes, 0, 1000, "bytes",
           "what the backward in one order moves per element of the [T,T] of each head; 0: it keeps none"),
    NUMBER(attention.own, TINY, 2, "",
           "share of the rates of attention that Sherd's own kernels reach, which add in one order: with documents, "
           "windows or float32, cuDNN has no kernel"),
    NUMBER(memory.bytes_per_second, 1, LARGE, "byte/s", "memory bandwidth, reads and writes together"),
    NUMBER(memory.share, TINY, 2, "", "share of that bandwidth that pointwise operations reach"),
    NUMBER(inside.bytes_per_second, 1, LARGE, "byte/s", "rate of a ring over the devices of a node, one way"),
    NUMBER(inside.hop_seconds, 0, 1, "s", "latency from one rank to the next within a node"),
    NUMBER(inside.nvls_bytes_per_second, 0, LARGE, "byte/s", "rate of an all_reduce summed in switches; 0: none"),
    NUMBER(inside.barrier_seconds, 0, 1, "s", "barrier of ranks that share memory on a CPU"),
    NUMBER(network.bytes_per_second, 0, LARGE, "byte/s", "network rate per node, one way; 0: there is no network"),
    NUMBER(network.share, TINY, 2, "", "share of that rate that collectives reach between two nodes"),
    NUMBER(network.hop_seconds, 0, 1, "s", "latency from one node to the next"),
    NUMBER(network.base_seconds, 0, 1, "s", "start-up of a collective, before anything moves"),
    NUMBER(network.crowding, 0, 10, "", "rates fall to 1 / (1 + crowding log2 nodes)"),
    NUMBER(network.taper, TINY, 1, "", "rate above a leaf switch over the rate below it; 1: no oversubscription"),
    NUMBER(overlap.slowdown, 0, 100, "", "computation takes 1 + this times as long while a collective is active"),
    NUMBER(overlap.serial, 0, 1, "",
           "1: collectives over one link wait for each other, like those of one NCCL communicator; 0: "
           "they share it, like Sherd's"),
    NUMBER(spread.node, 0, 1, "", "standard deviation of the speed of nodes, as a share"),
    NUMBER(disk.write, 1, LARGE, "byte/s", "write rate of all nodes together"),
    NUMBER(disk.read, 1, LARGE, "byte/s", "the same for reading"),
    NUMBER(disk.each_node, 1, LARGE, "byte/s", "rate that a single node reaches"),
    NUMBER(scratch.write, 1, LARGE, "byte/s",
           "write rate of a node's own disk, for offload.nvme_path; assumed if not given"),
    NUMBER(scratch.read, 1, LARGE, "byte/s", "the same for reading"),
    NUMBER(failure.device_hours, 0, LARGE, "h", "device-hours between failures; 0: not known"),
    NUMBER(failure.restart_seconds, 0, 1e7, "s", "from a failure to the first step after it, from a file"),
    NUMBER(
        failure.end_seconds, 0, 1e7, "s",
        "from a death that is known until the launcher of the other ranks has ended; 0 if it is killed, as srun by the job "
        "script"),
    NUMBER(failure.start_seconds, 0, 1e7, "s",
           "from the launch of ranks inside a job until they load: start_seconds of metrics.jsonl, up to data"),
    NUMBER(fit.computation, 0.01, 100, "",
           "factor on the predicted seconds of all computation; found by sherd plan --fit"),
    NUMBER(host.memory_bytes, 0, LARGE, "bytes", "host memory of a node with GPUs; 0: not known"),
    NUMBER(host.step_seconds, 0, 1e4, "s", "time of the host per step, between the operations"),
    NUMBER(
        host.read, 1, LARGE, "byte/s",
        "rate at which a GPU fetches from pinned host memory, while the others of its node do too and it also sends; "
        "assumed if not given"),
    NUMBER(host.write, 1, LARGE, "byte/s", "the same for sending back"),
};
const int sh_machine_n_keys = sizeof sh_machine_keys / sizeof *sh_machine_keys;
_Static_assert(sizeof sh_machine_keys / sizeof *sh_machine_keys <= SH_MACHINE_KEYS_MAX, "one mark for each");

int sh_machine_key_find(const char *name)
{
    for (int i = 0; i < sh_machine_n_keys; i++)
        if (!strcmp(sh_machine_keys[i].name, name))
            return i;
    return -1;
}

/* Only for keys that are numbers; the offset of a text is that of its first byte. */
double *sh_machine_figure(struct sh_machine *m, int key)
{
    return (double *)((char *)m + sh_machine_keys[key].offset);
}

const char *sh_machine_from_name(enum sh_machine_from from)
{
    static const char *const names[] = {"preset", "file", "measured"};

    return names[from];
}

/* The limit of a text is the size of its array, which is of no use to a reader. */
static void print_range(const struct sh_machine_key *k, FILE *out)
{
    if (k->text)
        fputs("text", out);
    else
        fprintf(out, "%g .. %g%s%s", k->min, k->max, *k->unit ? " " : "", k->unit);
}

/* The last column says how far a figure can be trusted: that of a preset is from a data sheet or from another
 * machine. */
void sh_machine_print(const struct sh_machine *m, FILE *out)
{
    for (int i = 0; i < sh_machine_n_keys; i++) {
        const struct sh_machine_key *k = &sh_machine_keys[i];
        const char *at = (const char *)m + k->offset;

        if (k->text)
            fprintf(out, "%-30s %s\n", k->name, at);
        else
            fprintf(out, "%-30s %-12.6g %-8s %s\n", k->name, *(const double *)at, k->unit,
                    sh_machine_from_name(m->from[i]));
    }
}

/* The keys are printed from the rows that parse them, so the help cannot become outdated. */
void sh_machine_help(FILE *out)
{
    enum { WIDTH = 74 };
    char names[SH_PRESET_NAMES], *presets;

    sh_str_wrap(
        out, WIDTH, 0, 0,
        "A machine file is YAML: sections with keys below them, and `points`, a list of measurements, which "
        "`sherd bench KIND --machine FILE` writes. Keys that are not given come from the preset of device.kind.");
    presets =
        sh_strfmt("Presets: %s. The name of a machine adds the devices per node and the Gb/s of network for each: "
                  "h100-80x8-ndr400.",
                  sh_preset_names(names));
    fputc('\n', out);
    sh_str_wrap(out, WIDTH, 0, 0, presets);
    free(presets);
    for (int i = 0; i < sh_machine_n_keys; i++) {
        fprintf(out, "\n%s: ", sh_machine_keys[i].name);
        print_range(&sh_machine_keys[i], out);
        fputc('\n', out);
        sh_str_wrap(out, WIDTH, 0, 4, sh_machine_keys[i].help);
    }
}
