# A recipe for Spack 1.0 and newer: put it into <repository>/packages/sherd/package.py (`spack repo
# create` makes one), with sherd-0.1.0.tar.xz of `make dist` in the current folder:
#
#   spack install --no-checksum sherd ^openmpi
#
# --no-checksum is needed as long as the version below has no checksum: add sha256= with the sum
# that `sha256sum` prints for the tarball you trust.
import os

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Sherd(AutotoolsPackage, CudaPackage):
    """Trains language models with fully sharded data parallelism over MPI, and keeps checkpoints
    in parallel HDF5."""

    manual_download = True
    url = f"file://{os.getcwd()}/sherd-0.1.0.tar.xz"

    license("Apache-2.0")

    version("0.1.0")

    variant("onednn", default=True, description="Fast matrix products on CPUs")
    variant(
        "tokenizers", default=True, description="tokenizer.json, and texts packed by gzip or zstd"
    )
    variant("cudnn", default=True, when="+cuda", description="Attention on GPUs by cuDNN")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("blas")
    requires(
        "^[virtuals=blas] openblas",
        "^[virtuals=blas] blis",
        policy="any_of",
        msg="CBLAS of OpenBLAS or BLIS",
    )
    depends_on("libyaml")
    depends_on("jansson")
    depends_on("xxhash")
    depends_on("onednn@2:3 cpu_runtime=omp", when="+onednn")
    depends_on("pcre2+jit", when="+tokenizers")
    depends_on("zlib-api", when="+tokenizers")
    depends_on("zstd", when="+tokenizers")
    depends_on("cuda@12.3:", when="+cuda")
    depends_on("nccl@2.26:", when="+cuda")
    for _arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={_arch}", when=f"+cuda cuda_arch={_arch}")
    depends_on("cudnn@9:", when="+cudnn")
    depends_on("python@3.9:", type="test")
    depends_on("cmocka", type="test")

    requires(
        "target=x86_64:",
        "target=aarch64:",
        policy="any_of",
        msg="Sherd is tried on x86-64 and AArch64; numbers in files are little-endian",
    )
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=80,90")

    def place(self, name):
        """What configure is told of a library: its prefix. Of the system's own, pkg-config knows
        where below /usr the distribution has put them."""
        prefix = self.spec[name].prefix
        return "yes" if prefix == "/usr" else prefix

    def configure_args(self):
        spec = self.spec
        args = [f"--with-mpi={spec['mpi'].prefix}"]
        for option, package, wanted in (
            ("hdf5", "hdf5", True),
            ("blas", "blas", True),
            ("yaml", "libyaml", True),
            ("jansson", "jansson", True),
            ("xxhash", "xxhash", True),
            ("dnnl", "onednn", "+onednn" in spec),
            ("pcre2", "pcre2", "+tokenizers" in spec),
            ("zlib", "zlib-api", "+tokenizers" in spec),
            ("zstd", "zstd", "+tokenizers" in spec),
        ):
            args.append(f"--with-{option}={self.place(package) if wanted else 'no'}")
        args.append(f"--with-cmocka={'yes' if self.run_tests else 'no'}")
        if "+cuda" in spec:
            args += [
                f"--with-cuda={spec['cuda'].prefix}",
                f"--with-cuda-arch={' '.join(spec.variants['cuda_arch'].value)}",
                f"--with-nccl={spec['nccl'].prefix}",
                f"--with-cudnn={spec['cudnn'].prefix}" if "+cudnn" in spec else "--with-cudnn=no",
            ]
        else:
            args.append("--with-cuda=no")
        return args

    def setup_run_environment(self, env):
        # They are loaded when the program runs, and only if there is a GPU.
        for name in ("nccl", "cudnn"):
            if name in self.spec:
                env.prepend_path("LD_LIBRARY_PATH", self.spec[name].libs.directories[0])

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def installcheck(self):
        make("installcheck")
