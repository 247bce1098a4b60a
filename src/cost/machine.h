/* A machine as the prices of src/cost need it: what its devices and networks do, and points that were measured on it.
 *
 * A machine is a preset's name ("h100-80x8-ndr400": 8 of that device in a node, and 400 Gb/s of network for each of them;
 * "h100-80x8" has no network), or a file of YAML whose keys are those of sh_machine_keys. What a file does not give comes
 * from the preset of its `device.kind`. `sherd help --machine` prints the keys. Local. */
#ifndef SH_COST_MACHINE_H
#define SH_COST_MACHINE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_WORK_DIMS = 3 }; /* of a whole step: prices.h */
enum { SH_MACHINE_NAME = 64, SH_MACHINE_SOURCE = 512, SH_MACHINE_KEYS_MAX = 64, SH_POINT_DIMS = 6 };

/* Where a figure comes from. */
enum sh_machine_from { SH_FROM_PRESET, SH_FROM_FILE, SH_FROM_MEASUREMENT };

/* What was measured; a row of `points`. Which fields count depends on `what`. */
enum sh_point_what {
    SH_POINT_OP,     /* kind, type, dims, seconds */
    SH_POINT_COLL,   /* kind, ranks, nodes, bytes, seconds */
    SH_POINT_BESIDE, /* kind: a collective; beside; slowdown */
    SH_POINT_FIGURE, /* figure: a key of the file; value */
    SH_POINT_STEP,   /* kind: "step"; type, dims of prices.h; value: seconds of its computation over those predicted */
};
struct sh_machine_point {
    enum sh_point_what what;
    char kind[32], type[12], axis[16], beside[32], figure[48];
    int n_dims;
    double dims[SH_POINT_DIMS];
    double ranks, nodes, bytes, seconds, value, slowdown, rounds, spread;
};

/* Figures in SI units: seconds, bytes, operations a second; one way, and per node where that is said. */
struct sh_machine {
    char name[SH_MACHINE_NAME], source[SH_MACHINE_SOURCE];
    struct {
        double devices, price_per_device_hour;
    } node;
    struct {
        char kind[SH_MACHINE_NAME];
        double memory_bytes, reserved_bytes, launch_seconds, watts;
    } device;
    struct {
        double bfloat16, float32;
    } peak;
    struct {
        double share, half;
    } product;
    struct {
        double forward, backward;
    } attention;
    struct {
        double bytes_per_second, share;
    } memory;
    struct {
        double bytes_per_second, hop_seconds, nvls_bytes_per_second, barrier_seconds;
    } inside;
    struct {
        double bytes_per_second, share, hop_seconds, base_seconds, crowding, taper;
    } network;
    struct {
        double slowdown, serial;
    } overlap;
    struct {
        double node;
    } spread;
    struct {
        double write, read, each_node;
    } disk;
    struct {
        double write, read;
    } scratch; /* of a node's own disk */
    struct {
        double device_hours, restart_seconds;
    } failure;
    struct {
        double memory_bytes, step_seconds, read, write; /* read, write: of moves between a GPU and it */
    } host;
    struct {
        double computation;
    } fit;

    enum sh_machine_from from[SH_MACHINE_KEYS_MAX]; /* by row of sh_machine_keys */
    struct sh_machine_point *points;
    int n_points, cap_points;
};

struct sh_machine_key {
    const char *name; /* "product.share" */
    size_t offset;    /* in struct sh_machine */
    bool text;        /* char[], `max` bytes with the 0 */
    double min, max;  /* of numbers, both allowed */
    const char *unit; /* "" of shares and texts */
    const char *help;
};
extern const struct sh_machine_key sh_machine_keys[];
extern const int sh_machine_n_keys;

/* By name, where there is no such file, or from a file.
 * Errors: SH_E_USAGE "file:line: ..." with the nearest key, or the presets where the name is none; SH_E_DATA. */
sh_rc sh_machine_load(const char *name_or_file, struct sh_machine *out);
/* The same of a text; name stands for it in messages. */
sh_rc sh_machine_parse(const char *text, size_t bytes, const char *name, struct sh_machine *out);
/* Errors: SH_E_USAGE: no such preset, with those that there are. */
sh_rc sh_machine_preset(const char *name, struct sh_machine *out);
void sh_machine_close(struct sh_machine *m);

/* Whether its devices are GPUs. */
bool sh_machine_is_gpu(const struct sh_machine *m);

/* The row of a key, -1: none. Its value in a machine; number keys only. */
int sh_machine_key_find(const char *name);
double *sh_machine_figure(struct sh_machine *m, int key);
const char *sh_machine_from_name(enum sh_machine_from from);

/* Write points into a file: those of the same kind and sizes are replaced, all else stays as it is, comments included. A
 * file that is not there is made, with `kind` as its device. Errors: SH_E_USAGE, SH_E_DATA: the file. */
sh_rc sh_machine_add_points(const char *path, const char *kind, const struct sh_machine_point *points, int n);

/* The same of a fit: steps that the file has from an earlier one go. */
sh_rc sh_machine_add_fit(const char *path, const char *kind, const struct sh_machine_point *points, int n);

/* A point as its line of the file, without a line break. */
void sh_machine_print_point(const struct sh_machine_point *p, FILE *out);

/* The keys and the presets, as text. */
void sh_machine_help(FILE *out);

/* Each figure with its unit and where it comes from. */
void sh_machine_print(const struct sh_machine *m, FILE *out);

#endif
