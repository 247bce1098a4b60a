/* Presets, one row per kind of device.
 *
 * Peaks and memory: data sheets, checked against clocks times units. The share that products of a training step reach:
 * fitted to published runs on A100 and H100, else 0.8 of the best single product in the tables of stas00/ml-engineering
 * (compute/accelerator). NCCL's rings inside a node: the same book, network/README.md, and NVIDIA/dgxc-benchmarking.
 * Attention: FlashAttention-2 on A100, FlashAttention-3 and cuDNN on H100 and later, from their papers. Latencies are
 * those of NCCL's tuning table (Simple protocol). The note of a row says which figures are guesses. h100-96 is
 * the card of torchtitan's benchmarks (benchmarks/llama3_h100_202412_torchtitan.md): memory, rate and watts are given
 * there; one factor on products and attention is fitted to its run of Llama 3.1 8B on 8 of them with torch.compile
 * (6,667 tokens/s each) and predicts the run on 128 (6,514) as 6,564. Any other card with a lower power limit or slower
 * memory is slower than its row: only a measurement tells. */
#include "src/cost/preset.h"

#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GB 1e9
#define GIB (1024.0 * 1024 * 1024)
#define T 1e12
/* The ratio of latencies in published runs to those of the table. */
#define HOPS 1.1

/* slowdown: of computation during a collective. host_bytes: the maximum host memory of a node per device, for devices
 * that come as one unit with their processor; 0: nodes differ. */
static const struct preset {
    const char *kind;
    double bf16, f32, share, attention_forward, attention_backward;
    double memory_rate, memory_bytes, ring, nvls, slowdown, watts, host_bytes;
    const char *note;
} presets[] = {
    /* clang-format off */
    {"a100-40",    312 * T,  19.5 * T, 0.79,  0.58, 0.48, 1.56 * T,  40 * GIB, 232 * GB,   0,      0.37,  400, 0, ""},
    {"a100-80",    312 * T,  19.5 * T, 0.79,  0.58, 0.48, 2.04 * T,  80 * GIB, 232 * GB,   0,      0.37,  400, 0, ""},
    {"h100-64",    989 * T,  67 * T,   0.645, 0.62, 0.50, 2.0 * T,   64 * GIB, 362 * GB,   0,      0.35,  700,
     0, "four of a node, all linked to all; its ring like that of an H100 behind switches"},
    {"h100-80",    989 * T,  67 * T,   0.645, 0.62, 0.50, 3.35 * T,  80 * GIB, 362 * GB, 480 * GB, 0.35,  700, 0, ""},
    {"h100-96",    989 * T,  67 * T,   0.419, 0.403, 0.325, 2.4 * T,   96 * GB,  362 * GB, 480 * GB, 0.35,  500,
     0, "HBM2e and a limit of 500 W; products and attention are 0.65 of h100-80, fitted to a run of 8"},
    {"h200-141",   989 * T,  67 * T,   0.645, 0.62, 0.50, 4.8 * T,  141 * GB,  364 * GB, 480 * GB, 0.35,  700, 0, ""},
    {"gh200-96",   989 * T,  67 * T,   0.67,  0.62, 0.50, 4.0 * T,   96 * GB,  362 * GB,   0,      0.35, 1000, 480 * GB, ""},
    {"gh200-141",  989 * T,  67 * T,   0.67,  0.62, 0.50, 4.8 * T,  141 * GB,  362 * GB,   0,      0.35, 1000, 480 * GB, ""},
    {"b200-180",  2250 * T,  75 * T,   0.62,  0.60, 0.48, 8.0 * T,  180 * GB,  682 * GB, 840 * GB, 0.35, 1000, 0, "attention and slow-down like those of an H100"},
    {"gb200-186", 2500 * T,  80 * T,   0.58,  0.60, 0.48, 8.0 * T,  186 * GB,  682 * GB, 840 * GB, 0.35, 1200, 240 * GB, "attention and slow-down like those of an H100"},
    {"mi250x-128", 383 * T,  95.7 * T, 0.5,   0.35, 0.30, 3.28 * T, 128 * GB,   50 * GB,   0,      0.37,  560,
     0, "both dies; product, attention and slow-down are guesses"},
    {"mi300x-192",1307 * T, 163 * T,   0.41,  0.35, 0.30, 5.3 * T,  192 * GB,  315 * GB,   0,      0.37,  750, 0, "attention, ring and slow-down are guesses"},
    {"mi325x-256",1307 * T, 163 * T,   0.48,  0.35, 0.30, 6.0 * T,  256 * GB,  315 * GB,   0,      0.37, 1000, 0, "attention, ring and slow-down are guesses"},
    {"cpu",          1 * T, 0.3 * T,   0.9,   0.10, 0.08, 0.02 * T,  64 * GIB,   5 * GB,   0,      1.0,     0,
     0, "two generic cores: measure yours with sherd bench gemm, step and comm --machine FILE"},
    /* clang-format on */
};
enum { PRESETS = sizeof presets / sizeof *presets };

/* What all devices have in common whose names begin so; the first row that fits counts, and others have no row.
 * node: devices of the usual node: those of an HGX or OAM board, of a tray of NVL72, or of the large systems with the
 * device; 0: nodes differ.
 *
 * ordered, ordered_bytes, own: attention (machine_keys.c). On Hopper in one order: FlashAttention-3's 474 of 575 TFLOP/s
 * (Dao-AILab/flash-attention #1893), and the [T,T] in bf16 that cuDNN writes and reads (NVIDIA/cudnn-frontend #398)
 * where it is not masked; measured on an H100, 32 heads, T = 8192, D = 128: 5.5 ms, and 3.2 in any order. The own
 * kernels reached 148 TFLOP/s forward and 113 backward there. On B200: 1157 of 1332 in the benchmark of cudnn-frontend;
 * own is a guess there and on A100, where cuDNN promises no order, so that the own kernels compute.
 *
 * experts: products of experts (machine_keys.c), all guesses, not measured: mma.sync is all that an A100 has, some 60 %
 * of what wgmma does on Hopper, and less of tcgen05 on Blackwell. */
static const struct family {
    const char *begin;
    int node;
    double ordered, ordered_bytes, own, experts;
} families[] = {
    /* clang-format off */
    {"a100",    8, 0.65, 0, 0.65, 0.8},
    {"h100-64", 4, 0.82, 2, 0.235, 0.55},
    {"h100",    8, 0.82, 2, 0.235, 0.55},
    {"h200",    8, 0.82, 2, 0.235, 0.55},
    {"gh200",   0, 0.82, 2, 0.235, 0.55},
    {"b200",    8, 0.87, 0, 0.16, 0.25},
    {"gb200",   4, 0.87, 0, 0.16, 0.25},
    {"mi250x",  4, 1,    0, 1, 1},
    {"mi3",     8, 1,    0, 1, 1},
    /* clang-format on */
};

static const struct family *family_of(const char *kind)
{
    static const struct family none = {.ordered = 1, .own = 1, .experts = 1};

    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strncmp(kind, families[i].begin, strlen(families[i].begin)))
            return &families[i];
    return &none;
}

/* What the word before the first - means if several devices begin with it. */
static const char *const usual[] = {"a100-80", "h100-80", "gh200-96"};

static bool is_usual(const char *kind, size_t length)
{
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!strcmp(kind, usual[i]))
            return kind[length] == '-';
    return false;
}

/* CPUs communicate by MPI messages; nothing is launched, and the work of the host falls between the operations. */
static void of_cpu(struct sh_machine *m)
{
    m->device.launch_seconds = 2e-6;
    m->device.reserved_bytes = 0;
    m->product.half = 16;
    m->memory.share = 1;
    m->inside.hop_seconds = 1e-6;
    m->inside.barrier_seconds = 6e-6;
    m->network.base_seconds = 5e-6;
    m->network.hop_seconds = 5e-6;
    m->failure.start_seconds = 5;
}

static void fill(const struct preset *p, struct sh_machine *m)
{
    const struct family *f = family_of(p->kind);

    *m = (struct sh_machine){
        .node = {.devices = 1},
        .device = {.memory_bytes = p->memory_bytes,
                   .reserved_bytes = 1.5 * GB,
                   .launch_seconds = 4e-6,
                   .watts = p->watts},
        .peak = {.bfloat16 = p->bf16, .float32 = p->f32},
        .product = {.share = p->share, .half = 226, .experts = f->experts},
        .attention = {.forward = p->attention_forward,
                      .backward = p->attention_backward,
                      .ordered = f->ordered,
                      .ordered_bytes = f->ordered_bytes,
                      .own = f->own},
        .memory = {.bytes_per_second = p->memory_rate, .share = 0.85},
        .inside = {.bytes_per_second = p->ring, .hop_seconds = HOPS * 3.4e-6, .nvls_bytes_per_second = p->nvls},
        .network = {.share = 0.88, .hop_seconds = HOPS * 14e-6, .base_seconds = 15e-6, .crowding = 0.073, .taper = 1},
        .overlap = {.slowdown = p->slowdown},
        .spread = {.node = 0.003},
        .disk = {.write = 40 * GB, .read = 60 * GB, .each_node = 4 * GB},
        .scratch = {.write = 2 * GB, .read = 3 * GB},
        .failure = {.device_hours = 50700, .restart_seconds = 300, .start_seconds = 40},
        /* The rates of a PCIe 4 x16 link, half of those of PCIe 5. */
        .host = {.memory_bytes = p->host_bytes, .step_seconds = 0.0004, .read = 20 * GB, .write = 20 * GB},
        .fit = {.computation = 1},
    };
    if (!strcmp(p->kind, "cpu"))
        of_cpu(m);
    snprintf(m->device.kind, sizeof m->device.kind, "%s", p->kind);
    snprintf(m->name, sizeof m->name, "%s", p->kind);
    snprintf(m->source, sizeof m->source, "preset%s%s", *p->note ? ": " : "", p->note);
}

bool sh_preset_device(const char *kind, size_t length, struct sh_machine *out)
{
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].kind) == length && !strncmp(presets[i].kind, kind, length)) {
            fill(&presets[i], out);
            return true;
        }
    return false;
}

void sh_preset_take_node(struct sh_machine *m)
{
    int devices = family_of(m->device.kind)->node;

    if (!devices || strcmp(m->name, m->device.kind))
        return;
    m->node.devices = devices;
    m->host.memory_bytes *= devices;
    snprintf(m->name, sizeof m->name, "%.*sx%d", SH_MACHINE_NAME - 16, m->device.kind, devices);
}

const char *sh_preset_names(char text[SH_PRESET_NAMES])
{
    text[0] = '\0';
    for (int i = 0; i < PRESETS; i++)
        sh_str_add(text, SH_PRESET_NAMES, ", ", presets[i].kind);
    return text;
}

/* "8-ndr400" after DEVICEx: the number of devices, then a word for people and the Gb/s per device. */
static bool read_node(const char *text, struct sh_machine *m)
{
    char *end;
    long devices = strtol(text, &end, 10);
    double gigabits;

    if (end == text || devices < 1 || devices > 1024)
        return false;
    m->node.devices = (double)devices;
    m->host.memory_bytes *= (double)devices;
    if (!*end)
        return true;
    if (*end++ != '-')
        return false;
    end += strspn(end, "abcdefghijklmnopqrstuvwxyz");
    text = end;
    gigabits = strtod(text, &end);
    m->network.bytes_per_second = gigabits * 1e9 / 8 * (double)devices;
    return end != text && !*end && gigabits > 0 && gigabits < 1e6;
}

/* Find the device that is called `kind`, or that begins so, alone or as the usual one of those that do. *n: how many
 * begin so; names: the list of them. */
static const struct preset *find_device(const char *kind, size_t length, int *n, char names[SH_PRESET_NAMES])
{
    const struct preset *only = NULL, *meant = NULL;

    *n = 0;
    names[0] = '\0';
    for (int i = 0; i < PRESETS; i++) {
        if (strncasecmp(presets[i].kind, kind, length))
            continue;
        only = &presets[i];
        if (!only->kind[length])
            return only;
        meant = is_usual(only->kind, length) ? only : meant;
        sh_str_add(names, SH_PRESET_NAMES, ", ", only->kind);
        ++*n;
    }
    return *n == 1 ? only : meant;
}

/* DEVICE, DEVICExN or DEVICExN-NETWORK; the last x ends the name of the device, because names may contain an x
 * themselves. The name of the machine has the whole name of its device. */
sh_rc sh_machine_preset(const char *name, struct sh_machine *out)
{
    char all[SH_PRESET_NAMES], alike[SH_PRESET_NAMES];
    struct sh_machine m;

    for (size_t at = strlen(name); at > 0; at--) {
        const struct preset *device;
        int n;

        if (name[at] && name[at] != 'x')
            continue;
        device = find_device(name, at, &n, alike);
        if (!device && n > 1)
            return sh_fail(SH_E_USAGE, "%s: which of %s?", name, alike);
        if (!device)
            continue;
        fill(device, &m);
        if (name[at] && !read_node(name + at + 1, &m))
            continue;
        snprintf(m.name, sizeof m.name, "%s%s", device->kind, name + at);
        *out = m;
        return SH_OK;
    }
    return sh_fail(
        SH_E_USAGE,
        "%s: neither a file nor the name of a machine, such as h100-80x8-ndr400: 8 devices per node, 400 Gb/s of "
        "network for each; devices are %s",
        name, sh_preset_names(all));
}

bool sh_machine_is_gpu(const struct sh_machine *m)
{
    return strcmp(m->device.kind, "cpu") != 0;
}
