/* The keys of a machine file: parsing, help and doc read these rows; a key is a field of struct sh_machine and a row. */
#include "src/cost/machine.h"

#include "src/base/mem.h"
#include "src/base/str.h"
#include "src/cost/preset.h"

#include <stdlib.h>
#include <string.h>

/* The offset alone says where a key lives: all numbers of struct sh_machine are doubles, all texts are arrays in it. */
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

/* Rates and shares divide, so that 0 is no value of theirs; LARGE is beyond any machine, and keeps sums finite. */
#define TINY 1e-12
#define LARGE 1e24

const struct sh_machine_key sh_machine_keys[] = {
    TEXT("machine.name", name, "what it is called"),
    TEXT("machine.source", source, "who measured what, when, where"),
    NUMBER(node.devices, 1, 1024, "devices", "devices of a node; a rank computes on each"),
    NUMBER(node.price_per_device_hour, 0, 1e6, "money", "what a device costs per hour; 0: not known"),
    TEXT("device.kind", device.kind, "the preset that gives what the file does not"),
    NUMBER(device.memory_bytes, 1, LARGE, "bytes", "memory of a device"),
    NUMBER(device.reserved_bytes, 0, LARGE, "bytes", "of it, what drivers, libraries and NCCL take"),
    NUMBER(device.launch_seconds, 0, 1, "s", "from one call to the next where they follow each other at once"),
    NUMBER(device.watts, 0, 1e6, "W", "what it may draw; 0: not known"),
    NUMBER(peak.bfloat16, 1, LARGE, "flop/s",
           "dense products in bfloat16, of the data sheet, or the best one measured"),
    NUMBER(peak.float32, 1, LARGE, "flop/s", "the same in float32"),
    NUMBER(product.share, TINY, 2, "", "share of the peak that an endlessly large product of a step reaches"),
    NUMBER(product.half, 0, 1e6, "elements", "least dimension at which a product reaches half of that"),
    NUMBER(attention.forward, TINY, 2, "", "share of the peak, by causal operations"),
    NUMBER(attention.backward, TINY, 2, "", "the same of its backward"),
    NUMBER(memory.bytes_per_second, 1, LARGE, "byte/s", "read and written together"),
    NUMBER(memory.share, TINY, 2, "", "share of that which pointwise operations reach"),
    NUMBER(inside.bytes_per_second, 1, LARGE, "byte/s", "of a ring over the devices of a node, one way"),
    NUMBER(inside.hop_seconds, 0, 1, "s", "from one rank to the next in a node"),
    NUMBER(inside.nvls_bytes_per_second, 0, LARGE, "byte/s", "of an all_reduce that switches sum; 0: they do not"),
    NUMBER(inside.barrier_seconds, 0, 1, "s", "of ranks that share memory on a CPU"),
    NUMBER(network.bytes_per_second, 0, LARGE, "byte/s", "of a node, one way; 0: it has no network"),
    NUMBER(network.share, TINY, 2, "", "share of that which collectives reach between two nodes"),
    NUMBER(network.hop_seconds, 0, 1, "s", "from one node to the next"),
    NUMBER(network.base_seconds, 0, 1, "s", "of a collective, before anything moves"),
    NUMBER(network.crowding, 0, 10, "", "rates fall to 1 / (1 + crowding log2 nodes)"),
    NUMBER(network.taper, TINY, 1, "", "rate beyond a leaf switch over that below it; 1: none is lost"),
    NUMBER(overlap.slowdown, 0, 100, "", "computation takes 1 + this while a collective moves"),
    NUMBER(overlap.serial, 0, 1, "",
           "1: collectives over one link wait for each other, as those of one communicator of NCCL do; 0: "
           "they share it, as Sherd's do"),
    NUMBER(spread.node, 0, 1, "", "standard deviation of the speed of nodes, as a share"),
    NUMBER(disk.write, 1, LARGE, "byte/s", "of all nodes together"),
    NUMBER(disk.read, 1, LARGE, "byte/s", "the same of reading"),
    NUMBER(disk.each_node, 1, LARGE, "byte/s", "that a node reaches by itself"),
    NUMBER(scratch.write, 1, LARGE, "byte/s", "of a node's own disk, for offload.nvme_path; assumed where not given"),
    NUMBER(scratch.read, 1, LARGE, "byte/s", "the same of reading"),
    NUMBER(failure.device_hours, 0, LARGE, "h", "device-hours between failures; 0: not known"),
    NUMBER(failure.restart_seconds, 0, 1e7, "s", "from a failure to the first step after it"),
    NUMBER(fit.computation, 0.01, 100, "",
           "seconds of all computation over those of formulas and points; found by sherd plan --fit"),
    NUMBER(host.memory_bytes, 0, LARGE, "bytes", "memory of a node beside its GPUs; 0: not known"),
    NUMBER(host.step_seconds, 0, 1e4, "s", "of the host between the operations of a step"),
    NUMBER(
        host.read, 1, LARGE, "byte/s",
        "that a GPU fetches from pinned memory of its host, while others of its node do and it sends as well; assumed "
        "where not given"),
    NUMBER(host.write, 1, LARGE, "byte/s", "the same of sending back"),
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

/* For keys that are numbers; a text's offset is that of its first byte. */
double *sh_machine_figure(struct sh_machine *m, int key)
{
    return (double *)((char *)m + sh_machine_keys[key].offset);
}

const char *sh_machine_from_name(enum sh_machine_from from)
{
    static const char *const names[] = {"preset", "file", "measured"};

    return names[from];
}

/* A text's limit is that of its array, which helps no reader. */
static void print_range(const struct sh_machine_key *k, FILE *out)
{
    if (k->text)
        fputs("text", out);
    else
        fprintf(out, "%g .. %g%s%s", k->min, k->max, *k->unit ? " " : "", k->unit);
}

/* The last column says how far a figure can be trusted: a preset's is of a data sheet or of another machine. */
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

/* The keys are printed from the rows that parse them, so that the help cannot fall behind. */
void sh_machine_help(FILE *out)
{
    enum { WIDTH = 74 };
    char names[SH_PRESET_NAMES], *presets;

    sh_str_wrap(
        out, WIDTH, 0, 0,
        "A machine file is YAML: sections with keys below them, and `points`, a list of what was measured, which "
        "`sherd bench KIND --machine FILE` writes. What is not given comes from the preset of device.kind.");
    presets =
        sh_strfmt("Presets: %s. As the name of a machine with the devices of a node and Gb/s of network for each: "
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
