/* All commands and their options, as data: parsing, help, man page and documentation use these rows. `key` is the key
 * of the configuration that an option sets to its value; `also` is a complete "key=value" that it sets in addition. An
 * option with neither is read by the command itself. */
#include "src/cmd/cmd.h"
#include "src/pass/pass.h"

#include <string.h>

#define PASS_NAME(name, training) " " #name

/* clang-format off */
static const struct sh_cmd_option train[] = {
    {.name = "--trace", .value = "FILE",
     .help = "write a trace of the steps chosen by profiling.* (the same as --profiling.trace=FILE)",
     .key = "profiling.trace"},
    {.name = "--init-from", .value = "FILE", .help =
     "start a new run at step 0 from the parameters of a checkpoint, with a fresh optimizer (the same as "
     "--checkpoint.initial_load_path=FILE --checkpoint.initial_load_model_only=true)",
     .key = "checkpoint.initial_load_path", .also = "checkpoint.initial_load_model_only=true"},
    {.name = "--share-gpu",
     .help = "let several ranks use one GPU: slow, for tests (the same as --comm.share_gpu=true)",
     .also = "comm.share_gpu=true"},
    {.name = "--allow-plugin-change",
     .help = "continue with other plug-ins than the checkpoint was saved with (the same as --plugin.allow_change=true)",
     .also = "plugin.allow_change=true"},
    {.name = "--print-config", .help = "print the resolved configuration and stop"},
    {0},
};

/* Options of transformers' run_clm.py and Trainer; src/tools/run_clm/words.c turns them into keys. */
static const struct sh_cmd_option run_clm[] = {
#define OPTIONS_ONLY
#define KEY(name_, value_, key_, help_) {.name = "--" name_, .value = value_, .help = help_},
#define DEFAULT(name_, value_, key_, none_) {.name = "--" name_, .value = value_, .help = key_ "; default " none_},
#define OWN(name_, value_, key_, help_) {.name = "--" name_, .value = value_, .help = help_},
#define CHOICE(name_, value_, text_, help_) {.name = "--" name_, .value = value_, .help = help_},
#define NOTHING(name_) {.name = "--" name_, .value = "[VALUE...]"},
#define IF(...)
#include "src/config/foreign/trainer.inc"
    {.name = "--print-config", .help = "print the resolved configuration and stop"},
    {0},
};

/* --rank is not a key: it chooses what is printed and is not part of a run. */
static const struct sh_cmd_option plan[] = {
    {.name = "--ranks", .value = "N",
     .help = "plan for a job of N ranks (the same as --mesh.ranks=N)", .key = "mesh.ranks"},
    {.name = "--rank", .value = "R", .help = "plan rank R of that job; default 0"},
    {.name = "--threads", .value = "N",
     .help = "threads per rank, which determine scratch memory (the same as --training.threads=N)",
     .key = "training.threads"},
    {.name = "--machine", .value = "NAME", .help = "predict the time of a step on this machine: a file, or a preset "
     "such as h100-80x8-ndr400 (8 devices per node, 400 Gb/s of network for each; b200 is short for the one preset that "
     "begins so, h100 for h100-80); sherd help --machine lists keys and presets"},
    {.name = "--json", .value = "FILE", .help = "with --machine: write the prediction to this file"},
    {.name = "--trace", .value = "FILE", .help = "with --machine: write the predicted step as a trace, for ui.perfetto.dev"},
    {.name = "--what-if", .value = "PARTS", .help = "with --machine: predict again with parts of the machine this many "
     "times as fast: products=1.2,network=2"},
    {.name = "--search", .help = "with --machine: try strategies, meshes, micro-batches, recomputation, tiles, prefetch and "
     "ranks that share sequences or matrices, and list the best first. They leave 5 % of a device's memory free, or use what memory.limit_bytes says"},
    {.name = "--allow", .value = "WORDS", .help = "with --search: also try what changes results: reduce_bfloat16, "
     "any_order (training.deterministic=false), batch (up to 4 times as large), or stages (of layers); "
     "separate several by commas"},
    {.name = "--write", .value = "FILE", .help = "with --search: write the configuration marked as the best"},
    {.name = "--longest", .help = "find the longest sequences that fit memory.limit_bytes or the devices and hosts of "
     "--machine, what ends them, and which keys would make them longer; with --search: set those keys, one after the "
     "other, as long as that helps. --json and --write write what is found"},
    {.name = "--tokens", .value = "N", .help = "with --machine: time and device-hours to train on N tokens (2T, 300B)"},
    {.name = "--within", .value = "TIME", .help = "with --tokens: how many nodes are needed to do that in this time: "
     "30d, 12h, 90m"},
    {.name = "--price", .value = "P", .help = "with --machine: what a device costs per hour (node.price_per_device_hour)"},
    {.name = "--fit", .value = "FOLDER", .help = "with --machine FILE and without CONFIG: fit the machine's figures to "
     "the runs below this folder, "
     "and write them to FILE"},
    {.name = "--check", .help = "compare the programs of all ranks: collectives, sizes, groups, parts, memory"},
    {.name = "--show", .help = "print the program: every operation with its tensors"},
    {.name = "--after", .value = "PASS",
     .help = "with --show: the program after this pass; the passes are, in order:"
             SH_PASS_LIST(PASS_NAME)},
    {.name = "--print-config", .help = "print the resolved configuration and stop"},
    {0},
};

static const struct sh_cmd_option doctor[] = {
    {.name = "--report", .value = "FILE", .help = "also write the facts for a bug report to this file: program, "
     "system, libraries, "
     "variables of MPI and related libraries, configuration, checks; without names of hosts and users, and without "
     "paths"},
    {0},
};

/* For commands without options. */
static const struct sh_cmd_option keep[] = {
    {.name = "--step", .help = "print the newest step that all ranks of this node have in memory, or -1, and stop"},
    {.name = "--watch",
     .help = "for job scripts: print a line that keepers of other nodes need in their environment (SHERD_WATCH), and then "
             "one for each of these nodes that is lost or whose keeper ends"},
    {.name = "--follow",
     .help = "for job scripts: tell the keeper of this node to turn to the watch in SHERD_WATCH, and exit; status 5: there is "
             "no keeper"},
    {0},
};

static const struct sh_cmd_option drill[] = {
    {.name = "--lose", .value = "WHAT",
     .help = "rank: kill the lowest rank of this node; node: stop all ranks and the keeper of this node, so that it says "
             "nothing any more"},
    {0},
};

static const struct sh_cmd_option none[] = {
    {0},
};

/* Every default is in the help text, because the code that applies it is elsewhere. */
static const struct sh_cmd_option tokenize[] = {
    {.name = "-o", .value = "FILE", .help = "token file to write"},
    {.name = "--val", .value = "FILE", .help = "hold out the end of the text as validation data, in this file"},
    {.name = "--val-fraction", .value = "F", .help = "fraction of the text for --val; default 0.1"},
    {.name = "--tokenizer", .value = "NAME", .help = "byte, a folder that has tokenizer.json, or such a file; default byte"},
    {.name = "--format", .value = "FORMAT", .help = "text: each file is a document; jsonl: each line is; messages, "
     "sharegpt, alpaca, prompt-completion, segments: each line is a "
     "conversation, and its answers are trained on; preference: each line is a pair of answers; unpaired: each is an answer with a label; classification: each is a text with the number of its label; reward: as preference, for objective.name=reward; regression: each is a text with a number; multi_label: each is a text with any number of labels; default: by the ending of the name, before .gz or .zst"},
    {.name = "--labels", .value = "LIST", .help = "multi_label: the names of all labels, with commas between, or how many "
     "there are"},
    {.name = "--field", .value = "KEY", .help = "jsonl: key of the text, default text; messages, sharegpt: key of the "
     "messages, default messages, conversations"},
    {.name = "--chat-template", .value = "NAME", .help = "messages and the like: auto (that of the tokenizer's "
     "folder, if it is one of these), chatml, qwen2.5, qwen3, "
     "llama3, llama3.1, llama2, mistral-v3, mistral-v7, mistral-v7-tekken, gemma or phi3"},
    {.name = "--special-in-text", .help = "messages may have the texts of special tokens in them"},
    {.name = "--separator", .value = "LINE", .help = "text: a line with exactly this text ends a document"},
    {.name = "--eos", .value = "WORD",
     .help = "token that ends each document; default: the eos_token_id of the tokenizer's folder"},
    {.name = "--no-bos", .help = "leave out the tokens that the tokenizer puts in front of each document"},
    {.name = "--no-eos", .help = "put no token at the end of documents"},
    {.name = "--documents", .help = "write a document file, for data.packing; default: a stream of tokens"},
    {.name = "--invalid", .value = "HOW", .help = "text that is not UTF-8: refuse it, or replace it (by U+FFFD); "
     "default refuse"},
    {.name = "--threads", .value = "N", .help = "threads that encode; default: the number of cores"},
    {0},
};

static const struct sh_cmd_option data[] = {
    {.name = "--tokenizer", .value = "NAME", .help = "tokenizer of the documents, to show their text: byte, a folder "
     "that has tokenizer.json, or such a file; default: show ids"},
    {.name = "--seq-len", .value = "T", .help = "sequence length for packing, in tokens; default 2048"},
    {.name = "--excess", .value = "HOW", .help = "treatment of longer documents: raise, truncate, drop or split; "
     "default split"},
    {.name = "--first", .value = "I", .help = "first document to show, or first sequence of a stream; default 0"},
    {.name = "--documents", .value = "N", .help = "number of documents to show, or of sequences of a stream; default "
     "1"},
    {.name = "--token-type", .value = "TYPE", .help = "type of a file without a header: uint16 or uint32; default "
     "uint16 up to 65536 words of the "
     "tokenizer, else uint32"},
    {0},
};

/* Bounds are checked by the command. */
static const struct sh_cmd_option generate[] = {
    {.name = "--checkpoint", .value = "FILE", .help = "model to sample from; a folder: its newest checkpoint"},
    {.name = "--state", .value = "STATE", .help = "model, or ema: the average of optimizer.ema_decay; default model"},
    {.name = "--prompt", .value = "TEXT", .help = "text to continue; default a line break"},
    {.name = "--tokenizer", .value = "NAME", .help = "tokenizer of the model: byte, a folder that has tokenizer.json, "
     "or such a file; default: the one that "
     "the checkpoint names"},
    {.name = "--prompts", .value = "FILE", .help = "continue the \"prompt\" of each line of a file of JSON lines"},
    {.name = "--messages", .value = "FILE", .help = "answer the \"messages\" of each line, the last of which must be a "
     "user's"},
    {.name = "--chat-template", .value = "NAME", .help = "for --messages: a name as for tokenize; default: the one "
     "of the data that the model was trained on"},
    {.name = "--special-in-text", .help = "messages may have the texts of special tokens in them"},
    {.name = "-o", .value = "FILE", .help = "with --prompts and --messages: file to write, one line for each; default: "
     "standard output"},
    {.name = "--tokens", .value = "N", .help = "maximum number of tokens to add; default 256"},
    {.name = "--stop", .value = "TEXT", .help = "end the text before this string"},
    {.name = "--temperature", .value = "X", .help = "0: always the most likely token; default 0.8"},
    {.name = "--top-k", .value = "K", .help = "sample among the K most likely tokens; 0: all; default 40"},
    {.name = "--top-p", .value = "P", .help = "sample among the most likely tokens whose probabilities sum to P; "
     "default 1: all"},
    {.name = "--min-p", .value = "P", .help = "sample among tokens with at least P times the probability of the most "
     "likely one; default 0: all"},
    {.name = "--seed", .value = "S", .help = "seed of the sampling; default 1"},
    {.name = "--batch", .value = "N", .help = "with --prompts and --messages: how many at a time per rank; default 8"},
    {.name = "--context", .value = "N", .help = "maximum number of tokens that the model sees; default "
     "model.max_seq_len"},
    {.name = "--parallel", .value = "HOW", .help = "resident: each rank has all parameters; shard: each has its part, "
     "and the ranks gather one "
     "unit at a time for each token; auto: resident if the memory allows; default auto"},
    {.name = "--trust", .value = "WHOM", .help = "owner: only checkpoints that no other user may have written; any: all; "
     "default owner (the same as --checkpoint.trust=WHOM)", .key = "checkpoint.trust"},
    {0},
};

/* --data is validation.dataset_path, which the configuration of a checkpoint may already set. */
static const struct sh_cmd_option eval[] = {
    {.name = "--checkpoint", .value = "FILE", .help = "model to evaluate; a folder: its newest checkpoint"},
    {.name = "--data", .value = "FILE",
     .help = "token file (the same as --validation.dataset_path=FILE)", .key = "validation.dataset_path"},
    {.name = "--sequences", .value = "N", .help = "evaluate the first N sequences of --data; default: all"},
    {.name = "--top-k", .value = "K", .help = "also write the K likeliest tokens at each place of --data, with their "
     "log-probabilities, to the file of -o, from which objective.name=distillation learns"},
    {.name = "--reference", .help = "write the log-probabilities of the answers of --data to the file of -o, with which the "
     "model is objective.reference_path of another run"},
    {.name = "--state", .value = "STATE", .help = "model, or ema: the average of optimizer.ema_decay; default model"},
    {.name = "--requests", .value = "FILE", .help = "log-probability of the \"continuation\" after the \"context\" of "
     "each line (JSON lines)"},
    {.name = "--choices", .value = "FILE", .help = "accuracy over lines with \"query\", \"choices\" and \"gold\", over "
     "HellaSwag's own lines, or "
     "over an evaluation file of llm.c"},
    {.name = "--text", .value = "FILE", .help = "log-likelihood of a text, and bits per byte"},
    {.name = "-o", .value = "FILE", .help = "with --requests: file for the lines with their answers, default standard "
     "output; with --choices: file for samples as lm_eval "
     "logs them; with --top-k: file for the tokens; with --reference: for the answers; else, of a model with model.num_labels: file for the logits of each text's "
     "labels, or for its value, in JSON lines"},
    {.name = "--tokenizer", .value = "NAME", .help = "tokenizer of the model, for these three: byte, a folder that has "
     "tokenizer.json, or such a file; default: the one "
     "that the checkpoint names"},
    {.name = "--batch", .value = "N", .help = "rows of text at a time per rank, for these three; default 8"},
    {.name = "--context", .value = "N", .help = "maximum number of tokens that the model reads, for these three; "
     "default model.max_seq_len"},
    {.name = "--trust", .value = "WHOM", .help = "owner: only checkpoints that no other user may have written; any: all; "
     "default owner (the same as --checkpoint.trust=WHOM)", .key = "checkpoint.trust"},
    {0},
};

/* The options of all verbs together; src/tools/ckpt/command.c says which verb takes which. */
static const struct sh_cmd_option ckpt[] = {
    {.name = "--tensors", .help = "info: also the name and shape of each tensor"},
    {.name = "--config", .help = "info: also the configuration, the notes and the state of the guard"},
    {.name = "--all", .help = "diff: all tensors that differ, not just the five that differ most"},
    {.name = "--quick", .help = "ls: check only structure and metadata, not the data"},
    {.name = "-o", .value = "FILE",
     .help = "extract: array file to write (.npy); export: folder to write, a new one; import: folder of checkpoints "
             "to write into; average: the same, without a checkpoint in it"},
    {.name = "--dtype", .value = "TYPE",
     .help = "export: float32, float16 or bfloat16; default float32, which is exact"},
    {.name = "--max-shard-size", .value = "BYTES", .help = "export: maximum bytes of tensors per file; default 5GB"},
    {.name = "--hf", .value = "DIR", .help = "export: take tokenizer, generation_config.json and token ids from this "
     "folder"},
    {.name = "--adapter", .value = "DIR", .help = "export: write the adapters of a checkpoint to this new folder, for "
     "PEFT"},
    {.name = "--merge", .help = "export: write the model with the adapters of a checkpoint added to it"},
    {.name = "--merge-base", .value = "FORM", .help = "export: nf4: merge with the base in four bits, as with "
     "lora.quantize_base; "
                                                      "default: none"},
    {.name = "--base", .value = "PATH", .help = "export: with --adapter and --merge, the folder or checkpoint of the "
     "base model; default: "
     "the one that the checkpoint of adapters names"},
    {.name = "--verify", .value = "HOW", .help = "export: read back from the disk, from the cache, or not at all "
     "(off); default disk"},
    {.name = "--ignore", .value = "KEYS", .help = "import: keys of config.json to ignore (the same as "
     "model.hf_ignore)"},
    {.name = "--moments", .help = "export: a state folder, for other trainers: also the moments and the step; "
     "sherd-export makes their checkpoints of it"},
    {.name = "--weights-only", .help = "import: leave out the states of an optimizer in the folder, and begin at step 0"},
    {.name = "--allow-nan", .help = "import: accept weights that are not finite, instead of refusing them"},
    {.name = "--state", .value = "STATE", .help = "extract: model, exp_avg, exp_avg_sq or another state of the file; "
     "export: model, or ema: the average of optimizer.ema_decay; default model"},
    {.name = "--weights", .value = "W,W", .help = "average: the share of each FILE, in their order; the sum is 1; default "
     "equal shares"},
    {.name = "--keep-latest", .value = "K", .help = "prune: keep the newest K checkpoints"},
    {.name = "--keep-every", .value = "N",
     .help = "prune: also keep checkpoints whose step is a multiple of N; default none"},
    {.name = "--trust", .value = "WHOM",
     .help = "info, verify, diff, average, extract, export, import: owner: read only checkpoints that no other user may have "
             "written; any: all; default owner"},
    {.name = "--dry-run", .help = "prune: print what would be deleted, but delete nothing"},
    {0},
};

/* The folder is positional, as in all commands. */
static const struct sh_cmd_option report[] = {
    {.name = "-o", .value = "FILE", .help = "file to write; default: report.html in the folder"},
    {.name = "--follow", .help = "write the page again every ten seconds until all runs are finished or over, or until "
     "Ctrl-C; the page reloads itself"},
    {.name = "--against", .value = "OLD", .help = "another folder: name the points that are slower than the same "
     "points there"},
    {.name = "--sample", .value = "FILE", .help = "show this text on the page, such as the output of sherd generate; up to "
     "64 KiB"},
    {.name = "--mllog", .help = "instead of the page, write one run in MLPerf's logging format, mllog.txt"},
    {0},
};

static const struct sh_cmd_option plugin[] = {
    {.name = "--trust", .value = "WHO", .help = "owner: open only files that no other user may have written; any: all; "
     "default owner"},
    {.name = "--device", .value = "WHERE", .help = "cuda: try cuda kernels too, on the first GPU that this process sees; "
     "default: only kernels for CPUs"},
    {0},
};

static const struct sh_cmd_option diff[] = {
    {.name = "--tolerance", .value = "X", .help = "compare up to rounding, and name the first operation whose output "
     "differs by more than X times what its inputs do and one rounding; default: to the last bit, or up to rounding "
     "with X 10 if device, type or number of ranks forbid that"},
    {.name = "--json", .help = "print the result as JSON"},
    {0},
};

static const struct sh_cmd_option audit[] = {
    {.name = "--step", .value = "N", .help = "do the steps up to this one"},
    {.name = "--claims", .value = "FILE", .help = "the claims; default: claims.jsonl in the folder of the checkpoint's run"},
    {.name = "--folder", .value = "DIR", .help = "where to make a folder for the audit, which is deleted; default: here"},
    {0},
};

static const struct sh_cmd_option check[] = {
    {.name = "--operations", .help = "run one step, and compare what each operation makes with the reference in float64"},
    {.name = "--full", .help = "keep the configuration's layers and seq_len; the reference may take hours. Without it: "
     "as many layers as differ, at least 2, and 64 tokens"},
    {.name = "--folder", .value = "DIR", .help = "where to make a folder for the tokens, which is deleted; default: here"},
    {0},
};

static const struct sh_cmd_option study[] = {
    {.name = "--widths", .value = "W,W", .help = "values of model.dim, smallest first; default: four that double, from 64 or the next "
     "width that has whole heads"},
    {.name = "--folder", .value = "DIR", .help = "where to make a folder for the tokens, which is deleted; default: here"},
    {0},
};

/* For all kinds, unless the help names one. */
static const struct sh_cmd_option bench[] = {
    {.name = "--folder", .value = "DIR",
     .help = "all but tier: write to a new folder in DIR, which is deleted at the end; default: the current folder"},
    {.name = "--repeat", .value = "N", .help = "number of rounds; each measures everything once; default 3"},
    {.name = "--max-bytes", .value = "BYTES", .help = "comm: size of the largest operand; default 1 GiB, or what the "
     "memory allows"},
    {.name = "--bytes", .value = "BYTES", .help = "tier: size of the scratch file of a rank, the same as in training; "
     "or bytes to move between a GPU and its host; default 4 GiB"},
    {.name = "--seconds", .value = "N", .help = "tier: write the file twice before it is measured, or for this long; "
     "default 60"},
    {.name = "--machine", .value = "FILE", .help = "all but tier: write the results to this machine file as measured "
     "points, for sherd plan "
     "--machine FILE; on CPUs a missing file is created"},
    {.name = "--json", .value = "FILE", .help = "write the results to this file"},
    {.name = "--compare", .value = "FILE", .help =
     "compare the results with those of an earlier --json, and name the rows that are slower beyond the spread of "
     "both"},
    {0},
};

/* --format is for the build, which makes the man pages and doc/ with it. */
static const struct sh_cmd_option help[] = {
    {.name = "--format", .value = "FORM", .help = "everything as text, roff (man page), markdown, or bash or zsh (completion "
     "scripts)"},
    {.name = "--config", .help = "show the keys of the configuration instead of the commands"},
    {.name = "--machine", .value = "[NAME]", .help = "show the keys and presets of machine files instead "
     "of the commands; with "
     "a file or a preset, its figures and where each comes from"},
    {0},
};

/* mpi: the command starts MPI. stops: signals make the command save and stop instead of killing it. config: words with
 * a dot set keys. The order is that of the help. */
const struct sh_cmd sh_commands[] = {
    {"train", "CONFIG | --model.hf=DIR", "train a model; start it with mpirun or srun, one rank per process",
     "train a model, on as many ranks as mpirun or srun starts", SH_CMD_TRAIN, train, .config = true,
     .mpi = true, .stops = true, .run = sh_cmd_train},
    {"run_clm", "--model_name DIR --train_file FILE",
     "train with the options of transformers' run_clm.py and the defaults of its Trainer; print the configuration that "
     "they stand for. Keys may be added, and take precedence. All other options of Trainer are known as well: they are "
     "ignored with a note if they have no effect here, or refused with the reason",
     "train with the options of transformers' run_clm.py", SH_CMD_TRAIN, run_clm, .config = true, .mpi = true,
     .collects = true, .stops = true,
     .run = sh_cmd_run_clm},
    {"keep", "CONFIG | --model.hf=DIR", "hold the near checkpoints of a run (checkpoint.near_interval) in the memory of this "
     "node, while ranks die and start again; start one on each node, before the run, with the same CONFIG and keys. It "
     "ends with whoever started it, or by a signal, and the memory is free then",
     "hold copies of a run's state in memory while ranks die", SH_CMD_TRAIN, keep, .config = true, .run = sh_cmd_keep},
    {"drill", "CONFIG | --model.hf=DIR", "lose a rank or this node on purpose, in a run that makes near checkpoints, and say "
     "when its next step followed; run it on a node of the job, with the CONFIG and keys of the run",
     "lose a rank or a node on purpose", SH_CMD_TRAIN, drill, .config = true, .run = sh_cmd_drill},
    {"plan", "CONFIG | --model.hf=DIR", "show mesh, units, memory and collectives of a training step on any number of "
     "ranks, and predict its time on a machine",
     "say what a run takes: memory, traffic, time", SH_CMD_PREPARE, plan,
     .config = true, .run = sh_cmd_plan},
    {"config", "get KEY... [CONFIG] | given CONFIG",
     "for scripts: print the value of each KEY (section.key) of the resolved configuration, one per line, without "
     "quotes; or the names of the keys that the file and the arguments set, one per line",
     "print values of a configuration, for scripts", SH_CMD_HELP, none, .config = true, .run = sh_cmd_config_run},
    {"doctor", "[CONFIG]",
     "check the nodes of a job before it trains: placement, program, files, clocks, storage, memory, network; without a "
     "configuration, it checks nodes and folder for a small model",
     "check the nodes of a job before it trains", SH_CMD_MEASURE, doctor,
     .config = true, .mpi = true, .run = sh_cmd_doctor},
    {"tokenize", "INPUT...",
     "turn text files into a token file, with the tokenizer of a model or one token per byte; the inputs may be "
     "compressed "
     "(.gz, .zst); - is standard input, with --format",
     "turn text, chats or JSON lines into tokens to train on", SH_CMD_PREPARE, tokenize, .run = sh_cmd_tokenize},
    {"data", "FILE", "show what is in a document file: lengths, how full sequences get, and the text of documents, "
     "with trained text in "
     "angle brackets; for a stream of tokens, the text of its sequences",
     "show what is in a file of tokens", SH_CMD_PREPARE, data, .run = sh_cmd_data},
    {"generate", "[CONFIG]", "continue a text with a model from a checkpoint",
     "continue a text", SH_CMD_LOOK, generate, .config = true,
     .mpi = true, .run = sh_cmd_generate},
    {"eval", "[CONFIG]", "measure the mean loss of a model from a checkpoint over a token file, or log-probabilities "
     "and accuracy over the texts of a file",
     "measure loss, log-probabilities and accuracy", SH_CMD_LOOK, eval, .config = true,
     .mpi = true, .run = sh_cmd_eval},
    {"ckpt", "info|verify|ls|latest|diff|average|extract|prune|export|import ARGUMENT...",
     "work with checkpoints: show what a FILE holds; check every block of it; list a FOLDER as valid, damaged, "
     "partial; "
     "for scripts, print the step of the newest complete one in a FOLDER, or -1; compare two FILEs "
     "(exit status 3 if they differ); write the mean of the parameters of FILEs as a new checkpoint; write a TENSOR of a FILE as an array; delete old ones in a FOLDER; write a "
     "folder that transformers opens; make a checkpoint of step 0 from such a folder. A folder in place of a FILE "
     "stands "
     "for its newest checkpoint, and the folder of a run for its checkpoints",
     "checkpoints: ls, verify, diff, prune, export, import", SH_CMD_CHECKPOINTS, ckpt, .run = sh_cmd_ckpt},
    {"report", "FOLDER",
     "write one HTML page about all runs below a folder: loss, speed and efficiency against ranks, time, memory, "
     "configurations",
     "write one HTML page about all runs below a folder", SH_CMD_LOOK, report, .run = sh_cmd_report},
    {"plugin", "check FILE",
     "try what the operations of a plug-in promise (doc/plugins.md): their text, gradient, types, what they read and write, "
     "NaN, equal bits, and the time that they take (exit status 3 if one does not hold)",
     "try the operations of a plug-in", SH_CMD_LOOK, plugin, .run = sh_cmd_plugin},
    {"diff", "A [B]",
     "find where two runs part: compare two files that debug.fingerprint wrote, and name the first tensor that differs "
     "although all that it was made of is equal (exit status 3 if there is one). The runs may have other meshes, "
     "strategies, recomputation or devices. One file alone: compare what was recomputed with what it was",
     "find the first tensor in which two runs differ", SH_CMD_LOOK, diff, .run = sh_cmd_diff},
    {"audit", "CHECKPOINT",
     "prove that a run did what it claims: do its steps after a checkpoint again, on any 2^k ranks if it ran with "
     "training.reproducible=mesh, and compare the state after each with the digests that metrics.state_digest_every wrote "
     "(exit status 7 and the first step that differs; 2 if other hardware or libraries make it no proof). Keys say where "
     "the data is now",
     "do steps of a run again, and compare the states", SH_CMD_CHECKPOINTS, audit, .config = true, .mpi = true, .run = sh_cmd_audit},
    {"check", "CONFIG",
     "check this machine's arithmetic: run one step of the configuration on made-up tokens, with every operation compared "
     "with the reference in float64, within what rounding explains (exit status 6 if one is wrong, with its tensor and "
     "element). Start it as the job is started: each rank checks its own operations",
     "compare the operations of a step with float64", SH_CMD_MEASURE, check, .config = true, .mpi = true, .run = sh_cmd_check},
    {"study", "coords CONFIG",
     "find out whether a learning rate fits other widths: train narrow and wide models of CONFIG for four steps on one sequence of "
     "made-up tokens, with as many layers, and print how much the results of branches and the logits change, with the slope over "
     "the width, both in logarithms (exit status 3 if a mean slope is beyond 0.35). Heads and model.ffn_dim follow the width. "
     "One process",
     "see whether a learning rate fits other widths", SH_CMD_MEASURE, study, .config = true, .mpi = true, .run = sh_cmd_study},
    {"bench", "tier [DIR] | gemm|step|comm|io [CONFIG]",
     "measure this machine: the matrix products of a model against the best rate of a large one; a training step and "
     "each of its operations against what that rate and the memory allow; collectives against those of MPI; checkpoint "
     "save and load speed, next to plain programs that write and read the same amount; the rates of offloading to a "
     "folder "
     "or, without a folder, to the host of GPUs; start it with mpirun or srun",
     "measure this machine: products, steps, collectives, disks", SH_CMD_MEASURE, bench, .config = true, .mpi = true, .run = sh_cmd_bench},
    {"help", "[COMMAND|KEY|all]", "show a line for each command, the options of one command, one key of the configuration, or everything; with --config all keys",
     "show this text, or the options of one command", SH_CMD_HELP, help,
     .run = sh_cmd_help_run},
    {"version", "", "show the version, and what it was built with (the same as sherd --version and sherd -V)",
     "show the version, and what it was built with", SH_CMD_HELP, none,
     .run = sh_cmd_version_run},
    {0},
};
/* clang-format on */

/* NULL: no such command. The script run_clm.py stands for the command that does the same, wherever it lies. */
const struct sh_cmd *sh_cmd_find(const char *name)
{
    static const char script[] = "run_clm.py";
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;

    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        if (!strcmp(c->name, name) ||
            (!strcmp(file, script) && !strncmp(c->name, script, sizeof script - sizeof ".py")))
            return c;
    return NULL;
}
