#include "src/cmd/cmd.h"

#include <string.h>

static const struct sh_cmd_option train[] = {
    {"--trace", "FILE", "write a trace of the steps chosen by profiling.* (the same as --profiling.trace=FILE)"},
    {"--init-from", "FILE",
     "a new run with the parameters of a checkpoint, new optimizer, step 0 (the same as "
     "--checkpoint.initial_load_path=FILE --checkpoint.initial_load_model_only=true)"},
    {"--print-config", NULL, "print the resolved configuration and stop"},
    {0},
};

static const struct sh_cmd_option plan[] = {
    {"--ranks", "N", "plan for a job of N ranks (the same as --mesh.ranks=N)"},
    {"--rank", "R", "plan rank R of them; default 0"},
    {"--threads", "N", "threads of a rank, which scratch memory depends on (the same as --training.threads=N)"},
    {"--show", NULL, "print the program: every operation with its tensors"},
    {"--print-config", NULL, "print the resolved configuration and stop"},
    {0},
};

static const struct sh_cmd_option tokenize[] = {
    {"-o", "FILE", "token file to write"},
    {"--val", "FILE", "write the end of the text into this file instead"},
    {"--val-fraction", "F", "share of the text for --val; default 0.1"},
    {0},
};

static const struct sh_cmd_option generate[] = {
    {"--checkpoint", "FILE", "model to sample from"},
    {"--prompt", "TEXT", "text to continue; default a line break"},
    {"--tokens", "N", "tokens to add; default 256"},
    {"--temperature", "X", "0: the likeliest token each time; default 0.8"},
    {"--top-k", "K", "choose among the K likeliest; 0: all; default 40"},
    {"--seed", "S", "of the sampling; default 1"},
    {0},
};

static const struct sh_cmd_option eval[] = {
    {"--checkpoint", "FILE", "model to evaluate"},
    {"--data", "FILE", "token file; default validation.dataset_path"},
    {0},
};

static const struct sh_cmd_option ckpt[] = {
    {"--quick", NULL, "ls: look at structure and meta data only, not at all the data"},
    {"-o", "FILE", "extract: array file to write (.npy)"},
    {"--state", "STATE", "extract: model, exp_avg or exp_avg_sq; default model"},
    {"--keep-latest", "K", "prune: the newest K stay"},
    {"--keep-every", "N", "prune: and those whose step is a multiple of N; default none"},
    {"--dry-run", NULL, "prune: say what would be deleted, and delete nothing"},
    {0},
};

static const struct sh_cmd_option help[] = {
    {"--format", "FORM", "text, roff (man page) or markdown; default text"},
    {"--config", NULL, "the keys of the configuration instead of the commands"},
    {0},
};

const struct sh_cmd sh_commands[] = {
    {"train", "CONFIG.yaml", "train a model; start it with mpirun or srun, one rank per process", train, .config = true,
     .mpi = true, .run = sh_cmd_train},
    {"plan", "CONFIG.yaml", "show mesh, units, memory and collectives of a training step on any number of ranks", plan,
     .config = true, .run = sh_cmd_plan},
    {"tokenize", "INPUT...", "turn text files into a token file, one token a byte", tokenize, .run = sh_cmd_tokenize},
    {"generate", "[CONFIG.yaml]", "continue a text with a model from a checkpoint", generate, .config = true,
     .mpi = true, .run = sh_cmd_generate},
    {"eval", "[CONFIG.yaml]", "mean loss of a model from a checkpoint over a token file", eval, .config = true,
     .mpi = true, .run = sh_cmd_eval},
    {"ckpt", "info|verify|ls|diff|extract|prune ARGUMENT...",
     "checkpoints: show what a FILE holds; check every block of it; list a FOLDER as valid, damaged, partial; compare "
     "two "
     "FILEs (exit 3 when they differ); write the TENSOR of a FILE as an array; delete old ones of a FOLDER",
     ckpt, .run = sh_cmd_ckpt},
    {"help", "", "this text; the keys of the configuration with --config", help, .run = sh_cmd_help_run},
    {0},
};

const struct sh_cmd *sh_cmd_find(const char *name)
{
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}
