"""A Slurm cluster on one machine: real daemons, and nodes that count as different machines.

Each virtual node is a separate slurmd, in namespaces that give it its own host name and /dev/shm, so MPI takes the
nodes for machines. Everything lies in one folder and listens on 127.0.0.1; nothing outside that folder is touched. The
program that starts the cluster has its own namespaces as well (enter): whatever the machine is called, the program has
a name that resolves to 127.0.0.1, and when it ends, however it does, the kernel ends all daemons and ranks with it.
Needs root, and Debian's slurmd, slurmctld, slurm-client and munge.
"""
import datetime
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAMS = ('munged', 'mungekey', 'munge', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scontrol', 'squeue', 'sinfo', 'unshare')
SECONDS = 300  # after this long a daemon or a command counts as hung
# How long a requeued job waits, to avoid meeting remains of its previous start (see Cluster.hurry).
CREDENTIAL_SECONDS = 30
SOON_SECONDS = 2
PATH = '/usr/sbin:/sbin:/usr/bin:/bin'

CONFIG = '''\
ClusterName=sherd
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={credential}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
# PMIx names its folders by job only, and one node's may not be another's.
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin={binding}
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# Nodes are what stands here, whatever the machine has.
SlurmdParameters=config_overrides
# A job that takes it (--licenses=machine) is alone with the others that do.
Licenses=machine:1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Quick to notice and to act.
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=30
KillWait=4
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={tasks} Boards=1 \
SocketsPerBoard=1 CoresPerSocket={tasks} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES DefaultTime=10 MaxTime=INFINITE State=UP
'''

# Where everything runs. The shell stays: the first process of a namespace has to reap processes that nobody waits for.
HEAD = 'head'
UNSHARE = ('unshare', '--mount', '--uts', '--propagation', 'private')
ENTER = f'''
hostname {HEAD} && hosts=$(mktemp) && echo 127.0.0.1 localhost {HEAD} >"$hosts" && mount --bind "$hosts" /etc/hosts || exit
"$@"
status=$?
rm "$hosts"
exit $status
'''

# Turns a process into a node before it runs slurmd. A node has no process or IPC namespace: UCX would use TCP between
# the nodes, over which MPICH 4.0 often hangs in MPI_Finalize.
NODE = '''
hostname {name} && mount --bind {folder}/hosts /etc/hosts && mount -t tmpfs -o mode=1777 tmpfs /dev/shm &&
exec slurmd -D -f {folder}/slurm.conf -N {name}
'''

# The nodes are really one machine: they meet on the loopback device, and each has its own shared memory, whatever UCX
# concludes from the machine's identity. Whoever looks for other networks reads long tables of the kernel at each start,
# which is a third of a short run. More ranks than cores must not spin.
MPI_ENVIRONMENT = {
    'UCX_NET_DEVICES': 'lo', 'UCX_TLS': 'tcp,self,sysv,cma', 'UCX_LOG_LEVEL': 'fatal',
    'OMPI_MCA_pml': 'ucx', 'OMPI_MCA_btl': 'self,vader', 'OMPI_MCA_mtl': '^ofi,psm,psm2',
    'OMPI_MCA_opal_common_ucx_tls': 'any', 'OMPI_MCA_opal_common_ucx_devices': 'any',
    'OMPI_MCA_opal_common_ucx_verbose': '-1', 'OMPI_MCA_mpi_yield_when_idle': '1', 'OMPI_ALLOW_RUN_AS_ROOT': '1',
    'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
}


class Failed(Exception):
    """The cluster does not work as it should; the text has the end of the log."""


def why_not():
    """Why no cluster can be started here; '' if it can."""
    if os.getuid() != 0:
        return 'virtual nodes need root'
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        return f'no {", ".join(missing)} (Debian: slurmd slurmctld slurm-client munge)'
    if subprocess.run(own_names('true'), capture_output=True, check=False).returncode != 0:
        return 'this kernel or container does not give root namespaces'
    return ''


def own_names(*command):
    """The command, wrapped to run on a machine with its own name, whose processes end with the command."""
    return [*UNSHARE, '--pid', '--fork', '--kill-child', '--mount-proc', 'sh', '-c', ENTER, 'sh', *command]


def enter():
    """Continue as the program of such a machine. The caller's folders and files stay the same."""
    if 'SHERD_TEST_HEAD' not in os.environ:
        os.environ['SHERD_TEST_HEAD'] = HEAD
        os.execvp(UNSHARE[0], own_names(sys.executable, *sys.argv))


def free_ports(count):
    """The first of `count` neighbouring ports that nobody listens on."""
    for first in random.sample(range(20000, 32000, count), 100):  # so that clusters started together do not collide
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(('127.0.0.1', port))
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise Failed(f'no {count} free ports in a row')


def wait_until(what, condition, seconds=SECONDS, every=0.1):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f'{what}: not within {seconds:g} s')
        time.sleep(every)


def processes():
    """{pid: (parent, name)} of all live processes."""
    found = {}
    for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
        try:
            begin, rest = stat.read_text().rsplit(')', 1)
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state != 'Z':
            found[int(stat.parent.name)] = (int(parent), begin.split('(', 1)[1])
    return found


def below(roots):
    """These processes and all their descendants."""
    alive, found = processes(), set(roots)
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in alive.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid for pid in found if pid in alive}


def kill(pids, how=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            pass


def run(command, environment, folder, seconds=600):
    """(exit status, standard output and error) of a command."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace', env=environment, cwd=folder, timeout=seconds, check=False)
    return done.returncode, done.stdout


class Cluster:
    """`nodes` nodes n1, n2, ... of `tasks` cores. Use as a context: started on entering, removed on leaving. Cores have
    the same numbers on all nodes, and really are the same cores: ranks that are measured must not be bound to them."""

    def __init__(self, folder, nodes, tasks, bound=True):
        self.folder = pathlib.Path(folder).absolute()
        self.nodes, self.tasks = nodes, tasks
        self.bound = bound and os.cpu_count() >= tasks
        self.daemons = {}
        self.environment = {**os.environ, **MPI_ENVIRONMENT, 'SLURM_CONF': str(self.folder / 'slurm.conf'),
                            'PATH': f"{os.environ.get('PATH', '')}:{PATH}"}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def names(self):
        return [f'n{i + 1}' for i in range(self.nodes)]

    def start(self):
        for name in ('munge', 'state', 'log'):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / 'munge').chmod(0o700)
        self.write_config()
        self.start_munge()
        self.start_controller('-c')
        for name in self.names():
            self.start_node(name, wait=False)
        self.wait('all nodes are up', lambda: self.idle() == self.nodes)

    def start_controller(self, *words):
        """-c: it forgets the jobs of its former life."""
        self.daemon('slurmctld', ['slurmctld', '-D', *words, '-f', str(self.folder / 'slurm.conf')])
        self.wait('slurmctld answers', lambda: 'is UP' in self.call('scontrol', 'ping'))

    def kill_controller(self, number):
        """Not before it has written that the job runs, since it would forget it: what changes is written within five seconds."""
        state, since = self.folder / 'state/job_state', time.time()
        self.call('scontrol', 'update', f'JobId={number}', 'Comment=runs', check=True)
        self.wait('the state is written', lambda: state.exists() and state.stat().st_mtime > since)
        daemon = self.daemons.pop('slurmctld')
        daemon.kill()
        daemon.wait()

    def write_config(self):
        port = free_ports(self.nodes + 1)
        memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 20
        (self.folder / 'slurm.conf').write_text(CONFIG.format(
            host=HEAD, port=port, first=port + 1, last=port + self.nodes, nodes=self.nodes, tasks=self.tasks,
            memory=memory, folder=self.folder, credential=CREDENTIAL_SECONDS,
            binding='task/affinity' if self.bound else 'task/none'))
        (self.folder / 'hosts').write_text(f'127.0.0.1 localhost {HEAD} {" ".join(self.names())}\n')

    def start_munge(self):
        munge = self.folder / 'munge'
        subprocess.run(['mungekey', '-c', '-k', str(munge / 'key')], env=self.environment, check=True)
        self.daemon('munged', ['munged', '--force', '--foreground', f'--key-file={munge}/key', f'--seed-file={munge}/seed',
                               f'--socket={munge}/socket', f'--pid-file={munge}/pid', f'--log-file={self.folder}/log/munged'])
        self.wait('munged answers', lambda: subprocess.run(
            ['munge', '-n', '-S', str(munge / 'socket')], capture_output=True, env=self.environment, check=False).returncode == 0)

    def daemon(self, name, command):
        with open(self.folder / 'log' / f'{name}.out', 'ab') as out:
            self.daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  env=self.environment, start_new_session=True)

    def wait(self, what, condition, seconds=SECONDS):
        try:
            wait_until(what, condition, seconds)
        except Failed as error:
            logs = sorted((self.folder / 'log').iterdir())
            raise Failed('\n'.join([str(error), *(f'{log.name}: {line}' for log in logs for line in
                                                  log.read_text(errors='replace').splitlines()[-4:])])) from None

    def call(self, *command, check=False):
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, stdin=subprocess.DEVNULL,
                              timeout=SECONDS, check=False)
        if check and done.returncode != 0:
            raise Failed(f'{" ".join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}')
        return done.stdout.strip()

    def field(self, number, name):
        """A field of the output of `scontrol show job`, '' if there is none."""
        for word in self.call('scontrol', 'show', 'job', '-o', number).split():
            if word.startswith(f'{name}='):
                return word.split('=', 1)[1]
        return ''

    def idle(self):
        return int(self.call('sinfo', '-h', '-t', 'idle', '-o', '%D') or 0)

    def start_node(self, name, wait=True):
        for kind in ('spool', 'tmp'):  # a node that starts has lost its former files
            shutil.rmtree(self.folder / kind / name, ignore_errors=True)
            (self.folder / kind / name).mkdir(parents=True)
        script = NODE.format(name=name, folder=self.folder)
        self.daemon(name, [*UNSHARE, 'sh', '-c', script])
        if wait:
            self.wait(f'{name} is up again', lambda: self.call('sinfo', '-h', '-N', '-n', name, '-o', '%T') in (
                'idle', 'mixed', 'allocated'))

    def steps_on(self, name):
        """slurmstepd detaches from its slurmd; the log of the node, which it holds open, identifies it."""
        log, found = str(self.folder / 'log' / name), []
        for pid, (_, program) in processes().items():
            if program == 'slurmstepd' and log in links(pid):
                found.append(pid)
        return found

    def kill_node(self, name):
        """Like a node that loses power: its daemon and all of its processes end at once. They are stopped before any of
        them is killed, or a slurmstepd could still report the end of its rank."""
        daemon = self.daemons.pop(name)
        roots = [daemon.pid, *self.steps_on(name)]
        kill(roots, signal.SIGSTOP)
        all_of_it = below(roots)
        kill(all_of_it, signal.SIGSTOP)
        kill(sorted(all_of_it, reverse=True))  # children first: an srun has one that cancels the step when srun is gone
        daemon.wait()

    def freeze_node(self, name):
        """Like a node whose network is cut: nothing on it says anything any more, and no socket is closed. kill_node ends
        it."""
        roots = [self.daemons[name].pid, *self.steps_on(name)]
        kill(roots, signal.SIGSTOP)
        kill(below(roots), signal.SIGSTOP)

    def thaw_node(self, name):
        """The link of a frozen node is back."""
        roots = [self.daemons[name].pid, *self.steps_on(name)]
        kill(below(roots), signal.SIGCONT)

    def say_down(self, name):
        """Tell slurmctld what it finds out by itself when the node has not answered for SlurmdTimeout."""
        self.call('scontrol', 'update', f'nodename={name}', 'state=down', 'reason=lost', check=True)

    def resume_drained(self):
        """What an administrator does for healthy nodes that Slurm has drained ("Kill task failed"), since their part of a step did not
        end for a minute while another node of that step was silent. Returns their names."""
        names = self.call('sinfo', '-h', '-N', '-t', 'drain', '-o', '%N').split()
        for name in names:
            self.call('scontrol', 'update', f'nodename={name}', 'state=resume', check=True)
        return names

    def hurry(self, number):
        """Let a requeued job start as soon as its credential differs from the previous one, which takes a second."""
        start = self.field(number, 'StartTime')
        if start[:1].isdigit() and datetime.datetime.fromisoformat(start).timestamp() > time.time() + 2 * SOON_SECONDS:
            self.call('scontrol', 'update', f'jobid={number}', f'starttime=now+{SOON_SECONDS}')

    def stop(self):
        for name in self.names():
            if name in self.daemons:
                self.kill_node(name)
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = {}


def link(path):
    """What a link of /proc leads to, '' if its process is gone by now."""
    try:
        return os.readlink(path)
    except OSError:
        return ''


def links(pid):
    """Paths of the open files of a process."""
    try:
        return {link(fd.path) for fd in os.scandir(f'/proc/{pid}/fd')}
    except OSError:
        return set()
