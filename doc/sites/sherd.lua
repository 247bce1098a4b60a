-- A module for Lmod: copy it to <modulefiles>/sherd/@VERSION@.lua. @prefix@ is where sherd was installed.
help([[Sherd trains language models with fully sharded data parallelism over MPI.

    sherd help                       commands
    man sherd-config                 keys of the configuration
    $SHERD_JOBSCRIPTS/train.sbatch   a job script to submit
]])
whatis("Name: sherd")
whatis("Version: @VERSION@")
whatis("Description: FSDP training of language models over MPI, checkpoints in parallel HDF5")

local root = "@prefix@"

-- The MPI and HDF5 that it was built with; name your site's modules:
-- depends_on("openmpi/4.1.4", "hdf5/1.10.8-openmpi")
-- For GPUs, what it loads when it runs:
-- depends_on("cuda", "nccl", "cudnn")

prepend_path("PATH", "@bindir@")
prepend_path("MANPATH", "@mandir@")
-- Where bash-completion and zsh look for completions.
prepend_path("XDG_DATA_DIRS", "@datadir@")
prepend_path("FPATH", pathJoin("@datadir@", "zsh/site-functions"))
setenv("SHERD_JOBSCRIPTS", "@jobscriptsdir@")
setenv("SHERD_ROOT", root)
